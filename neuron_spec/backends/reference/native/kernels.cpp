// Decoding on a CPU: products with few rows, and whole decoder layers in one parallel region.
//
// What comes out for a row depends on that row alone: sums have an order of their own, which neither
// the number of rows nor the number of threads changes. Verifying k + 1 positions in one pass gives
// the same bits as decoding them one at a time.
//
// Weights are packed in panels of 16 outputs, which are read once from front to back. Activations are
// float32 whatever the weights are. Vectors are those of GCC and Clang, wide or narrow as the machine
// has them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

namespace {

constexpr int LANES = 16;
constexpr int SUMS = 4;   // of every output: input i goes into sum i % 4
constexpr int BLOCK = 6;  // rows that share a reading of the weights
constexpr int64_t AHEAD = 4096;  // bytes: the hardware's own prefetching stops where a page ends

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float Vec8 __attribute__((vector_size(32)));
typedef float Vec4 __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

template <class To, class From>
inline To cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class To>
inline To read(const void* from) {
    To to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

inline void write(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }
inline Vec splat(float x) { return Vec{} + x; }

inline float sum_of(Vec v) {
    Vec8 halves[2];
    std::memcpy(halves, &v, sizeof v);
    Vec4 quarters[2];
    Vec8 eight = halves[0] + halves[1];
    std::memcpy(quarters, &eight, sizeof eight);
    Vec4 four = quarters[0] + quarters[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Cephes' polynomial; relative error below 2e-7.
inline Vec exponential(Vec x) {
    x = x > 88.0f ? splat(88.0f) : x;
    x = x < -87.0f ? splat(-87.0f) : x;
    const float round = 12582912.0f;  // 1.5 * 2^23
    Vec n = (x * 1.44269504088896341f + round) - round;
    Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * cast<Vec>((__builtin_convertvector(n, Ints) + 127) << 23);
}

// ---- Stored numbers ------------------------------------------------------------------------------

// Weights of 16 outputs for inputs i and on; `SUMS` of them at once, or one.
struct Float32Weights {
    const float* data;
    static int64_t panel_words(int64_t in) { return in * LANES; }
    Vec one(const float* panel, int64_t i) const { return read<Vec>(panel + i * LANES); }
    void some(const float* panel, int64_t i, Vec* out) const {
        for (int s = 0; s < SUMS; s++) out[s] = one(panel, i + s);
    }
    static constexpr bool IS_FLOAT = true, IS_SCALED = false;
};

// A word has inputs i (low half) and i + 1 of one output: a shift or a mask makes a float32.
struct BFloat16Weights {
    const uint32_t* data;
    static int64_t panel_words(int64_t in) { return (in + 1) / 2 * LANES; }
    Vec one(const uint32_t* panel, int64_t i) const {
        Words words = read<Words>(panel + i / 2 * LANES);
        return cast<Vec>(i % 2 ? words & 0xffff0000u : words << 16);
    }
    void some(const uint32_t* panel, int64_t i, Vec* out) const {
        for (int s = 0; s < SUMS; s += 2) {
            Words words = read<Words>(panel + (i + s) / 2 * LANES);
            out[s] = cast<Vec>(words << 16);
            out[s + 1] = cast<Vec>(words & 0xffff0000u);
        }
    }
    static constexpr bool IS_FLOAT = false, IS_SCALED = false;
};

// A word has inputs i … i + 3 of one output, whose scale comes after the sum.
struct Int8Weights {
    const uint32_t* data;
    const float* scales;
    static int64_t panel_words(int64_t in) { return (in + 3) / 4 * LANES; }
    static Vec byte(Words words, int number) {
        return __builtin_convertvector(cast<Ints>(words << (24 - 8 * number)) >> 24, Vec);
    }
    Vec one(const uint32_t* panel, int64_t i) const {
        return byte(read<Words>(panel + i / 4 * LANES), int(i % 4));
    }
    void some(const uint32_t* panel, int64_t i, Vec* out) const {
        Words words = read<Words>(panel + i / 4 * LANES);
        for (int s = 0; s < SUMS; s++) out[s] = byte(words, s);
    }
    static constexpr bool IS_FLOAT = false, IS_SCALED = true;
};

// An entry of the KV cache.
struct Float32Cache {
    typedef float Number;
    static Vec vec(const float* from) { return read<Vec>(from); }
    static float get(const float* from) { return *from; }
    static void put(float* to, float value) { *to = value; }
};

struct BFloat16Cache {
    typedef uint16_t Number;
    static Vec vec(const uint16_t* from) {
        typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
        return cast<Vec>(__builtin_convertvector(read<Halves>(from), Words) << 16);
    }
    static float get(const uint16_t* from) { return cast<float>(uint32_t(*from) << 16); }
    static void put(uint16_t* to, float value) {  // to nearest, ties to even
        uint32_t bits = cast<uint32_t>(value);
        bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        *to = uint16_t((is_nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
    }
};

// ---- Products ------------------------------------------------------------------------------------

// Inputs i … i + 3 of a panel, and a hint for what comes after.
template <class W, class Word>
inline void stream(const W& w, const Word* panel, int64_t i, Vec* out) {
    const char* here = reinterpret_cast<const char*>(panel + W::panel_words(i));
    for (int64_t line = 0; line < int64_t(W::panel_words(SUMS) * sizeof(Word)); line += 64)
        __builtin_prefetch(here + AHEAD + line);
    w.some(panel, i, out);
}

template <int ROWS, class W, class Word>
inline void panel_product(const W& w, const Word* panel, const float* x, int64_t in, Vec* out) {
    Vec sums[ROWS][SUMS] = {};
    int64_t i = 0;
    for (; i + SUMS <= in; i += SUMS) {
        Vec four[SUMS];
        stream(w, panel, i, four);
        for (int s = 0; s < SUMS; s++)
            for (int r = 0; r < ROWS; r++) sums[r][s] += four[s] * x[r * in + i + s];
    }
    for (; i < in; i++) {
        Vec one = w.one(panel, i);
        for (int r = 0; r < ROWS; r++) sums[r][0] += one * x[r * in + i];
    }
    for (int r = 0; r < ROWS; r++) out[r] = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
}

template <class W, class Word>
inline void few_rows(int rows, const W& w, const Word* panel, const float* x, int64_t in, Vec* out) {
    switch (rows) {
        case 1: return panel_product<1>(w, panel, x, in, out);
        case 2: return panel_product<2>(w, panel, x, in, out);
        case 3: return panel_product<3>(w, panel, x, in, out);
        case 4: return panel_product<4>(w, panel, x, in, out);
        case 5: return panel_product<5>(w, panel, x, in, out);
        default: return panel_product<BLOCK>(w, panel, x, in, out);
    }
}

// One panel of all rows, x [rows, in] -> out [rows]; many rows read weights that are floats by then.
template <class W>
void panel_of(const W& w, int64_t number, const float* x, int64_t rows, int64_t in,
              std::vector<float>& unpacked, Vec* out) {
    const auto* panel = w.data + number * W::panel_words(in);
    if (rows > 2 * BLOCK && !W::IS_FLOAT) {
        unpacked.resize(in * LANES);
        int64_t i = 0;
        for (; i + SUMS <= in; i += SUMS) {
            Vec four[SUMS];
            stream(w, panel, i, four);
            std::memcpy(unpacked.data() + i * LANES, four, sizeof four);
        }
        for (; i < in; i++) write(unpacked.data() + i * LANES, w.one(panel, i));
        Float32Weights floats{unpacked.data()};
        for (int64_t r = 0; r < rows; r += BLOCK)
            few_rows(int(std::min<int64_t>(BLOCK, rows - r)), floats, floats.data, x + r * in, in, out + r);
    } else {
        for (int64_t r = 0; r < rows; r += BLOCK)
            few_rows(int(std::min<int64_t>(BLOCK, rows - r)), w, panel, x + r * in, in, out + r);
    }
    if constexpr (W::IS_SCALED) {
        Vec scales = read<Vec>(w.scales + number * LANES);
        for (int64_t r = 0; r < rows; r++) out[r] *= scales;
    }
}

struct Share {
    int64_t begin, end;
    Share(int64_t count, int thread, int threads)
        : begin(count * thread / threads), end(count * (thread + 1) / threads) {}
};

inline int64_t num_panels(int64_t out) { return (out + LANES - 1) / LANES; }

// y [rows, out] = or += x [rows, in] times the weights, plus bias where there is one.
template <class W>
void product(const W& w, const float* bias, const float* x, int64_t rows, int64_t in, int64_t out,
             float* y, bool adds, int thread, int threads) {
    std::vector<Vec> sums(rows);
    std::vector<float> unpacked;
    Share mine(num_panels(out), thread, threads);
    for (int64_t p = mine.begin; p < mine.end; p++) {
        panel_of(w, p, x, rows, in, unpacked, sums.data());
        int64_t first = p * LANES, width = std::min<int64_t>(LANES, out - first);
        for (int64_t r = 0; r < rows; r++) {
            float* to = y + r * out + first;
            for (int64_t j = 0; j < width; j++) {
                float value = bias ? sums[r][j] + bias[first + j] : sums[r][j];
                to[j] = adds ? to[j] + value : value;
            }
        }
    }
}

// act [rows, ffn] = silu(gate) * up; panels of gate and up follow each other in turn.
template <class W>
void gated(const W& w, const float* x, int64_t rows, int64_t in, int64_t ffn, float* act, int thread,
           int threads) {
    std::vector<Vec> gate(rows), up(rows);
    std::vector<float> unpacked;
    Share mine(num_panels(ffn), thread, threads);
    for (int64_t p = mine.begin; p < mine.end; p++) {
        panel_of(w, 2 * p, x, rows, in, unpacked, gate.data());
        panel_of(w, 2 * p + 1, x, rows, in, unpacked, up.data());
        int64_t first = p * LANES, width = std::min<int64_t>(LANES, ffn - first);
        for (int64_t r = 0; r < rows; r++) {
            Vec value = gate[r] / (1.0f + exponential(-gate[r])) * up[r];
            for (int64_t j = 0; j < width; j++) act[r * ffn + first + j] = value[j];
        }
    }
}

// RMS norm of n numbers; without weights a copy.
void norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    if (!weight) {
        std::memcpy(out, x, n * sizeof(float));
        return;
    }
    Vec squares = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vec v = read<Vec>(x + i);
        squares += v * v;
    }
    float total = sum_of(squares);
    for (; i < n; i++) total += x[i] * x[i];
    float factor = 1.0f / __builtin_sqrtf(total / float(n) + eps);
    for (i = 0; i < n; i++) out[i] = x[i] * factor * weight[i];
}

}  // namespace

// ---- The interface, as `library.py` declares it ---------------------------------------------------

extern "C" {

enum Numbers : int64_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

struct Weights {
    const void* data;
    const float* scales;  // of int8
    const float* bias;    // or null
};

struct LayerParts {
    Weights qkv, output, gate_up, down;
    const float *input_norm, *hidden_norm, *query_norm, *key_norm, *mlp_norm;  // or null
    void *keys, *values;  // [slots, kv_heads, cache_length, head_dim]
};

struct Stack {
    const LayerParts* layers;
    int64_t num_layers, weights, cache;  // Numbers
    int64_t hidden, ffn, heads, kv_heads, head_dim, cache_length;
    int64_t is_eagle3;  // x is an embedding beside a feature, see `Eagle3Layer`
    const float *cos, *sin;  // [cache_length, head_dim]
    double eps;
    int64_t threads;
};

struct Pass {
    const float* x;            // [rows, count, hidden], twice as wide in EAGLE-3
    float* out;                // [rows, count, hidden]
    float* taps;               // [num_taps, rows, count, hidden]
    const int64_t* tap_layers;  // whose inputs are tapped, ascending
    int64_t num_taps, rows, count, first_slot;
    const int64_t* starts;     // [rows]: where a row's first entry is written
    const int64_t* positions;  // [rows, count], for the rotation; null: where it is written
    const int64_t* origins;    // [rows], of a tree: all its nodes see what lies before
    const uint8_t* sees;       // [rows, count, width]: whether entry origin + i is seen; null: a chain
    int64_t width;
};
}

namespace {

template <class W>
W weights_of(const Weights& w);
template <>
Float32Weights weights_of(const Weights& w) {
    return {static_cast<const float*>(w.data)};
}
template <>
BFloat16Weights weights_of(const Weights& w) {
    return {static_cast<const uint32_t*>(w.data)};
}
template <>
Int8Weights weights_of(const Weights& w) {
    return {static_cast<const uint32_t*>(w.data), w.scales};
}

// What a thread of a pass has of its own.
struct Scratch {
    std::vector<float> normed, scores, query, shares;
    std::vector<int64_t> places;
};

template <class W, class C>
class Run {
    typedef typename C::Number Number;

   public:
    Run(const Stack& stack, const Pass& pass)
        : s(stack), p(pass), tokens(pass.rows * pass.count), dim(stack.head_dim),
          mixed_width((stack.heads + 2 * stack.kv_heads) * dim),
          mixed(tokens * mixed_width), joined(tokens * stack.heads * dim), act(tokens * stack.ffn) {}

    void thread(int me, int threads) {
        Scratch own;
        int64_t tap = 0;
        for (int64_t number = 0; number < s.num_layers; number++) {
            const LayerParts& layer = s.layers[number];
            const float* x = number == 0 ? p.x : p.out;
            if (tap < p.num_taps && p.tap_layers[tap] == number) {
                if (me == 0) std::memcpy(p.taps + tap * tokens * s.hidden, x, tokens * s.hidden * sizeof(float));
                tap++;
            }
            int64_t in = norm_input(layer, x, own);
            product(weights_of<W>(layer.qkv), layer.qkv.bias, own.normed.data(), tokens, in, mixed_width,
                    mixed.data(), false, me, threads);
            if (number == 0) residual(x, me, threads);
#pragma omp barrier
            Share rotations(tokens * (s.heads + 2 * s.kv_heads), me, threads);
            for (int64_t i = rotations.begin; i < rotations.end; i++) settle(layer, i);
#pragma omp barrier
            Share queries(tokens * s.heads, me, threads);
            for (int64_t i = queries.begin; i < queries.end; i++) attend(layer, i, own);
#pragma omp barrier
            product(weights_of<W>(layer.output), layer.output.bias, joined.data(), tokens, s.heads * dim,
                    s.hidden, p.out, true, me, threads);
#pragma omp barrier
            own.normed.resize(tokens * s.hidden);
            for (int64_t t = 0; t < tokens; t++)
                norm(p.out + t * s.hidden, layer.mlp_norm, s.hidden, float(s.eps), own.normed.data() + t * s.hidden);
            gated(weights_of<W>(layer.gate_up), own.normed.data(), tokens, s.hidden, s.ffn, act.data(), me, threads);
#pragma omp barrier
            product(weights_of<W>(layer.down), layer.down.bias, act.data(), tokens, s.ffn, s.hidden, p.out, true,
                    me, threads);
#pragma omp barrier
        }
    }

   private:
    const Stack& s;
    const Pass& p;
    int64_t tokens, dim, mixed_width;
    std::vector<float> mixed, joined, act;  // of queries, keys, values; of heads; of the MLP

    // The attention's input of all tokens; returns its width.
    int64_t norm_input(const LayerParts& layer, const float* x, Scratch& own) {
        int64_t hidden = s.hidden, in = s.is_eagle3 ? 2 * hidden : hidden;
        own.normed.resize(tokens * in);
        for (int64_t t = 0; t < tokens; t++) {
            norm(x + t * in, layer.input_norm, hidden, float(s.eps), own.normed.data() + t * in);
            if (s.is_eagle3)
                norm(x + t * in + hidden, layer.hidden_norm, hidden, float(s.eps), own.normed.data() + t * in + hidden);
        }
        return in;
    }

    // What the first layer adds to: its input, in EAGLE-3 the feature.
    void residual(const float* x, int me, int threads) {
        int64_t in = s.is_eagle3 ? 2 * s.hidden : s.hidden;
        Share mine(tokens, me, threads);
        for (int64_t t = mine.begin; t < mine.end; t++)
            std::memcpy(p.out + t * s.hidden, x + t * in + (in - s.hidden), s.hidden * sizeof(float));
    }

    Number* entry(void* cache, int64_t row, int64_t head, int64_t place) const {
        int64_t slot = p.first_slot + row;
        return static_cast<Number*>(cache) + ((slot * s.kv_heads + head) * s.cache_length + place) * dim;
    }

    // Norm and rotate a head of queries or keys; keys and values go into the cache.
    void settle(const LayerParts& layer, int64_t index) {
        int64_t t = index / (s.heads + 2 * s.kv_heads), head = index % (s.heads + 2 * s.kv_heads);
        int64_t row = t / p.count, place = p.starts[row] + t % p.count;
        float* x = mixed.data() + t * mixed_width + head * dim;
        bool is_query = head < s.heads, is_key = !is_query && head < s.heads + s.kv_heads;
        if (is_query || is_key) {
            const float* weight = is_query ? layer.query_norm : layer.key_norm;
            if (weight) norm(x, weight, dim, float(s.eps), x);
            rotate(x, p.positions ? p.positions[t] : place);
        }
        if (is_query) return;
        head -= is_key ? s.heads : s.heads + s.kv_heads;
        Number* to = entry(is_key ? layer.keys : layer.values, row, head, place);
        for (int64_t d = 0; d < dim; d++) C::put(to + d, x[d]);
    }

    void rotate(float* x, int64_t position) const {
        const float *cos = s.cos + position * dim, *sin = s.sin + position * dim;
        for (int64_t d = 0, half = dim / 2; d < half; d++) {
            float low = x[d], high = x[d + half];
            x[d] = low * cos[d] - high * sin[d];
            x[d + half] = high * cos[d + half] + low * sin[d + half];
        }
    }

    // Places that a token sees, in the order of positions.
    int64_t look(int64_t row, int64_t column, Scratch& own) const {
        if (!p.sees) return p.starts[row] + column + 1;
        int64_t origin = p.origins[row];
        own.places.resize(origin + p.width);
        for (int64_t i = 0; i < origin; i++) own.places[i] = i;
        int64_t count = origin;
        const uint8_t* sees = p.sees + (row * p.count + column) * p.width;
        for (int64_t i = 0; i < p.width; i++)
            if (sees[i]) own.places[count++] = origin + i;
        return count;
    }

    // One head of one token.
    void attend(const LayerParts& layer, int64_t index, Scratch& own) {
        int64_t t = index / s.heads, head = index % s.heads, row = t / p.count;
        int64_t group = s.heads / s.kv_heads, count = look(row, t % p.count, own);
        const float* query = mixed.data() + t * mixed_width + head * dim;
        const Number *keys = entry(layer.keys, row, head / group, 0), *values = entry(layer.values, row, head / group, 0);
        auto place = [&](int64_t i) { return p.sees ? own.places[i] : i; };
        own.scores.resize(count + LANES);
        float* scores = own.scores.data();
        const float scale = 1.0f / __builtin_sqrtf(float(dim));
        float most = -3e38f;
        for (int64_t i = 0; i < count; i++) {
            scores[i] = dot(query, keys + place(i) * dim) * scale;
            most = std::max(most, scores[i]);
        }
        for (int64_t i = count; i < count + LANES; i++) scores[i] = -3e38f;
        Vec sums = {};
        for (int64_t i = 0; i < count; i += LANES) {
            Vec share = exponential(read<Vec>(scores + i) - most);
            for (int64_t j = count - i; j < LANES; j++) share[j] = 0.0f;
            write(scores + i, share);
            sums += share;
        }
        const float whole = sum_of(sums);
        float* out = joined.data() + t * s.heads * dim + head * dim;
        int64_t d = 0;
        for (; d + LANES <= dim; d += LANES) {
            Vec parts[SUMS] = {};
            int64_t i = 0;
            for (; i + SUMS <= count; i += SUMS)
                for (int j = 0; j < SUMS; j++) parts[j] += C::vec(values + place(i + j) * dim + d) * scores[i + j];
            for (; i < count; i++) parts[0] += C::vec(values + place(i) * dim + d) * scores[i];
            write(out + d, ((parts[0] + parts[1]) + (parts[2] + parts[3])) / whole);
        }
        for (; d < dim; d++) {
            float part = 0.0f;
            for (int64_t i = 0; i < count; i++) part += C::get(values + place(i) * dim + d) * scores[i];
            out[d] = part / whole;
        }
    }

    float dot(const float* query, const Number* key) const {
        Vec sum = {};
        int64_t d = 0;
        for (; d + LANES <= dim; d += LANES) sum += read<Vec>(query + d) * C::vec(key + d);
        float result = sum_of(sum);
        for (; d < dim; d++) result += query[d] * C::get(key + d);
        return result;
    }
};

template <class W, class C>
void run(const Stack& stack, const Pass& pass) {
    Run<W, C> state(stack, pass);
#pragma omp parallel num_threads(int(stack.threads))
    state.thread(omp_get_thread_num(), omp_get_num_threads());
}

template <class W>
void run(const Stack& stack, const Pass& pass) {
    if (stack.cache == BFLOAT16) run<W, BFloat16Cache>(stack, pass);
    else run<W, Float32Cache>(stack, pass);
}

template <class W>
void multiply(const Weights& weights, const float* x, int64_t rows, int64_t in, int64_t out, float* y, int64_t threads) {
    W w = weights_of<W>(weights);
#pragma omp parallel num_threads(int(threads))
    product(w, weights.bias, x, rows, in, out, y, false, omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace

extern "C" {

// x [rows, in] -> y [rows, out].
void neuron_spec_linear(const Weights* weights, int64_t numbers, const float* x, int64_t rows, int64_t in,
                        int64_t out, float* y, int64_t threads) {
    if (numbers == FLOAT32) multiply<Float32Weights>(*weights, x, rows, in, out, y, threads);
    else if (numbers == BFLOAT16) multiply<BFloat16Weights>(*weights, x, rows, in, out, y, threads);
    else multiply<Int8Weights>(*weights, x, rows, in, out, y, threads);
}

// The layers, keys and values into the caches.
void neuron_spec_layers(const Stack* stack, const Pass* pass) {
    if (stack->weights == FLOAT32) run<Float32Weights>(*stack, *pass);
    else if (stack->weights == BFLOAT16) run<BFloat16Weights>(*stack, *pass);
    else run<Int8Weights>(*stack, *pass);
}
}
