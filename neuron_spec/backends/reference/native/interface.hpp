// What Python hands over, as `binding.py` declares it.

#pragma once

#include <cstdint>

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
    int64_t wide;              // many rows: products may round otherwise, see `way_of`
};
}
