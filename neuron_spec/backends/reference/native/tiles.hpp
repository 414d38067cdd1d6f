// Products of tiles, which AMX does in one instruction: 16 rows by 32 inputs by 16 outputs.
//
// Its factors are bfloat16, its sums float32. A float32 is the sum of three bfloat16 to the last bit,
// so that rows and float32 weights are split into three parts, largest first. Products of parts are
// exact; what float32 weights leave out, middle by last and last by last, is below float32's own
// rounding. A row's sum has one order, whatever stands beside it.

#pragma once

#include <algorithm>
#include <vector>

#include "numbers.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512F__)
#define NEURON_SPEC_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t TILE_ROWS = 16, TILE_INPUTS = 32;
constexpr int64_t PARTS = 3;  // of a float32

inline int64_t num_tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

#ifdef NEURON_SPEC_TILES

// Whether the system lets this process use tiles.
inline bool has_tiles() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool is_granted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return is_granted;
}

// GCC does not tell that tile instructions read and write memory.
inline void memory_fence() { asm volatile("" ::: "memory"); }

constexpr int FIRST_WEIGHT_TILE = 6;  // before them four of sums and two of rows

// While it lives, this thread has eight tiles of rows of 64 bytes: 16 rows, but where all rows that it
// multiplies are fewer, as many, which is quicker.
class TileScope {
   public:
    TileScope(bool is_used, int64_t rows) : is_used(is_used) {
        if (!is_used) return;
        alignas(64) uint8_t shape[64] = {1};  // the palette
        for (int tile = 0; tile < 8; tile++) {
            shape[16 + 2 * tile] = 64;  // bytes of a row
            shape[48 + tile] = uint8_t(tile < FIRST_WEIGHT_TILE ? std::min(rows, TILE_ROWS) : TILE_ROWS);
        }
        memory_fence();
        _tile_loadconfig(shape);
    }
    ~TileScope() {
        if (is_used) _tile_release();
    }
    TileScope(const TileScope&) = delete;

   private:
    bool is_used;
};

typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

// The nearest bfloat16, as a float32; `rest` keeps what is missing.
ALWAYS_INLINE Words take_part(Vec& rest) {
    Words part = (cast<Words>(rest) + 0x8000u) & 0xffff0000u;
    rest -= cast<Vec>(part);
    return part;
}

// One of a row's parts times one of the weights'.
struct Term {
    int x, w;
};

// In an order in which each shares a factor with the one before it.
template <int X_PARTS, int W_PARTS>
constexpr Term TERMS[] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {0, 0}, {2, 0}};
template <>
constexpr Term TERMS<PARTS, 1>[] = {{0, 0}, {1, 0}, {2, 0}};
template <>
constexpr Term TERMS<1, PARTS>[] = {{0, 2}, {0, 1}, {0, 0}};

// Sums of M x N tiles: M times 16 rows, N panels; what they are made of lies side by side in memory.
// A block of 32 inputs is `PARTS` tiles of the rows, the first `X_PARTS` of which are not all zero, and
// `W_PARTS` of a panel.
template <int M, int N, int X_PARTS, int W_PARTS>
ALWAYS_INLINE void add_block(const Vec* const* x, const char* const* w) {
    Term before{-1, -1};
    for (Term term : TERMS<X_PARTS, W_PARTS>) {
        if (term.x != before.x) {
            _tile_loadd(4, x[0] + term.x * TILE_ROWS, 64);
            if constexpr (M == 2) _tile_loadd(5, x[1] + term.x * TILE_ROWS, 64);
        }
        if (term.w != before.w) {
            _tile_loadd(6, w[0] + term.w * 1024, 64);
            if constexpr (N == 2) _tile_loadd(7, w[1] + term.w * 1024, 64);
        }
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (N == 2) _tile_dpbf16ps(1, 4, 7);
        if constexpr (M == 2) _tile_dpbf16ps(2, 5, 6);
        if constexpr (M == 2 && N == 2) _tile_dpbf16ps(3, 5, 7);
        before = term;
    }
}

