// Attention and sampling for one decoding step of many rows of different lengths.
//
// Layouts are chosen so that a bfloat16 pair dot product (AVX512-BF16 vdpbf16ps) needs no
// horizontal sum: keys lie in blocks of 16 positions, values in pairs of positions.
//   keys   [row][kv head][block of 16][pair of dims][16 positions][2 dims]
//   values [row][kv head][pair of positions][dim][2 positions]
// The library is linked without an OpenMP runtime: it takes the one that torch has loaded,
// because two thread pools on the same cores would spin against each other.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int kHeadDim = 64;
constexpr int kPairs = kHeadDim / 2;
constexpr int kLanes = 16;
constexpr int kMaxGroup = 8;  // query heads per key/value head

inline float to_float(uint16_t x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // nearest even
}

inline uint32_t pack(float a, float b) {
  return to_bf16(a) | (static_cast<uint32_t>(to_bf16(b)) << 16);
}

#ifdef __AVX512BF16__
struct Acc {
  __m512 v = _mm512_setzero_ps();
  void dot(const uint16_t* lanes, uint32_t pair) {
    v = _mm512_dpbf16_ps(v, (__m512bh)_mm512_loadu_si512(lanes), (__m512bh)_mm512_set1_epi32(pair));
  }
  void store(float* out) const { _mm512_storeu_ps(out, v); }
};
#else
struct Acc {
  float v[kLanes] = {};
  void dot(const uint16_t* lanes, uint32_t pair) {
    const float a = to_float(pair & 0xffff), b = to_float(pair >> 16);
    for (int i = 0; i < kLanes; ++i) v[i] += a * to_float(lanes[2 * i]) + b * to_float(lanes[2 * i + 1]);
  }
  void store(float* out) const { std::memcpy(out, v, sizeof v); }
};
#endif

// Rotates one head by its position (pairs are dim i and i + 32, as in Llama).
void rotate(const uint16_t* x, const float* cos, const float* sin, float* out) {
  for (int i = 0; i < kPairs; ++i) {
    const float a = to_float(x[i]), b = to_float(x[i + kPairs]);
    out[i] = a * cos[i] - b * sin[i];
    out[i + kPairs] = b * cos[i] + a * sin[i];
  }
}

void put_key(uint16_t* keys, int64_t pos, const float* k) {
  uint16_t* block = keys + (pos / kLanes) * kHeadDim * kLanes + (pos % kLanes) * 2;
  for (int d = 0; d < kHeadDim; ++d) block[(d / 2) * kLanes * 2 + d % 2] = to_bf16(k[d]);
}

void put_value(uint16_t* values, int64_t pos, const uint16_t* v) {
  uint16_t* pair = values + (pos / 2) * kHeadDim * 2 + pos % 2;
  for (int d = 0; d < kHeadDim; ++d) pair[2 * d] = v[d];
}

// scores[g * stride + s] = scaled dot product of query g with key s, for s < length.
void score(const uint16_t* keys, const uint32_t (*q)[kPairs], int group, int64_t length,
           float* scores, int64_t stride) {
  for (int64_t s = 0; s < length; s += kLanes) {
    const uint16_t* block = keys + s * kHeadDim;
    Acc acc[kMaxGroup];
    for (int p = 0; p < kPairs; ++p)
      for (int g = 0; g < group; ++g) acc[g].dot(block + p * kLanes * 2, q[g][p]);
    for (int g = 0; g < group; ++g) acc[g].store(scores + g * stride + s);
  }
}

// Turns scores into weights in place; positions from length to padded become zero.
float soften(float* scores, int64_t length, int64_t padded) {
  float top = scores[0], sum = 0;
  for (int64_t s = 1; s < length; ++s) top = scores[s] > top ? scores[s] : top;
#pragma GCC ivdep
  for (int64_t s = 0; s < length; ++s) scores[s] = std::exp(scores[s] - top);
  for (int64_t s = 0; s < length; ++s) sum += scores[s];
  for (int64_t s = length; s < padded; ++s) scores[s] = 0;
  return sum;
}

void mix(const uint16_t* values, const float* weights, int64_t stride, const float* sums, int group,
         int64_t length, uint16_t* out) {
  Acc acc[kMaxGroup][kHeadDim / kLanes];
  for (int64_t s = 0; s < length; s += 2)
    for (int g = 0; g < group; ++g) {
      const uint32_t pair = pack(weights[g * stride + s], weights[g * stride + s + 1]);
      for (int b = 0; b < kHeadDim / kLanes; ++b)
        acc[g][b].dot(values + s * kHeadDim + b * kLanes * 2, pair);
    }
  float lanes[kLanes];
  for (int g = 0; g < group; ++g)
    for (int b = 0; b < kHeadDim / kLanes; ++b) {
      acc[g][b].store(lanes);
      for (int i = 0; i < kLanes; ++i)
        out[g * kHeadDim + b * kLanes + i] = to_bf16(lanes[i] / sums[g]);
    }
}

