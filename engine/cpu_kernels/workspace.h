// The buffers of one executor, grown to the largest step seen. Row strides carry one cache line of padding, so that
// rows of power-of-two widths do not fall into the same cache sets.
#pragma once

#include <cstdlib>
#include <new>

#include "huge_pages.h"
#include "schedule.h"

namespace ps {

constexpr int64_t kPad = 16;         // floats
constexpr int64_t kPrivateRows = 8;  // up to here every thread prepares all rows for itself and saves a barrier

// 64-byte aligned memory that only grows; contents are lost when it does.
class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void reserve(int64_t bytes) {
        if (bytes <= size_) return;
        std::free(data_);
        size_ = 0;
        data_ = nullptr;
        const int64_t page = bytes < kHugePage ? 4096 : kHugePage, rounded = (bytes + page - 1) / page * page;
        data_ = std::aligned_alloc(static_cast<size_t>(page), static_cast<size_t>(rounded));
        if (!data_) throw std::bad_alloc();
        size_ = rounded;
        if (page == kHugePage) advise_huge(data_, rounded);
        std::memset(data_, 0, static_cast<size_t>(rounded));
    }

    float* floats() const { return static_cast<float*>(data_); }
    uint8_t* bytes() const { return static_cast<uint8_t*>(data_); }

  private:
    void* data_ = nullptr;
    int64_t size_ = 0;
};

// Prepared input of a linear: fp32 rows, or quantised rows.
struct Rows {
    const float* values;
    int64_t stride;
    RowsI8 quantised;
};

struct Workspace {
    Schedule schedule;
    Buffer qkv, attended, activated, states;
    Buffer shared_rows, shared_scales;                     // prepared inputs, all rows
    Buffer private_rows, private_scales, private_scratch;  // per thread
    int64_t qkv_stride = 0, attended_stride = 0, activated_stride = 0, row_bytes = 0, scratch_floats = 0;

    void fit(const Model& model, int64_t rows, int num_threads) {
        const int64_t attention_width = model.heads * model.head_dim;
        int64_t widest = model.hidden > model.ffn ? model.hidden : model.ffn;
        widest = widest > attention_width ? widest : attention_width;
        qkv_stride = (model.heads + 2 * model.kv_heads) * model.head_dim + kPad;
        attended_stride = attention_width + kPad;
        activated_stride = model.ffn + kPad;
        row_bytes = (padded_k(widest) + kPad) * 4;
        scratch_floats = (AttentionScratch::floats(model.head_dim) + widest + kPad + 15) / 16 * 16;
        const int64_t tiles = (rows + kAmxTile - 1) / kAmxTile * kAmxTile;
        qkv.reserve(rows * qkv_stride * 4);
        attended.reserve(rows * attended_stride * 4);
        activated.reserve(rows * activated_stride * 4);
        shared_rows.reserve(tiles * row_bytes);
        shared_scales.reserve(tiles * 4);
        private_rows.reserve(num_threads * kAmxTile * row_bytes);
        private_scales.reserve(num_threads * kAmxTile * 4);
        private_scratch.reserve(num_threads * scratch_floats * 4);
    }
};

}  // namespace ps
