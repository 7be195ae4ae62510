// What crosses the C boundary: one decoder, one step. Plain structs, mirrored by engine/native_abi.py; bump
// kAbiVersion with every change. All pointers stay owned by the caller.
#pragma once

#include <cstdint>

namespace ps {

constexpr int32_t kAbiVersion = 2;

// Packed weights [n, k]: fp32 panels, or int8 panels with scales and offsets per packed column. `bias` may be null.
struct Linear {
    const void* panels;
    const float* scales;
    const int32_t* offsets;
    const float* bias;
    int64_t n, k;
};

struct Layer {
    const float *input_norm, *post_norm;
    const float *q_norm, *k_norm;  // null without QK norm
    Linear qkv, o, gate_up, down;
    float* cache;  // [num_blocks, 2, kv_heads, block_size, head_dim]
};

struct Model {
    int64_t num_layers, hidden, heads, kv_heads, head_dim, ffn, vocab, block_size;
    float norm_eps;
    int32_t is_int8;
    const Layer* layers;
    const float* final_norm;
    Linear lm_head;
    const float *cosine, *sine;  // [max_context, head_dim / 2]
};

// One flattened batch, as engine.executor.StepInputs describes it.
struct Step {
    int64_t num_rows, num_sequences, max_blocks;
    const int32_t *positions, *query_start, *context_len, *block_table;
    const int64_t* slots;
};

// Told the index of a layer whose KV is written for all rows, on the calling thread, in order.
using OnLayerDone = void (*)(int64_t layer);

}  // namespace ps
