// Products of rows with packed weights, and what comes before them.

#pragma once

#include <algorithm>
#include <vector>

#include "numbers.hpp"

namespace {

constexpr int BLOCK = 6;         // rows that share a reading of the weights
constexpr int64_t AHEAD = 4096;  // bytes: the hardware's own prefetching stops where a page ends

// Inputs i … i + 3 of a panel, and a hint for what comes after.
template <class W, class Word>
inline void stream(const W& w, const Word* panel, int64_t i, Vec* out) {
    const char* here = reinterpret_cast<const char*>(panel + W::panel_words(i));
    for (int64_t line = 0; line < int64_t(W::panel_words(SUMS) * sizeof(Word)); line += 64)
        __builtin_prefetch(here + AHEAD + line);
    w.some(panel, i, out);
}

// Rows of inputs: input i of row r.
struct Rows {
    const float* data;
    int64_t row_stride, in_stride;
    float at(int64_t r, int64_t i) const { return data[r * row_stride + i * in_stride]; }
};

template <int ROWS, class W, class Word>
inline void panel_product(const W& w, const Word* panel, const Rows& x, int64_t in, Vec* out) {
    Vec sums[ROWS][SUMS] = {};
    int64_t i = 0;
    for (; i + SUMS <= in; i += SUMS) {
        Vec four[SUMS];
        stream(w, panel, i, four);
        for (int s = 0; s < SUMS; s++)
            for (int r = 0; r < ROWS; r++) sums[r][s] += four[s] * x.at(r, i + s);
    }
    for (; i < in; i++) {
        Vec one = w.one(panel, i);
        for (int r = 0; r < ROWS; r++) sums[r][0] += one * x.at(r, i);
    }
    for (int r = 0; r < ROWS; r++) out[r] = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
}

template <class W, class Word>
inline void few_rows(int64_t rows, const W& w, const Word* panel, const Rows& x, int64_t in, Vec* out) {
    switch (rows) {
        case 1: return panel_product<1>(w, panel, x, in, out);
        case 2: return panel_product<2>(w, panel, x, in, out);
        case 3: return panel_product<3>(w, panel, x, in, out);
        case 4: return panel_product<4>(w, panel, x, in, out);
        case 5: return panel_product<5>(w, panel, x, in, out);
        default: return panel_product<BLOCK>(w, panel, x, in, out);
    }
}

// One panel of any number of rows -> out [rows].
template <class W, class Word>
inline void all_rows(int64_t rows, const W& w, const Word* panel, const Rows& x, int64_t in, Vec* out) {
    for (int64_t r = 0; r < rows; r += BLOCK) {
        Rows block{x.data + r * x.row_stride, x.row_stride, x.in_stride};
        few_rows(std::min<int64_t>(BLOCK, rows - r), w, panel, block, in, out + r);
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
        all_rows(rows, floats, floats.data, {x, in, 1}, in, out);
    } else {
        all_rows(rows, w, panel, {x, in, 1}, in, out);
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
