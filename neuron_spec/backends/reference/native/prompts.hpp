// Attention of a prompt's tokens, through tiles: there are so many queries that keys and values are worth
// making tiles of. Segments as in attention.hpp, with 16 queries of a head of keys as lanes of vectors.

#pragma once

#include "attention.hpp"
#include "tiles.hpp"

namespace {

constexpr int64_t PROMPT = 64;  // tokens of a row of a wide pass above which it is one

#ifdef NEURON_SPEC_TILES

// What a thread has of its own while it attends.
struct PromptDesk {
    const LayerParts* layer = nullptr;      // whose tiles these are,
    int64_t number, num_made;               // of which segment, and of how many positions
    TiledRows keys, values;                 // [positions, dim], [dim, positions]
    PanelTiles panels;
    std::vector<float> copies;              // keys, values, values [dim, positions]
    std::vector<Vec> scores[2], sums[2];    // of two groups of queries: [SEGMENT], [dim]
    std::vector<Vec> shares;                // of segments
};

template <class C>
class PromptAttention {
    typedef typename C::Number Number;

   public:
    // Whether a pass whose products go through tiles is one that this is for.
    static bool takes(const Pass& pass) { return pass.wide && !pass.sees && pass.count > PROMPT; }

    // `joined` [tokens, heads x dim] is the output.
    PromptAttention(const Stack& stack, const Pass& pass, float* joined)
        : s(stack), p(pass), joined(joined), dim(stack.head_dim), shared_by(stack.heads / stack.kv_heads),
          queries(shared_by * pass.count), groups((queries + LANES - 1) / LANES), pairs((groups + 1) / 2) {
        int64_t most = *std::max_element(p.starts, p.starts + p.rows) + p.count;
        segments = (most + SEGMENT - 1) / SEGMENT;
    }

    int64_t num_units() const { return p.rows * s.kv_heads * segments * pairs; }
    int64_t num_joints() const { return p.rows * s.kv_heads * groups; }

    // Before any query: room for them and the results.
    void begin() {
        panels.resize(num_joints() * dim * LANES);
        partial.resize(num_joints() * segments * (2 + dim));
    }

    // The query of a head at a token of all rows'.
    void take(int64_t token, int64_t head, const float* query) {
        int64_t row = token / p.count, q = token % p.count * shared_by + head % shared_by;
        int64_t group = (row * s.kv_heads + head / shared_by) * groups + q / LANES;
        float* to = panels.data() + group * dim * LANES + q % LANES;
        for (int64_t d = 0; d < dim; d++) to[d * LANES] = query[d];
    }

    // One segment of two groups of 16 queries -> their largest scores, sums of shares, and sums of values.
    // The pairs of a segment follow each other, so that a thread makes its tiles about once.
    void unit(const LayerParts& layer, int64_t index, PromptDesk& desk) {
        int64_t pair = index % pairs, segment = index / pairs % segments, begin = segment * SEGMENT;
        int64_t row = index / pairs / segments / s.kv_heads, head = index / pairs / segments % s.kv_heads;
        int64_t first = pair * 2, last = std::min(first + 2, groups), seen = 0;
        int64_t before = (row * s.kv_heads + head) * groups;
        Vec* results[2];
        const float *wanted[2], *shares[2];
        for (int64_t g = first; g < last; g++) {
            int n = int(g - first);
            results[n] = partial.data() + ((before + g) * segments + segment) * (2 + dim);
            results[n][0] = splat(NEVER);
            std::fill(results[n] + 1, results[n] + 2 + dim, Vec{});
            seen = std::max(seen, num_seen(row, std::min((g + 1) * LANES, queries) - 1));
            wanted[n] = panels.data() + (before + g) * dim * LANES;
        }
        if (seen <= begin) return;
        if (desk.layer != &layer || desk.number != index / pairs) {
            make_tiles(layer, row, head, begin, desk);
            desk.layer = &layer;
            desk.number = index / pairs;
        }
        multiply(desk.keys, wanted, int(last - first), dim, desk.scores, SEGMENT, desk);
        for (int64_t g = first; g < last; g++) {
            int n = int(g - first);
            weigh(row, g, begin, desk.num_made, desk.scores[n].data(), results[n]);
            shares[n] = reinterpret_cast<const float*>(desk.scores[n].data());
        }
        multiply(desk.values, shares, int(last - first), desk.num_made, desk.sums, dim, desk);
        for (int64_t g = first; g < last; g++)
            std::copy_n(desk.sums[g - first].begin(), dim, results[g - first] + 2);
    }