// One panel of weights or two, block by block of 32 inputs; `last` instead of the last one where that
// is not whole. What comes after them is fetched meanwhile.
struct TiledPanels {
    const char *first[2], *last[2];
    const char* next;
    int64_t next_lines;  // of 64 bytes
};

// out[n] [M x 16]; lines `begin` to `end` of what comes next are fetched.
template <int M, int N, int X_PARTS, int W_PARTS>
void multiply_tiles(const Vec* x, int64_t blocks, const TiledPanels& w, int64_t begin, int64_t end, Vec* const* out) {
    constexpr int64_t X_BLOCK = PARTS * TILE_ROWS, W_BLOCK = W_PARTS * 1024;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < blocks; k++) {
        const Vec* rows[] = {x + k * X_BLOCK, x + (blocks + k) * X_BLOCK};
        bool is_last = k + 1 == blocks;
        const char* panels[2];
        for (int n = 0; n < N; n++) panels[n] = is_last && w.last[n] ? w.last[n] : w.first[n] + k * W_BLOCK;
        int64_t until = begin + (end - begin) * (k + 1) / blocks;
        for (int64_t line = begin + (end - begin) * k / blocks; line < until; line++)
            __builtin_prefetch(w.next + line * 64, 0, 2);
        add_block<M, N, X_PARTS, W_PARTS>(rows, panels);
    }
    _tile_stored(0, out[0], 64);
    if constexpr (N == 2) _tile_stored(1, out[1], 64);
    if constexpr (M == 2) _tile_stored(2, out[0] + TILE_ROWS, 64);
    if constexpr (M == 2 && N == 2) _tile_stored(3, out[1] + TILE_ROWS, 64);
}

// Rows in tiles, and their products with one panel or two.
class TiledRows {
   public:
    // x [rows, in]
    void set(const float* x, int64_t rows, int64_t in) {
        shape(rows, in);
        for (int64_t r = 0; r < rows; r++) set_row(r, x + r * in, in);
    }

    // Room for rows that are set one by one; what stands in those of a tile that are not makes sums that
    // nobody reads.
    void shape(int64_t rows, int64_t in) {
        groups = num_tiles(rows, TILE_ROWS);
        blocks = num_tiles(in, TILE_INPUTS);
        tiles.resize(groups * blocks * PARTS * TILE_ROWS);
    }

    void set_row(int64_t r, const float* x, int64_t in) {
        for (int64_t k = 0; k < blocks; k++) {
            const float* from = x + k * TILE_INPUTS;
            int64_t count = std::min(TILE_INPUTS, in - k * TILE_INPUTS);
            float padded[TILE_INPUTS] = {};
            if (count < TILE_INPUTS) {
                std::copy(from, from + count, padded);
                from = padded;
            }
            split(r, k, read<Vec>(from), read<Vec>(from + LANES));
        }
        memory_fence();
    }

    // out[n] [rows, up to a multiple of 16]
    template <int X_PARTS, int W_PARTS>
    void multiply(const TiledPanels& w, int count, Vec* const* out) const {
        for (int64_t g = 0; g < groups; g += 2) {
            const Vec* x = tiles.data() + g * blocks * PARTS * TILE_ROWS;
            Vec* to[] = {out[0] + g * TILE_ROWS, count == 2 ? out[1] + g * TILE_ROWS : nullptr};
            int64_t begin = w.next_lines * g / groups, end = w.next_lines * std::min(g + 2, groups) / groups;
            if (g + 1 < groups) {
                if (count == 2) multiply_tiles<2, 2, X_PARTS, W_PARTS>(x, blocks, w, begin, end, to);
                else multiply_tiles<2, 1, X_PARTS, W_PARTS>(x, blocks, w, begin, end, to);
            } else {
                if (count == 2) multiply_tiles<1, 2, X_PARTS, W_PARTS>(x, blocks, w, begin, end, to);
                else multiply_tiles<1, 1, X_PARTS, W_PARTS>(x, blocks, w, begin, end, to);
            }
        }
        memory_fence();
    }

    int64_t num_blocks() const { return blocks; }

   private:
    std::vector<Vec> tiles;  // [groups of 16 rows][blocks of 32 inputs][PARTS][16 rows]
    int64_t groups = 0, blocks = 0;

