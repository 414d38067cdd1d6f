// Products of rows with packed weights, and what comes before them.

#pragma once

#include <algorithm>
#include <vector>

#include "numbers.hpp"

namespace {

#ifdef __AVX512F__
constexpr int BLOCK = 10;  // rows that share a reading of the weights: their sums fit the registers
#else
constexpr int BLOCK = 3;
#endif
constexpr int64_t AHEAD = 4096;  // bytes: the hardware's own prefetching stops where a page ends

// Inputs i … i + 3 of a panel, and a hint for what comes after.
template <class W, class Word>
ALWAYS_INLINE void stream(const W& w, const Word* panel, int64_t i, Vec* out) {
    const char* here = reinterpret_cast<const char*>(panel + W::panel_words(i));
    for (int64_t line = 0; line < int64_t(W::panel_words(AT_ONCE) * sizeof(Word)); line += 64)
        __builtin_prefetch(here + AHEAD + line);
    w.some(panel, i, out);
}

// Inputs i and on of row r, where a row's inputs lie side by side, and where those of an input do.
struct Rows {
    const float* data;
    int64_t stride;
    const float* at(int64_t r, int64_t i) const { return data + r * stride + i; }
    int64_t step() const { return 1; }
};

struct Columns {
    const float* data;
    int64_t stride;
    const float* at(int64_t r, int64_t i) const { return data + i * stride + r; }
    int64_t step() const { return stride; }
};

template <int ROWS, class W, class Word, class X>
inline void panel_product(const W& w, const Word* panel, const X& x, int64_t in, Vec* out) {
    Vec sums[ROWS][SUMS] = {};
    int64_t i = 0;
    for (; i + AT_ONCE <= in; i += AT_ONCE) {
        Vec four[AT_ONCE];
        stream(w, panel, i, four);
        for (int r = 0; r < ROWS; r++) {
            const float* inputs = x.at(r, i);
            for (int s = 0; s < AT_ONCE; s++) sums[r][s % SUMS] += four[s] * inputs[s * x.step()];
        }
    }
    for (; i < in; i++) {
        Vec one = w.one(panel, i);
        for (int r = 0; r < ROWS; r++) sums[r][i % SUMS] += one * *x.at(r, i);
    }
    for (int r = 0; r < ROWS; r++) out[r] = sums[r][0] + sums[r][1];
}

template <int ROWS, class W, class Word, class X>
inline void few_rows(int64_t rows, const W& w, const Word* panel, const X& x, int64_t in, Vec* out) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return few_rows<ROWS - 1>(rows, w, panel, x, in, out);
    }
    panel_product<ROWS>(w, panel, x, in, out);
}

// One panel of any number of rows -> out [rows].
template <class W, class Word, class X>
inline void all_rows(int64_t rows, const W& w, const Word* panel, const X& x, int64_t in, Vec* out) {
    int64_t blocks = (rows + BLOCK - 1) / BLOCK;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = rows * b / blocks, end = rows * (b + 1) / blocks;
        few_rows<BLOCK>(end - begin, w, panel, X{x.at(begin, 0), x.stride}, in, out + begin);
    }
}

// One panel of all rows, x [rows, in] -> out [rows].
template <class W>
void panel_of(const W& w, int64_t number, const float* x, int64_t rows, int64_t in, Vec* out) {
    const auto* panel = w.data + number * W::panel_words(in);
    all_rows(rows, w, panel, Rows{x, in}, in, out);
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
    Share mine(num_panels(out), thread, threads);
    for (int64_t p = mine.begin; p < mine.end; p++) {
        panel_of(w, p, x, rows, in, sums.data());
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
    Share mine(num_panels(ffn), thread, threads);
    for (int64_t p = mine.begin; p < mine.end; p++) {
        panel_of(w, 2 * p, x, rows, in, gate.data());
        panel_of(w, 2 * p + 1, x, rows, in, up.data());
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
