// Attention of a pass over the KV cache.
//
// The positions that a token sees are taken in segments of a fixed length, in which all heads and
// tokens of a row that share keys are lanes of vectors; then the segments' results are joined in
// order. So threads have something to share out in long texts, keys and values are read once, and what
// comes out for a token does not depend on the tokens beside it.

#pragma once

#include "interface.hpp"
#include "products.hpp"

namespace {

constexpr int64_t SEGMENT = 128;  // positions; a multiple of AT_ONCE
constexpr float NEVER = -3e38f;   // the score of what is not seen

// What a thread has of its own while it attends.
struct Tile {
    std::vector<float> queries, copies;        // [dim][16], [2][SEGMENT][dim]
    const float *keys, *values;                // [SEGMENT][dim] each, in the cache or in the copies
    std::vector<Vec> scores, sums;             // [SEGMENT], [dim]
    std::vector<int64_t> places;
};

template <class C>
class Attention {
    typedef typename C::Number Number;

   public:
    // `mixed` [tokens, width] has the queries of a token first; `joined` [tokens, heads x dim] is the
    // output.
    Attention(const Stack& stack, const Pass& pass, const float* mixed, int64_t width, float* joined)
        : s(stack), p(pass), mixed(mixed), width(width), joined(joined), dim(stack.head_dim),
          shared_by(stack.heads / stack.kv_heads), queries(shared_by * pass.count),
          groups((queries + LANES - 1) / LANES) {
        for (int64_t row = 0; row < p.rows; row++)
            for (int64_t t = 0; t < p.count; t++) most = std::max(most, num_seen(row, t));
        segments = (most + SEGMENT - 1) / SEGMENT;
        partial.resize(num_groups() * segments * (2 + dim));
    }

    int64_t num_groups() const { return p.rows * s.kv_heads * groups; }
    int64_t num_segments() const { return num_groups() * segments; }

    // One segment of a group of 16 queries -> its largest scores, sums of shares, and sums of values.
    void segment(const LayerParts& layer, int64_t index, Tile& tile) {
        int64_t group = index / segments, begin = index % segments * SEGMENT;
        Vec* result = partial.data() + index * (2 + dim);
        result[0] = splat(NEVER);
        std::fill(result + 1, result + 2 + dim, Vec{});
        int64_t row = group / (groups * s.kv_heads), head = group / groups % s.kv_heads;
        int64_t first = group % groups * LANES, last = std::min(first + LANES, queries) - 1;
        gather_queries(row, head, first, last, tile);
        Vec seen = {};
        int64_t end = begin;
        for (int64_t q = first; q <= last; q++) {
            int64_t count = num_seen(row, q / shared_by);
            seen[q - first] = float(count);
            end = std::max(end, std::min(begin + SEGMENT, count));
        }
        if (end == begin) return;
        if (!p.sees || end <= p.origins[row]) {  // all see the same places, as far as they see
            fill(layer, row, head, begin, end, nullptr, tile);
            attend(begin, end, seen, tile, result);
            return;
        }
        for (int64_t t = first / shared_by; t <= last / shared_by; t++) {  // node by node
            Vec own = {};
            for (int64_t q = first; q <= last; q++) own[q - first] = q / shared_by == t ? seen[q - first] : 0.0f;
            int64_t until = std::min(begin + SEGMENT, num_seen(row, t));
            if (until <= begin) continue;
            look(row, t, tile);
            fill(layer, row, head, begin, until, tile.places.data(), tile);
            attend(begin, until, own, tile, result);
        }
    }

    // A group's segments -> the output of its heads and tokens.
    void join(int64_t group) {
        const Vec* parts = partial.data() + group * segments * (2 + dim);
        int64_t row = group / (groups * s.kv_heads), head = group / groups % s.kv_heads;
        int64_t first = group % groups * LANES, end = std::min(first + LANES, queries);
        Vec largest = splat(NEVER), whole = {};
        for (int64_t i = 0; i < segments; i++) {
            Vec own = parts[i * (2 + dim)];
            largest = own > largest ? own : largest;
        }
        std::vector<Vec> shares(segments);
        for (int64_t i = 0; i < segments; i++) {
            shares[i] = exponential(parts[i * (2 + dim)] - largest);
            whole += shares[i] * parts[i * (2 + dim) + 1];
        }
        for (int64_t d = 0; d < dim; d++) {
            Vec sum = {};
            for (int64_t i = 0; i < segments; i++) sum += shares[i] * parts[i * (2 + dim) + 2 + d];
            sum /= whole;
            for (int64_t q = first; q < end; q++) {
                int64_t t = row * p.count + q / shared_by;
                joined[(t * s.heads + head * shared_by + q % shared_by) * dim + d] = sum[q - first];
            }
        }
    }

