// Causal attention of one flattened batch over the paged KV cache, read in place through the block table.
//
// The same code serves decode rows and prefill chunks. Keys are taken in splits of kSplit positions, aligned to the
// start of the sequence: inside a split the softmax is plain (all scores first), splits are merged in ascending order
// by the log-sum-exp rule (FlashAttention, Dao 2022; split over threads as in FlashDecoding). What is computed for a
// row therefore depends only on its position, never on batch, chunk or thread count: results are bitwise equal.
#pragma once

#include "gemm_f32.h"
#include "transpose.h"

namespace ps {

constexpr int64_t kSplit = 128;
constexpr int64_t kTileRows = 8 * MR;  // query rows (positions times heads of a group) that share one read of K and V
static_assert(kSplit % NR == 0);

// One layer's cache `[num_blocks, 2, kv_heads, block_size, head_dim]`, and the step's shape.
struct PagedCache {
    const float* data;
    int64_t kv_heads, block_size, head_dim;

    int64_t head_stride() const { return block_size * head_dim; }
    int64_t value_offset() const { return kv_heads * head_stride(); }
    const float* keys(int64_t block, int64_t head) const {
        return data + (block * 2 * kv_heads + head) * head_stride();
    }
};

// Queries of one sequence and one KV head: positions first..first+count-1, `group` heads each.
struct QueryTile {
    const float* queries;  // row of the first position, at this KV head's first query head
    float* out;            // same for the result
    int64_t query_stride, out_stride;
    int64_t first, count, group;
    const int32_t* blocks;  // block table row
    int64_t head;           // KV head
};

// Softmax state of every row of a tile: running maximum, running sum, unnormalised output (rows of stride `width`).
struct SoftmaxState {
    float *maximum, *total, *out;
};

// Buffers of one thread. `width` is head_dim rounded up to whole panels.
struct AttentionScratch {
    float* queries;  // [kTileRows, width]
    float* keys;     // [kSplit / NR] panels of [head_dim, NR]
    float* values;   // [width / NR] panels of [kSplit, NR], used when head_dim is not whole panels
    float* scores;   // [kTileRows, kSplit + 16]
    float* part;     // [kTileRows, width + 2 * 16] state of one split
    float* running;  // the same: state of all splits so far

    static int64_t width(int64_t head_dim) { return (head_dim + NR - 1) / NR * NR; }
    static int64_t state_floats(int64_t rows, int64_t head_dim) { return rows * (width(head_dim) + 2); }

    static int64_t floats(int64_t head_dim) {
        const int64_t w = width(head_dim);
        return kTileRows * w + kSplit * w + kSplit * w + kTileRows * (kSplit + 16) + 2 * kTileRows * (w + 2) + 6 * 16;
    }

    AttentionScratch(float* memory, int64_t head_dim) {
        const int64_t w = width(head_dim);
        const auto take = [&](int64_t n) {
            float* p = memory;
            memory += (n + 15) / 16 * 16;
            return p;
        };
        queries = take(kTileRows * w);
        keys = take(kSplit * w);
        values = take(kSplit * w);
        scores = take(kTileRows * (kSplit + 16));
        part = take(state_floats(kTileRows, head_dim));
        running = take(state_floats(kTileRows, head_dim));
    }
};

static inline SoftmaxState state_at(float* memory, int64_t rows) { return {memory, memory + rows, memory + 2 * rows}; }

constexpr int64_t kScoreStride = kSplit + 16;

class TileAttention {
  public:
    TileAttention(const PagedCache& cache, const QueryTile& tile, const AttentionScratch& scratch, float scale)
        : cache_(cache),
          tile_(tile),
          scratch_(scratch),
          width_(AttentionScratch::width(cache.head_dim)),
          rows_(tile.count * tile.group),
          height_(tile_rows(rows_, MR)) {
        for (int64_t r = 0; r < rows_; ++r) {
            const float* q = tile.queries + (r / tile.group) * tile.query_stride + (r % tile.group) * cache.head_dim;
            for (int64_t i = 0; i < cache.head_dim; ++i) scratch_.queries[r * width_ + i] = q[i] * scale;
        }
    }