    void split(int64_t r, int64_t k, Vec low, Vec high) {
        Vec* to = tiles.data() + (r / TILE_ROWS * blocks + k) * PARTS * TILE_ROWS + r % TILE_ROWS;
        for (int part = 0; part < PARTS; part++) {
            char* row = reinterpret_cast<char*>(to + part * TILE_ROWS);
            Halves first = __builtin_convertvector(take_part(low) >> 16, Halves);
            Halves second = __builtin_convertvector(take_part(high) >> 16, Halves);
            std::memcpy(row, &first, sizeof first);
            std::memcpy(row + sizeof first, &second, sizeof second);
        }
    }
};

// Panels as tiles: bfloat16 ones are tiles already, float32 ones are split.
class PanelTiles {
   public:
    TiledPanels of(const BFloat16Weights& w, int64_t number, int count, int64_t in) {
        int64_t words = BFloat16Weights::panel_words(in), rest = words % (TILE_ROWS * LANES);
        TiledPanels panels = followed_by(w.data + (number + count) * words, count * words);
        made.resize(2 * TILE_ROWS);
        for (int n = 0; n < count; n++) {
            const uint32_t* panel = w.data + (number + n) * words;
            panels.first[n] = reinterpret_cast<const char*>(panel);
            if (!rest) continue;
            Vec* copy = made.data() + n * TILE_ROWS;
            std::fill(copy, copy + TILE_ROWS, Vec{});
            std::memcpy(copy, panel + words - rest, rest * sizeof(uint32_t));
            panels.last[n] = reinterpret_cast<const char*>(copy);
        }
        memory_fence();
        return panels;
    }

    TiledPanels of(const Float32Weights& w, int64_t number, int count, int64_t in) {
        int64_t words = Float32Weights::panel_words(in);
        TiledPanels panels = followed_by(w.data + (number + count) * words, count * words);
        int64_t size = num_tiles(in, TILE_INPUTS) * PARTS * TILE_ROWS;
        made.resize(2 * size);
        for (int n = 0; n < count; n++) {
            split(w.data + (number + n) * words, in, made.data() + n * size);
            panels.first[n] = reinterpret_cast<const char*>(made.data() + n * size);
        }
        memory_fence();
        return panels;
    }

    // Panels [in][16] that none follows, one or two.
    TiledPanels alone(const float* const* given, int count, int64_t in) {
        TiledPanels panels{};
        int64_t size = num_tiles(in, TILE_INPUTS) * PARTS * TILE_ROWS;
        made.resize(2 * size);
        for (int n = 0; n < count; n++) {
            split(given[n], in, made.data() + n * size);
            panels.first[n] = reinterpret_cast<const char*>(made.data() + n * size);
        }
        memory_fence();
        return panels;
    }

   private:
    std::vector<Vec> made;

    static TiledPanels followed_by(const void* next, int64_t words) {
        TiledPanels panels{};
        panels.next = static_cast<const char*>(next);
        panels.next_lines = words * int64_t(sizeof(uint32_t)) / 64;
        return panels;
    }

    // A word of a tile has inputs i (low half) and i + 1 of one output.
    static void split(const float* panel, int64_t in, Vec* to) {
        for (int64_t i = 0; i < num_tiles(in, TILE_INPUTS) * TILE_INPUTS; i += 2) {
            Vec first = i < in ? read<Vec>(panel + i * LANES) : Vec{};
            Vec second = i + 1 < in ? read<Vec>(panel + (i + 1) * LANES) : Vec{};
            Vec* tile = to + i / TILE_INPUTS * PARTS * TILE_ROWS + i % TILE_INPUTS / 2;
            for (int part = 0; part < PARTS; part++)
                tile[part * TILE_ROWS] = cast<Vec>((take_part(first) >> 16) | take_part(second));
        }
    }
};

#else

inline bool has_tiles() { return false; }

struct TiledRows {
    void shape(int64_t, int64_t) {}
    void set_row(int64_t, const float*, int64_t) {}
};

struct TileScope {
    TileScope(bool, int64_t) {}
};

#endif

}  // namespace