   private:
    const Stack& s;
    const Pass& p;
    const float* mixed;
    int64_t width;
    float* joined;
    int64_t dim, shared_by, queries, groups;  // of a row and a head of keys
    int64_t most = 0, segments;
    std::vector<Vec> partial;

    // How many positions a token sees.
    int64_t num_seen(int64_t row, int64_t t) const {
        if (!p.sees) return p.starts[row] + t + 1;
        const uint8_t* sees = p.sees + (row * p.count + t) * p.width;
        return p.origins[row] + std::count(sees, sees + p.width, uint8_t(1));
    }

    // Where they are, in the order of positions.
    void look(int64_t row, int64_t t, Tile& tile) const {
        int64_t origin = p.origins[row];
        tile.places.resize(origin);
        for (int64_t i = 0; i < origin; i++) tile.places[i] = i;
        const uint8_t* sees = p.sees + (row * p.count + t) * p.width;
        for (int64_t i = 0; i < p.width; i++)
            if (sees[i]) tile.places.push_back(origin + i);
    }

    void gather_queries(int64_t row, int64_t head, int64_t first, int64_t last, Tile& tile) const {
        tile.queries.assign(dim * LANES, 0.0f);
        for (int64_t q = first; q <= last; q++) {
            int64_t t = row * p.count + q / shared_by;
            const float* query = mixed + t * width + (head * shared_by + q % shared_by) * dim;
            for (int64_t d = 0; d < dim; d++) tile.queries[d * LANES + q - first] = query[d];
        }
    }

    // Keys and values of positions begin … end as floats, zeros up to a multiple of AT_ONCE; a copy where
    // the cache does not have them so.
    void fill(const LayerParts& layer, int64_t row, int64_t head, int64_t begin, int64_t end,
              const int64_t* places, Tile& tile) const {
        int64_t slot = p.first_slot + row, base = (slot * s.kv_heads + head) * s.cache_length;
        if constexpr (C::IS_FLOAT) {
            if (!places && (end - begin) % AT_ONCE == 0) {
                tile.keys = static_cast<const float*>(layer.keys) + (base + begin) * dim;
                tile.values = static_cast<const float*>(layer.values) + (base + begin) * dim;
                return;
            }
        }
        tile.copies.resize(2 * SEGMENT * dim);
        float *keys = tile.copies.data(), *values = keys + SEGMENT * dim;
        tile.keys = keys;
        tile.values = values;
        for (int64_t i = begin; i < end; i++) {
            int64_t from = (base + (places ? places[i] : i)) * dim, to = (i - begin) * dim;
            copy(static_cast<const Number*>(layer.keys) + from, keys + to);
            copy(static_cast<const Number*>(layer.values) + from, values + to);
        }
        int64_t padded = (end - begin + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
        std::fill(values + (end - begin) * dim, values + padded * dim, 0.0f);
    }

    void copy(const Number* from, float* to) const {
        int64_t d = 0;
        for (; d + LANES <= dim; d += LANES) write(to + d, C::vec(from + d));
        for (; d < dim; d++) to[d] = C::get(from + d);
    }

    // Lanes that see fewer positions than `begin` keep what `result` has.
    void attend(int64_t begin, int64_t end, Vec seen, Tile& tile, Vec* result) const {
        int64_t count = end - begin, padded = (count + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
        const float scale = 1.0f / __builtin_sqrtf(float(dim));
        tile.scores.resize(SEGMENT);
        tile.sums.resize(dim);
        Float32Weights lanes{tile.queries.data()};
        all_rows(count, lanes, lanes.data, Rows{tile.keys, dim}, dim, tile.scores.data());
        Vec largest = splat(NEVER), total = {};
        for (int64_t i = 0; i < count; i++) {
            Vec score = tile.scores[i] * scale;
            tile.scores[i] = seen > float(begin + i) ? score : splat(NEVER);
            largest = tile.scores[i] > largest ? tile.scores[i] : largest;
        }
        for (int64_t i = 0; i < count; i++) {
            Vec share = exponential(tile.scores[i] - largest);
            tile.scores[i] = seen > float(begin + i) ? share : Vec{};
            total += tile.scores[i];
        }
        std::fill(tile.scores.begin() + count, tile.scores.begin() + padded, Vec{});
        Float32Weights shares{reinterpret_cast<const float*>(tile.scores.data())};
        all_rows(dim, shares, shares.data, Columns{tile.values, dim}, padded, tile.sums.data());
        auto is_seeing = seen > float(begin);
        result[0] = is_seeing ? largest : result[0];
        result[1] = is_seeing ? total : result[1];
        for (int64_t d = 0; d < dim; d++) result[2 + d] = is_seeing ? tile.sums[d] : result[2 + d];
    }
};

}  // namespace