    int64_t rows() const { return rows_; }

    // State of the keys in split `s`. Rows that see none of them get maximum -inf.
    void compute_split(int64_t s, SoftmaxState state) {
        const int64_t start = s * kSplit;
        const int64_t seen = tile_.first + tile_.count - start;
        const int64_t keys = seen < kSplit ? seen : kSplit;
        find_rows(start);
        pack_keys(keys);
        score(keys);
        softmax(start, keys, state);
        weigh_values(start, keys, state.out);
    }

    // Folds `part` into `running`. Split 0 is seen by every row, so `running` is never empty.
    void merge(SoftmaxState running, SoftmaxState part) const {
        for (int64_t r = 0; r < rows_; ++r) {
            if (part.maximum[r] == -INFINITY) continue;
            float *to = running.out + r * width_, *from = part.out + r * width_;
            const float top = running.maximum[r] > part.maximum[r] ? running.maximum[r] : part.maximum[r];
            const vf old_weight = exp(splat(running.maximum[r] - top)), new_weight = exp(splat(part.maximum[r] - top));
            running.maximum[r] = top;
            running.total[r] = running.total[r] * old_weight[0] + part.total[r] * new_weight[0];
            for (int64_t i = 0; i < width_; i += VW)
                store(to + i, fma(load(from + i), new_weight, load(to + i) * old_weight));
        }
    }

    // Writes the normalised result of every row.
    void finish(SoftmaxState state) const {
        for (int64_t r = 0; r < rows_; ++r) {
            float* to = tile_.out + (r / tile_.group) * tile_.out_stride + (r % tile_.group) * cache_.head_dim;
            const float inverse = 1.0f / state.total[r];
            for (int64_t i = 0; i < cache_.head_dim; ++i) to[i] = state.out[r * width_ + i] * inverse;
        }
    }

  private:
    static constexpr int64_t kAhead = 2 * VW;

    // Addresses of the key rows of this split and the next, as far as the context goes.
    void find_rows(int64_t start) {
        const int64_t end = tile_.first + tile_.count, last = start + 2 * kSplit < end ? start + 2 * kSplit : end;
        for (int64_t position = start; position < last;) {
            const int64_t offset = position % cache_.block_size;
            const float* row =
                cache_.keys(tile_.blocks[position / cache_.block_size], tile_.head) + offset * cache_.head_dim;
            const int64_t rest =
                cache_.block_size - offset < last - position ? cache_.block_size - offset : last - position;
            for (int64_t i = 0; i < rest; ++i, row += cache_.head_dim) rows_at_[position - start + i] = row;
            position += rest;
        }
        num_rows_at_ = last - start;
    }

    // Blocks lie anywhere, so the hardware does not see what comes next: while it transposes some keys, this asks for
    // the keys kAhead later (of the next split too), and for the values that the end of the split will read.
    void pack_keys(int64_t keys) {
        for (int64_t j = 0; j < keys; j += VW) {
            const float* rows[VW];
            for (int64_t i = 0; i < VW; ++i) {
                rows[i] = rows_at_[j + i < keys ? j + i : keys - 1];
                prefetch_row(rows[i] + cache_.value_offset());
                if (j + i + kAhead < num_rows_at_) prefetch_row(rows_at_[j + i + kAhead]);
            }
            transpose_rows(rows, cache_.head_dim, scratch_.keys + j / NR * cache_.head_dim * NR + j % NR, NR);
        }
    }

    void prefetch_row(const float* row) const {
        for (int64_t i = 0; i < cache_.head_dim; i += 16) prefetch(row + i);
    }

    void score(int64_t keys) {
        for (int64_t j = 0; j < keys; j += NR) {
            const float* panel = scratch_.keys + j * cache_.head_dim;
            const Output to{Epilogue::kStore, nullptr, scratch_.scores + j, kScoreStride, NR};
            for (int64_t row = 0; row < rows_; row += height_) {
                with_rows(rows_ - row < height_ ? rows_ - row : height_, [&](auto r) {
                    tile_f32<decltype(r)::value>(scratch_.queries + row * width_, width_, panel, cache_.head_dim,
                                                 to.at_row(row), Ahead{panel, 0, 0});
                });
            }
        }
    }

