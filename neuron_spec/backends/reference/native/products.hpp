// Products of rows with packed weights, and what comes before them.

#pragma once

#include <unistd.h>

#include <type_traits>

#include "numbers.hpp"
#include "sharing.hpp"
#include "tiles.hpp"

namespace {

// Rows that share a reading of the weights: their sums fit the registers, of which there are 32, or 16.
#if defined(__AVX512F__)
constexpr int BLOCK = 10;
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int BLOCK = 6;
#else
constexpr int BLOCK = 2;
#endif
constexpr int AT_ONCE = 4;         // inputs that are read together
constexpr int64_t STRETCH = 768;   // inputs; with the next stretch's they stay near the core

// Bytes to read ahead: the hardware's own prefetching stops where a page ends. As many as leave the nearest
// cache room for rows and for what is being read.
inline int64_t bytes_ahead() {
    int64_t cache = 0;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    static const int64_t found = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    cache = found;
#endif
    return std::max<int64_t>(cache / 3, 8192);
}

template <int ROWS>
using Sums = Native[ROWS][SUMS][PIECES];

struct RowSums {
    Sums<1> of;
};

// Adds input i, which is `s` more than a multiple of `AT_ONCE`.
template <int ROWS, class W, class Word>
ALWAYS_INLINE void add_input(const Word* panel, const typename W::Input* x, int64_t in, int64_t i, int s, Sums<ROWS>& sums) {
    Native weights[PIECES];
    for (int p = 0; p < PIECES; p++) weights[p] = W::one(panel + W::panel_words(i), s, p);
#pragma GCC unroll 16  // or sums of many rows stay in memory
    for (int r = 0; r < ROWS; r++) {
        typename W::Input input = x[r * in + i + s];
        for (int p = 0; p < PIECES; p++) W::add(sums[r][s % SUMS][p], weights[p], input);
    }
}

template <int64_t BYTES>
ALWAYS_INLINE void read_ahead(const char* from) {
    for (int64_t line = 0; line < BYTES; line += 64) __builtin_prefetch(from + line);
}

// Inputs that all blocks of rows take, one block after the other.
struct Stretch {
    int64_t begin, end;
    int64_t block, blocks;
};

// Adds a stretch of inputs to the sums of a block of rows. Where it is the only block it reads a little ahead;
// of several each reads a share of the next stretch, for else memory would rest in all but the first.
template <int ROWS, bool IS_ONLY, class W, class Word>
inline void add_stretch(const Word* panel, const typename W::Input* x, int64_t in, Stretch at, RowSums* kept) {
    constexpr int64_t STEP = W::panel_words(AT_ONCE) * sizeof(Word);
    Sums<ROWS> sums = {};
    int64_t i = at.begin, until_next = 0, ahead = bytes_ahead();
    if (!IS_ONLY && i > 0) std::memcpy(sums, kept, sizeof sums);
    int64_t bytes = W::panel_words(at.end - i) * int64_t(sizeof(Word));
    const char* next = reinterpret_cast<const char*>(panel + W::panel_words(i)) + bytes + bytes * at.block / at.blocks;
    for (; i + AT_ONCE <= at.end; i += AT_ONCE) {
        if (IS_ONLY) {
            read_ahead<STEP>(reinterpret_cast<const char*>(panel + W::panel_words(i)) + ahead);
        } else if (until_next-- == 0) {
            read_ahead<STEP>(next);
            next += STEP, until_next = at.blocks - 1;
        }
#pragma GCC unroll 4
        for (int s = 0; s < AT_ONCE; s++) add_input<ROWS, W>(panel, x, in, i, s, sums);
    }
    for (int s = 0; i + s < at.end; s++) add_input<ROWS, W>(panel, x, in, i, s, sums);
    std::memcpy(kept, sums, sizeof sums);
}

template <int ROWS, bool IS_ONLY, class W, class Word>
inline void few_rows(int64_t rows, const Word* panel, const typename W::Input* x, int64_t in, Stretch at, RowSums* kept) {
    if constexpr (ROWS > (IS_ONLY ? 1 : (BLOCK + 1) / 2)) {
        if (rows < ROWS) return few_rows<ROWS - 1, IS_ONLY, W>(rows, panel, x, in, at, kept);
    }
    add_stretch<ROWS, IS_ONLY, W>(panel, x, in, at, kept);
}

// One panel of any number of rows, x [rows, in] -> out [rows]; `kept` [rows] is for their sums.
template <class W, class Word>
inline void all_rows(int64_t rows, const Word* panel, const typename W::Input* x, int64_t in, RowSums* kept, Vec* out) {
    if (rows <= BLOCK) {
        few_rows<BLOCK, true, W>(rows, panel, x, in, {0, in, 0, 1}, kept);
    } else {
        int64_t blocks = (rows + BLOCK - 1) / BLOCK;
        for (int64_t i = 0; i < in; i += STRETCH) {
            for (int64_t b = 0; b < blocks; b++) {
                int64_t begin = rows * b / blocks, end = rows * (b + 1) / blocks;
                Stretch at{i, std::min(i + STRETCH, in), b, blocks};
                few_rows<BLOCK, false, W>(end - begin, panel, x + begin * in, in, at, kept + begin);
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        Native total[PIECES];
        for (int p = 0; p < PIECES; p++) {
            total[p] = kept[r].of[0][0][p];
            for (int s = 1; s < SUMS; s++) total[p] += kept[r].of[0][s][p];
        }
        std::memcpy(out + r, total, sizeof total);
    }
}

// One panel of all rows, x [rows, in] -> out [rows].
template <class W>
void panel_of(const W& w, int64_t number, const typename W::Input* x, int64_t rows, int64_t in, RowSums* kept, Vec* out) {
    const auto* panel = w.data + number * W::panel_words(in);
    all_rows<W>(rows, panel, x, in, kept, out);
    if constexpr (W::IS_SCALED) {
        Vec scales = read<Vec>(w.scales + number * LANES);
        for (int64_t r = 0; r < rows; r++) out[r] *= scales;
    }
}

// How products are made: one input after the other, two at a time of bfloat16 numbers, or in tiles.
enum class Way { INPUTS, PAIRS, TILES };

#ifdef NEURON_SPEC_PAIRS
constexpr bool HAS_PAIRS = true;
#else
constexpr bool HAS_PAIRS = false;
#endif

// What panels are multiplied with, in the form they take it in; what it is made in is kept.
template <class W>
class Inputs {
   public:
    // x [rows, in], which has to live on; the way has to be one that there is.
    void set(const float* x, int64_t rows, int64_t in, Way way) {
        this->x = x, this->rows = rows, this->in = in;
        kept.resize(rows);
        for (auto& each : sums) each.resize(num_tiles(rows, TILE_ROWS) * TILE_ROWS);
#ifdef NEURON_SPEC_TILES
        is_tiled = way == Way::TILES;
        if (is_tiled) own.set(x, rows, in);
        tiles = &own;
#endif
#ifdef NEURON_SPEC_PAIRS
        are_pairs = way == Way::PAIRS;
        if (!are_pairs) return;
        words = (in + 1) / 2;
        pairs.resize(rows * words);
        for (int64_t r = 0; r < rows; r++) put_pairs(x + r * in, in, pairs.data() + r * words);
#endif
    }

    // Rows that threads have made tiles of together.
    void share(const TiledRows& made, int64_t rows, int64_t in) {
        this->rows = rows, this->in = in;
        for (auto& each : sums) each.resize(num_tiles(rows, TILE_ROWS) * TILE_ROWS);
#ifdef NEURON_SPEC_TILES
        is_tiled = true;
        tiles = &made;
#endif
    }

    int64_t num_rows() const { return rows; }

    // Panels `number` and, if two, the next: what they give is in `of(0)` and `of(1)`, [rows] each.
    void multiply(const W& w, int64_t number, int count) {
        Vec* out[] = {sums[0].data(), sums[1].data()};
#ifdef NEURON_SPEC_TILES
        if constexpr (!W::IS_SCALED)
            if (is_tiled) return tiles->template multiply<PARTS, W::PARTS>(panels.of(w, number, count, in), count, out);
#endif
#ifdef NEURON_SPEC_PAIRS
        if constexpr (std::is_same_v<W, BFloat16Weights>)
            if (are_pairs) return panels_of(BFloat16Pairs{w.data}, number, count, pairs.data(), words, out);
#endif
        panels_of(w, number, count, x, in, out);
    }

    const Vec* of(int panel) const { return sums[panel].data(); }

   private:
    const float* x = nullptr;
    int64_t rows = 0, in = 0;
    std::vector<Vec> sums[2];
    std::vector<RowSums> kept;
#ifdef NEURON_SPEC_TILES
    bool is_tiled = false;
    TiledRows own;
    const TiledRows* tiles = nullptr;
    PanelTiles panels;
#endif
#ifdef NEURON_SPEC_PAIRS
    bool are_pairs = false;
    int64_t words = 0;            // of a row
    std::vector<uint32_t> pairs;  // [rows, words]
#endif

    template <class Some>
    void panels_of(const Some& w, int64_t number, int count, const typename Some::Input* x, int64_t in, Vec* const* out) {
        for (int n = 0; n < count; n++) panel_of(w, number + n, x, rows, in, kept.data(), out[n]);
    }
};

inline int64_t num_panels(int64_t out) { return (out + LANES - 1) / LANES; }

// Sums [rows] of 16 outputs from `first` on, or as many as there are -> y [rows, out].
inline void put(const Vec* sums, int64_t rows, int64_t first, const float* bias, int64_t out, float* y,
                bool adds) {
    int64_t bytes = std::min<int64_t>(LANES, out - first) * int64_t(sizeof(float));
    Vec more = {}, before = {};
    if (bias) std::memcpy(&more, bias + first, bytes);
    for (int64_t r = 0; r < rows; r++) {
        float* to = y + r * out + first;
        Vec value = bias ? sums[r] + more : sums[r];
        if (bytes == sizeof(Vec)) {
            write(to, adds ? read<Vec>(to) + value : value);
        } else {
            if (adds) std::memcpy(&before, to, bytes);
            value = adds ? before + value : value;
            std::memcpy(to, &value, bytes);
        }
    }
}

// y [rows, out] = or += the inputs times the weights, plus bias where there is one.
template <class W>
void product(const W& w, const float* bias, Inputs<W>& inputs, int64_t out, float* y, bool adds,
             Work& work, int64_t phase, int me) {
    while (auto piece = work.take(phase, num_panels(out), me, 2)) {
        for (int64_t p = piece.begin; p < piece.end; p += 2) {
            int count = p + 1 < piece.end ? 2 : 1;
            inputs.multiply(w, p, count);
            for (int n = 0; n < count; n++)
                put(inputs.of(n), inputs.num_rows(), (p + n) * LANES, bias, out, y, adds);
        }
    }
}

// act [rows, ffn] = silu(gate) * up; panels of gate and up follow each other in turn.
template <class W>
void gated(const W& w, Inputs<W>& inputs, int64_t ffn, float* act, Work& work, int64_t phase, int me) {
    while (auto piece = work.take(phase, num_panels(ffn), me)) {
        for (int64_t p = piece.begin; p < piece.end; p++) {
            inputs.multiply(w, 2 * p, 2);
            const Vec *gate = inputs.of(0), *up = inputs.of(1);
            int64_t first = p * LANES;
            int64_t bytes = std::min<int64_t>(LANES, ffn - first) * int64_t(sizeof(float));
            for (int64_t r = 0; r < inputs.num_rows(); r++) {
                Native values[PIECES];
                for (int n = 0; n < PIECES; n++) {
                    auto x = read<Native>(reinterpret_cast<const float*>(gate + r) + n * NATIVE);
                    auto factor = read<Native>(reinterpret_cast<const float*>(up + r) + n * NATIVE);
                    values[n] = x / (1.0f + exponential(-x)) * factor;
                }
                std::memcpy(act + r * ffn + first, values, bytes);
            }
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