int64_t pick(const uint16_t* logits, int64_t vocab, float inv_temperature, float min_p, float u) {
  int64_t best = 0;
  float top = to_float(logits[0]);
#ifdef __AVX512BF16__
  __m512 m = _mm512_set1_ps(top);
  int64_t i0 = 0;
  for (; i0 + kLanes <= vocab; i0 += kLanes) {
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(logits + i0)));
    m = _mm512_max_ps(m, _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)));
  }
  top = _mm512_reduce_max_ps(m);
  for (; i0 < vocab; ++i0) top = to_float(logits[i0]) > top ? to_float(logits[i0]) : top;
#else
  for (int64_t i = 1; i < vocab; ++i) top = to_float(logits[i]) > top ? to_float(logits[i]) : top;
#endif
  const uint16_t wanted = to_bf16(top);
  while (best < vocab && logits[best] != wanted) ++best;
  if (inv_temperature <= 0 || best == vocab) return best == vocab ? 0 : best;
  const float floor = top + std::log(min_p) / inv_temperature;
  std::vector<std::pair<int64_t, float>> kept;
  float sum = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    const float x = to_float(logits[i]);
    if (x < floor) continue;
    const float w = std::exp((x - top) * inv_temperature);
    kept.emplace_back(i, w);
    sum += w;
  }
  float left = u * sum;
  for (const auto& [token, w] : kept)
    if ((left -= w) <= 0) return token;
  return best;
}

}  // namespace

extern "C" {

// qkv [rows, (heads + 2 * kv_heads) * 64] bfloat16 of the token at positions[row]; writes its key
// and value into the cache of slots[row], then out [rows, heads * 64] bfloat16.
void decode_attention(const uint16_t* qkv, const float* cos, const float* sin,
                      const int64_t* positions, uint16_t* keys, uint16_t* values, int64_t rows,
                      int64_t heads, int64_t kv_heads, int64_t capacity, uint16_t* out) {
  const int group = static_cast<int>(heads / kv_heads);
  const float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
#pragma omp parallel
  {
    std::vector<float> scores(group * capacity);
#pragma omp for schedule(dynamic, 8)
    for (int64_t item = 0; item < rows * kv_heads; ++item) {
      const int64_t row = item / kv_heads, head = item % kv_heads, pos = positions[row];
      const uint16_t* x = qkv + row * (heads + 2 * kv_heads) * kHeadDim;
      const float *c = cos + pos * kPairs, *sn = sin + pos * kPairs;
      uint16_t* k = keys + item * capacity * kHeadDim;
      uint16_t* v = values + item * capacity * kHeadDim;
      float rotated[kHeadDim], sums[kMaxGroup];
      uint32_t q[kMaxGroup][kPairs];
      rotate(x + (heads + head) * kHeadDim, c, sn, rotated);
      put_key(k, pos, rotated);
      put_value(v, pos, x + (heads + kv_heads + head) * kHeadDim);
      for (int g = 0; g < group; ++g) {
        rotate(x + (head * group + g) * kHeadDim, c, sn, rotated);
        for (int p = 0; p < kPairs; ++p) q[g][p] = pack(rotated[2 * p] * scale, rotated[2 * p + 1] * scale);
      }
      const int64_t length = pos + 1, padded = (length + kLanes - 1) / kLanes * kLanes;
      score(k, q, group, length, scores.data(), capacity);
      for (int g = 0; g < group; ++g) sums[g] = soften(scores.data() + g * capacity, length, padded);
      mix(v, scores.data(), capacity, sums, group, length, out + (row * heads + head * group) * kHeadDim);
    }
  }
}

// Writes a prompt's keys [length, kv_heads, 64] (rotated) and values, bfloat16, into one slot.
void write_prompt(const uint16_t* k, const uint16_t* v, int64_t length, int64_t slot,
                  int64_t kv_heads, int64_t capacity, uint16_t* keys, uint16_t* values) {
  for (int64_t pos = 0; pos < length; ++pos)
    for (int64_t head = 0; head < kv_heads; ++head) {
      const int64_t from = (pos * kv_heads + head) * kHeadDim;
      const int64_t to = (slot * kv_heads + head) * capacity * kHeadDim;
      float key[kHeadDim];
      for (int d = 0; d < kHeadDim; ++d) key[d] = to_float(k[from + d]);
      put_key(keys + to, pos, key);
      put_value(values + to, pos, v + from);
    }
}

// Next token of each row: the first highest logit where inv_temperature is 0, else a sample among
// the tokens with at least min_p times the top probability. uniform [rows] in [0, 1).
void sample(const uint16_t* logits, const float* inv_temperature, const float* uniform, float min_p,
            int64_t rows, int64_t vocab, int64_t* out) {
#pragma omp parallel for schedule(dynamic, 4)
  for (int64_t row = 0; row < rows; ++row)
    out[row] = pick(logits + row * vocab, vocab, inv_temperature[row], min_p, uniform[row]);
}

}  // extern "C"