    // Turns scores into exp(score - maximum), exactly 0 at and after the row's own position + 1.
    void softmax(int64_t start, int64_t keys, SoftmaxState state) {
        for (int64_t r = 0; r < rows_; ++r) {
            float* s = scratch_.scores + r * kScoreStride;
            const int64_t visible = tile_.first + r / tile_.group + 1 - start;
            const int64_t valid = visible < 0 ? 0 : visible < keys ? visible : keys;
            for (int64_t j = valid; j % VW != 0; ++j) s[j] = -INFINITY;
            vf top = splat(-INFINITY);
            for (int64_t j = 0; j < valid; j += VW) top = vmax(top, load(s + j));
            const float maximum = valid ? max_lane(top) : -INFINITY;
            vf total = vf{};
            int64_t j = 0;
            for (; j < valid; j += VW) {
                const vf p = exp(load(s + j) - splat(maximum));
                total += p;
                store(s + j, p);
            }
            for (; j < keys; j += VW) store(s + j, vf{});
            state.maximum[r] = maximum;
            state.total[r] = sum(total);
        }
    }

    // out = P V. V is read in place where its rows are whole panels, else from a padded copy.
    void weigh_values(int64_t start, int64_t keys, float* out) {
        const bool in_place = cache_.head_dim % NR == 0;
        if (!in_place) pack_values(keys);
        for (int64_t c = 0; c < width_; c += NR) {
            for (int64_t row = 0; row < rows_; row += height_) {
                with_rows(rows_ - row < height_ ? rows_ - row : height_, [&](auto r) {
                    constexpr int R = decltype(r)::value;
                    const float* p = scratch_.scores + row * kScoreStride;
                    vf acc[R][NV];
                    clear<R>(acc);
                    if (in_place) {
                        multiply_blocks<R>(p, start, keys, c, row == 0, acc);
                    } else {
                        multiply<R>(p, kScoreStride, scratch_.values + c * kSplit, NR, keys, acc);
                    }
                    write_tile<R, Epilogue::kStore>(
                        acc, Output{Epilogue::kStore, nullptr, out + row * width_ + c, width_, NR});
                });
            }
        }
    }

    // With `ahead`, asks for the keys of the next split on the way.
    template <int R>
    PS_INLINE void multiply_blocks(const float* p, int64_t start, int64_t keys, int64_t column, bool ahead,
                                   vf (&acc)[R][NV]) const {
        for (int64_t j = 0; j < keys;) {
            const int64_t offset = (start + j) % cache_.block_size;
            const int64_t rest = keys - j < cache_.block_size - offset ? keys - j : cache_.block_size - offset;
            const float* values = rows_at_[j] + cache_.value_offset() + column;
            if (ahead && kSplit + j + rest <= num_rows_at_) {
                multiply<R, true>(p + j, kScoreStride, values, cache_.head_dim, rest, acc,
                                  rows_at_[kSplit + j] + column);
            } else {
                multiply<R>(p + j, kScoreStride, values, cache_.head_dim, rest, acc);
            }
            j += rest;
        }
    }

    void pack_values(int64_t keys) {
        for (int64_t j = 0; j < keys; ++j) {
            const float* v = rows_at_[j] + cache_.value_offset();
            for (int64_t i = 0; i < width_; ++i)
                scratch_.values[i / NR * kSplit * NR + j * NR + i % NR] = i < cache_.head_dim ? v[i] : 0.0f;
        }
    }

    const PagedCache& cache_;
    const QueryTile& tile_;
    const AttentionScratch& scratch_;
    const int64_t width_, rows_, height_;
    int64_t num_rows_at_ = 0;
    const float* rows_at_[2 * kSplit];
};

}  // namespace ps