    // A group's segments -> the output of its heads and tokens.
    void join(int64_t index, PromptDesk& desk) {
        int64_t size = 2 + dim, row = index / groups / s.kv_heads, head = index / groups % s.kv_heads;
        const Vec* parts = partial.data() + index * segments * size;
        int64_t first = index % groups * LANES, end = std::min(first + LANES, queries);
        Vec largest = splat(NEVER), whole = {};
        for (int64_t i = 0; i < segments; i++) {
            Vec own = parts[i * size];
            largest = own > largest ? own : largest;
        }
        desk.shares.resize(segments);
        for (int64_t i = 0; i < segments; i++) {
            desk.shares[i] = exponential(parts[i * size] - largest);
            whole += desk.shares[i] * parts[i * size + 1];
        }
        for (int64_t d = 0; d < dim; d++) {
            Vec sum = {};
            for (int64_t i = 0; i < segments; i++) sum += desk.shares[i] * parts[i * size + 2 + d];
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
    float* joined;
    int64_t dim, shared_by, queries, groups, pairs;  // `queries` of a row and a head of keys
    int64_t segments;
    std::vector<float> panels;  // [rows, kv_heads, groups][dim][16]
    std::vector<Vec> partial;   // [rows, kv_heads, groups][segments][2 + dim]

    // How many positions query `q` of a row sees.
    int64_t num_seen(int64_t row, int64_t q) const { return p.starts[row] + q / shared_by + 1; }

    void make_tiles(const LayerParts& layer, int64_t row, int64_t head, int64_t begin, PromptDesk& desk) const {
        int64_t count = desk.num_made = std::min(SEGMENT, p.starts[row] + p.count - begin);
        int64_t from = (((p.first_slot + row) * s.kv_heads + head) * s.cache_length + begin) * dim;
        desk.copies.resize(3 * SEGMENT * dim);
        float *keys = desk.copies.data(), *values = keys + SEGMENT * dim, *turned = values + SEGMENT * dim;
        for (int64_t i = 0; i < count * dim; i++) {
            keys[i] = C::get(static_cast<const Number*>(layer.keys) + from + i);
            values[i] = C::get(static_cast<const Number*>(layer.values) + from + i);
        }
        for (int64_t d = 0; d < dim; d++)
            for (int64_t i = 0; i < count; i++) turned[d * count + i] = values[i * dim + d];
        desk.keys.set(keys, count, dim);
        desk.values.set(turned, dim, count);
    }

    // Rows times one or two panels [in][16] -> [rows] each.
    void multiply(const TiledRows& rows, const float* const* lanes, int count, int64_t in, std::vector<Vec>* to,
                  int64_t num_rows, PromptDesk& desk) const {
        for (int n = 0; n < 2; n++) to[n].resize(num_tiles(num_rows, TILE_ROWS) * TILE_ROWS);
        Vec* out[] = {to[0].data(), to[1].data()};
        rows.multiply<C::PARTS, PARTS>(desk.panels.alone(lanes, count, in), count, out);
    }

    // Scores of `count` positions from `begin` on -> shares; `head`: the largest scores, the sums of shares.
    void weigh(int64_t row, int64_t group, int64_t begin, int64_t count, Vec* scores, Vec* head) const {
        const float scale = 1.0f / __builtin_sqrtf(float(dim));
        Vec seen = {};
        for (int lane = 0; lane < LANES; lane++) {
            int64_t q = group * LANES + lane;
            if (q < queries) seen[lane] = float(num_seen(row, q) - begin);
        }
        Vec largest = splat(NEVER), total = {};
        for (int64_t i = 0; i < count; i++) {
            scores[i] = seen > float(i) ? scores[i] * scale : splat(NEVER);
            largest = scores[i] > largest ? scores[i] : largest;
        }
        for (int64_t i = 0; i < count; i++) {
            scores[i] = seen > float(i) ? exponential(scores[i] - largest) : Vec{};
            total += scores[i];
        }
        head[0] = largest;
        head[1] = total;
    }
};

#else

struct PromptDesk {};

template <class C>
struct PromptAttention {
    PromptAttention(const Stack&, const Pass&, float*) {}
    static bool takes(const Pass&) { return false; }
    int64_t num_units() const { return 0; }
    int64_t num_joints() const { return 0; }
    void begin() {}
    void take(int64_t, int64_t, const float*) {}
    void unit(const LayerParts&, int64_t, PromptDesk&) {}
    void join(int64_t, PromptDesk&) {}
};

#endif

}  // namespace
