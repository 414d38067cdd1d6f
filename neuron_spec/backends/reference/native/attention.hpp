// Attention of a pass over the KV cache, a few queries at a time.
//
// The positions that a token sees are taken in segments of a fixed length, whose results are joined
// in order. So threads have something to share out in long texts, keys and values are read once for all
// heads and tokens of a row that share them, and what comes out for a token does not depend on the
// tokens beside it.

#pragma once

#include <algorithm>
#include <vector>

#include "interface.hpp"
#include "numbers.hpp"

namespace {

constexpr int64_t SEGMENT = 128;  // positions; a multiple of LANES
constexpr int64_t TOGETHER = 16;  // queries of a unit of work
constexpr float NEVER = -3e38f;   // the score of what is not seen

// What a thread has of its own while it attends.
template <class Number>
struct Desk {
    std::vector<Native> queries, dots;       // [TOGETHER][vectors of dim], [TOGETHER][16]
    std::vector<float> scores;               // [TOGETHER][SEGMENT]
    std::vector<float> shares;               // of segments
    std::vector<int64_t> places;
    std::vector<Number> copies;              // of keys, then of values: [SEGMENT][dim] each
};

// to[i] is the sum of v[i]'s lanes, of 16, in one order.
ALWAYS_INLINE void put_sums(const Native* v, float* to) {
#if defined(__AVX512F__)
    __m512 pairs[8], fours[4], halves[2];
    for (int i = 0; i < 8; i++) {
        __m512 a = __m512(v[2 * i]), b = __m512(v[2 * i + 1]);
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; i++) {
        __m512d a = __m512d(pairs[2 * i]), b = __m512d(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(__m512(_mm512_unpacklo_pd(a, b)), __m512(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++) {
        __m512 a = fours[2 * i], b = fours[2 * i + 1];
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    __m512 a = halves[0], b = halves[1];
    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)));
#elif defined(__AVX__)
    for (int i = 0; i < LANES; i += 4) {
        __m256 a = _mm256_hadd_ps(__m256(v[i]), __m256(v[i + 1]));
        __m256 b = _mm256_hadd_ps(__m256(v[i + 2]), __m256(v[i + 3]));
        __m256 fours = _mm256_hadd_ps(a, b);
        _mm_storeu_ps(to + i, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
    }
#else
    for (int i = 0; i < LANES; i++) to[i] = (v[i][0] + v[i][2]) + (v[i][1] + v[i][3]);
#endif
}

template <class C>
class Attention {
    typedef typename C::Number Number;

   public:
    // `mixed` [tokens, width] has the queries of a token first; `joined` [tokens, heads x dim] is the
    // output.
    Attention(const Stack& stack, const Pass& pass, const float* mixed, int64_t width, float* joined)
        : s(stack), p(pass), mixed(mixed), width(width), joined(joined), dim(stack.head_dim),
          vectors((dim + NATIVE - 1) / NATIVE), shared_by(stack.heads / stack.kv_heads),
          queries(shared_by * pass.count), groups((queries + TOGETHER - 1) / TOGETHER) {
        int64_t most = 0;
        for (int64_t row = 0; row < p.rows; row++)
            for (int64_t t = 0; t < p.count; t++) most = std::max(most, num_seen(row, t));
        segments = (most + SEGMENT - 1) / SEGMENT;
    }

    int64_t num_units() const { return p.rows * s.kv_heads * segments * groups; }
    int64_t num_joints() const { return p.rows * s.kv_heads * queries; }

    // Before any unit: room for the results.
    void begin() { partial.resize(num_joints() * segments * size()); }

    // One segment of a group of queries -> of each its largest score, sum of shares, and sum of values.
    // The groups of a segment follow each other.
    void unit(const LayerParts& layer, int64_t index, Desk<Number>& desk) {
        int64_t group = index % groups, segment = index / groups % segments;
        int64_t row = index / groups / segments / s.kv_heads, head = index / groups / segments % s.kv_heads;
        int64_t first = group * TOGETHER, last = std::min(first + TOGETHER, queries), begin = segment * SEGMENT;
        gather_queries(row, head, first, last, desk);
        Part part{row, head, first, first, last, segment, begin};
        int64_t until = std::min(begin + SEGMENT, num_seen(row, (last - 1) / shared_by));
        if (!p.sees || begin + SEGMENT <= p.origins[row]) {  // all see the same, as far as they see
            const Number *keys = entries(layer.keys, row, head), *values = entries(layer.values, row, head);
            attend(part, keys + begin * dim, values + begin * dim, until, desk);
            return;
        }
        for (int64_t t = first / shared_by; t <= (last - 1) / shared_by; t++) {  // node by node
            part.first = std::max(first, t * shared_by);
            part.last = std::min(last, (t + 1) * shared_by);
            until = std::min(begin + SEGMENT, num_seen(row, t));
            look(layer, part, t, until, desk);
            attend(part, desk.copies.data(), desk.copies.data() + SEGMENT * dim, until, desk);
        }
    }

    // A query's segments -> the output of its head and token.
    void join(int64_t index, Desk<Number>& desk) {
        const float* parts = result(index, 0);
        int64_t row = index / queries / s.kv_heads, head = index / queries % s.kv_heads, q = index % queries;
        int64_t t = row * p.count + q / shared_by;
        float* to = joined + (t * s.heads + head * shared_by + q % shared_by) * dim;
        float largest = NEVER, whole = 0;
        for (int64_t i = 0; i < segments; i++) largest = std::max(largest, parts[i * size()]);
        desk.shares.resize(segments);
        for (int64_t i = 0; i < segments; i++) {
            desk.shares[i] = exponential(splat(parts[i * size()] - largest))[0];
            whole += desk.shares[i] * parts[i * size() + 1];
        }
        for (int64_t v = 0; v < vectors; v++) {
            Native sum = {};
            for (int64_t i = 0; i < segments; i++)
                sum += desk.shares[i] * read<Native>(parts + i * size() + HEAD + v * NATIVE);
            sum /= whole;
            std::memcpy(to + v * NATIVE, &sum, std::min<int64_t>(NATIVE, dim - v * NATIVE) * sizeof(float));
        }
    }

   private:
    // Some queries of a row and a head of keys, and the segment that they look at.
    struct Part {
        int64_t row, head, group, first, last, segment, begin;  // `group`: the first query on the desk
    };

    const Stack& s;
    const Pass& p;
    const float* mixed;
    int64_t width;
    float* joined;
    int64_t dim, vectors, shared_by, queries, groups;  // `queries` of a row and a head of keys
    int64_t segments;
    // [rows, kv_heads, queries][segments]: the largest score and the sum of shares, then the sum of values.
    std::vector<float> partial;
    static constexpr int64_t HEAD = 2;

    int64_t size() const { return HEAD + vectors * NATIVE; }
    float* result(int64_t query, int64_t segment) { return partial.data() + (query * segments + segment) * size(); }

    // How many positions a token sees.
    int64_t num_seen(int64_t row, int64_t t) const {
        if (!p.sees) return p.starts[row] + t + 1;
        const uint8_t* sees = p.sees + (row * p.count + t) * p.width;
        return p.origins[row] + std::count(sees, sees + p.width, uint8_t(1));
    }

    const Number* entries(const void* cache, int64_t row, int64_t head) const {
        int64_t slot = p.first_slot + row;
        return static_cast<const Number*>(cache) + (slot * s.kv_heads + head) * s.cache_length * dim;
    }

    // Keys and values of a segment of the positions that a node sees, up to `until`.
    void look(const LayerParts& layer, const Part& part, int64_t t, int64_t until, Desk<Number>& desk) const {
        int64_t origin = p.origins[part.row];
        desk.places.clear();  // from the origin on
        const uint8_t* sees = p.sees + (part.row * p.count + t) * p.width;
        for (int64_t i = 0; i < p.width; i++)
            if (sees[i]) desk.places.push_back(origin + i);
        desk.copies.resize(2 * SEGMENT * dim);
        Number *keys = desk.copies.data(), *values = keys + SEGMENT * dim;
        const Number *all_keys = entries(layer.keys, part.row, part.head);
        const Number *all_values = entries(layer.values, part.row, part.head);
        for (int64_t i = part.begin; i < until; i++) {
            int64_t place = i < origin ? i : desk.places[i - origin];
            std::copy_n(all_keys + place * dim, dim, keys + (i - part.begin) * dim);
            std::copy_n(all_values + place * dim, dim, values + (i - part.begin) * dim);
        }
    }

    void gather_queries(int64_t row, int64_t head, int64_t first, int64_t last, Desk<Number>& desk) const {
        desk.queries.assign(TOGETHER * vectors, Native{});
        for (int64_t q = first; q < last; q++) {
            int64_t t = row * p.count + q / shared_by;
            const float* query = mixed + t * width + (head * shared_by + q % shared_by) * dim;
            std::memcpy(desk.queries.data() + (q - first) * vectors, query, dim * sizeof(float));
        }
    }

    // Keys and values of a segment from its begin on, up to position `until`.
    void attend(const Part& part, const Number* keys, const Number* values, int64_t until, Desk<Number>& desk) {
        if (dim == 64) attend_with<64 / NATIVE>(part, keys, values, until, desk);
        else if (dim == 128) attend_with<128 / NATIVE>(part, keys, values, until, desk);
        else attend_with<0>(part, keys, values, until, desk);
    }

    template <int V>
    void attend_with(const Part& part, const Number* keys, const Number* values, int64_t until, Desk<Number>& desk) {
        int64_t count = std::max<int64_t>(0, until - part.begin), num_queries = part.last - part.first;
        const Native* wanted = desk.queries.data() + (part.first - part.group) * vectors;
        desk.dots.resize(TOGETHER * LANES);
        desk.scores.resize(TOGETHER * SEGMENT);
        for (int64_t begin = 0; begin < count; begin += LANES) {
            int64_t end = std::min(begin + LANES, count);
            for (int64_t i = begin; i < end; i++)
                multiply<V>(keys + i * dim, wanted, num_queries, desk.dots.data() + (i - begin));
            for (int64_t q = 0; q < num_queries; q++)
                put_sums(desk.dots.data() + q * LANES, desk.scores.data() + q * SEGMENT + begin);
        }
        float* results[TOGETHER];
        int64_t number = (part.row * s.kv_heads + part.head) * queries + part.first;
        for (int64_t q = 0; q < num_queries; q++) {
            results[q] = result(number + q, part.segment);
            int64_t seen = std::min(until, num_seen(part.row, (part.first + q) / shared_by)) - part.begin;
            weigh(seen, count, desk.scores.data() + q * SEGMENT, results[q]);
        }
        for (int64_t q = 0; q < num_queries; q += MOST_SUMS) {
            const float* shares = desk.scores.data() + q * SEGMENT;
            add<MOST_SUMS, V>(std::min(MOST_SUMS, num_queries - q), values, count, shares, results + q);
        }
    }

    // Vector `v` of an entry.
    template <int V>
    ALWAYS_INLINE Native part_of(const Number* entry, int64_t v) const {
        if (V || (v + 1) * NATIVE <= dim) return C::native(entry + v * NATIVE);
        float padded[NATIVE] = {};
        for (int64_t d = v * NATIVE; d < dim; d++) padded[d - v * NATIVE] = C::get(entry + d);
        return read<Native>(padded);
    }

    // A key times queries: dots[q][0], whose lanes are still to be added up.
    template <int V>
    ALWAYS_INLINE void multiply(const Number* key, const Native* wanted, int64_t num_queries, Native* dots) const {
        if constexpr (V > 0) {
            Native parts[V];
            for (int v = 0; v < V; v++) parts[v] = part_of<V>(key, v);
            for (int64_t q = 0; q < num_queries; q++) {
                Native sum = {};
                for (int v = 0; v < V; v++) sum += parts[v] * wanted[q * V + v];
                dots[q * LANES] = sum;
            }
        } else {
            for (int64_t q = 0; q < num_queries; q++) {
                Native sum = {};
                for (int64_t v = 0; v < vectors; v++) sum += part_of<V>(key, v) * wanted[q * vectors + v];
                dots[q * LANES] = sum;
            }
        }
    }

    // Scores of `count` positions, of which the first `seen` are seen -> shares; `head`: the largest score
    // and the sum of shares.
    void weigh(int64_t seen, int64_t count, float* scores, float* head) const {
        const float scale = 1.0f / __builtin_sqrtf(float(dim));
        int64_t end = (count + LANES - 1) / LANES * LANES;
        auto fill_unseen = [&](float value) { std::fill(scores + std::max<int64_t>(0, seen), scores + end, value); };
        for (int64_t i = 0; i < end; i += NATIVE) write(scores + i, read<Native>(scores + i) * scale);
        fill_unseen(NEVER);
        Native largest = Native{} + NEVER, total[PIECES] = {};
        for (int64_t i = 0; i < end; i += NATIVE) {
            auto score = read<Native>(scores + i);
            largest = score > largest ? score : largest;
        }
        float most = largest[0];
        for (int i = 1; i < NATIVE; i++) most = std::max(most, largest[i]);
        for (int64_t i = 0; i < end; i += NATIVE) write(scores + i, exponential(read<Native>(scores + i) - most));
        fill_unseen(0);
        for (int64_t i = 0; i < end; i += LANES)
            for (int p = 0; p < PIECES; p++) total[p] += read<Native>(scores + i + p * NATIVE);
        head[0] = most;
        head[1] = sum_of(cast<Vec>(total));
    }

#ifdef __AVX512F__
    static constexpr int64_t MOST_SUMS = 5;  // their vectors fit the registers
#else
    static constexpr int64_t MOST_SUMS = 2;
#endif

    // Shares times values.
    template <int Q, int V>
    void add(int64_t num_queries, const Number* values, int64_t count, const float* shares, float* const* results) const {
        if constexpr (Q > 1) {
            if (num_queries < Q) return add<Q - 1, V>(num_queries, values, count, shares, results);
        }
        if constexpr (V > 0) {
            for (int first = 0; first < V; first += 4) {
                Native sums[Q][4] = {};
                for (int64_t i = 0; i < count; i++) {
                    Native parts[4];
                    for (int v = 0; v < 4; v++) parts[v] = part_of<V>(values + i * dim, first + v);
                    for (int q = 0; q < Q; q++)
                        for (int v = 0; v < 4; v++) sums[q][v] += shares[q * SEGMENT + i] * parts[v];
                }
                for (int q = 0; q < Q; q++) std::memcpy(results[q] + HEAD + first * NATIVE, sums[q], sizeof sums[q]);
            }
        } else {
            for (int64_t v = 0; v < vectors; v++) {
                Native sums[Q] = {};
                for (int64_t i = 0; i < count; i++) {
                    Native own = part_of<V>(values + i * dim, v);
                    for (int q = 0; q < Q; q++) sums[q] += shares[q * SEGMENT + i] * own;
                }
                for (int q = 0; q < Q; q++) std::memcpy(results[q] + HEAD + v * NATIVE, &sums[q], sizeof sums[q]);
            }
        }
    }
};

}  // namespace
