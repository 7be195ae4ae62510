// fp32 product C[M,N] = A[M,K] * W[N,K]^T on weights packed in column panels.
//
// Packed layout: panels of NR columns, zero-padded at the end; inside a panel, for each k, NR consecutive floats. The
// stream is sequential, and one packed copy serves every M. Each output is one chain of fused multiply-adds over
// k = 0..K-1, whatever M is and whichever row tile it falls in: a row's result is bitwise independent of the rest of
// the batch and of chunking.
#pragma once

#include <type_traits>
#include <unistd.h>

#include "team.h"

namespace ps {

#if PS_VW == 16
constexpr int NV = 2, MR = 14;  // 28 of 32 registers accumulate
#elif defined(__aarch64__)
constexpr int NV = 4, MR = 6;
#else
constexpr int NV = 2, MR = 6;
#endif
constexpr int NR = NV * VW;

enum class Epilogue { kStore, kAdd, kSiluMul };

// Weights [N,K] as panels; `paired` panels hold NR/2 gate columns, then the NR/2 up columns of the same outputs.
struct MatrixF32 {
    const float* panels;
    const float* bias;  // packed and padded like the columns, or null
    int64_t n, k;       // n: columns, both halves together when paired
};

static inline int64_t num_panels(int64_t n) { return (n + NR - 1) / NR; }

// Row of the unpacked matrix that column `j` of panel `p` holds, or -1 for padding.
static inline int64_t source_row(int64_t p, int64_t j, int64_t n, bool paired) {
    if (!paired) {
        const int64_t row = p * NR + j;
        return row < n ? row : -1;
    }
    const int64_t half = NR / 2, out = p * half + j % half;
    if (out >= n / 2) return -1;
    return j < half ? out : n / 2 + out;
}

static inline void pack_panel_f32(const float* w, int64_t n, int64_t k, bool paired, int64_t p, float* panel) {
    for (int64_t j = 0; j < NR; ++j) {
        const int64_t row = source_row(p, j, n, paired);
        for (int64_t i = 0; i < k; ++i) panel[i * NR + j] = row < 0 ? 0.0f : w[row * k + i];
    }
}

// Where the results of one panel go: rows of stride `ldc`, `cols` valid columns (fewer than a panel's at the edge).
struct Output {
    Epilogue epilogue;
    const float* bias;  // of the panel, or null
    float* c;
    int64_t ldc, cols;

    Output at_row(int64_t row) const { return {epilogue, bias, c + row * ldc, ldc, cols}; }
};

// Columns that one panel yields.
static PS_INLINE int64_t panel_outputs(Epilogue e) { return e == Epilogue::kSiluMul ? NR / 2 : NR; }

template <int R, Epilogue E>
static PS_INLINE void write_tile(const vf (&acc)[R][NV], const Output& to_tile) {
    constexpr int kOutV = E == Epilogue::kSiluMul ? NV / 2 : NV;
    const float* bias = to_tile.bias;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        vf out[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) out[v] = bias ? acc[r][v] + load(bias + v * VW) : acc[r][v];
        if (E == Epilogue::kSiluMul) {
#pragma GCC unroll 4
            for (int v = 0; v < NV / 2; ++v) out[v] = silu(out[v]) * out[v + NV / 2];
        }
        float* to = to_tile.c + r * to_tile.ldc;
        if (to_tile.cols == kOutV * VW) {
#pragma GCC unroll 4
            for (int v = 0; v < kOutV; ++v)
                store(to + v * VW, E == Epilogue::kAdd ? load(to + v * VW) + out[v] : out[v]);
        } else {
            float edge[NR];
            for (int v = 0; v < kOutV; ++v) store(edge + v * VW, out[v]);
            for (int64_t j = 0; j < to_tile.cols; ++j) to[j] = E == Epilogue::kAdd ? to[j] + edge[j] : edge[j];
        }
    }
}

template <int R>
static PS_INLINE void finish_tile(const vf (&acc)[R][NV], const Output& to) {
    switch (to.epilogue) {
        case Epilogue::kStore:
            return write_tile<R, Epilogue::kStore>(acc, to);
        case Epilogue::kAdd:
            return write_tile<R, Epilogue::kAdd>(acc, to);
        case Epilogue::kSiluMul:
            return write_tile<R, Epilogue::kSiluMul>(acc, to);
    }
}

// R rows times NV vectors of columns over k; consecutive k of `b` lie `ldb` floats apart (NR in a packed panel). While
// it computes, it asks for the same stretch of memory at `ahead`, if not null: what will be streamed next.
template <int R, bool kAhead = false>
static PS_INLINE void multiply(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k, vf (&acc)[R][NV],
                               const float* ahead = nullptr) {
    // Few base pointers, so that all row addresses fit into registers.
    const float *a3 = a + 3 * lda, *a6 = a + 6 * lda, *a9 = a + 9 * lda, *a12 = a + 12 * lda;
    for (int64_t i = 0; i < k; ++i) {
        if (kAhead) {
#pragma GCC unroll 4
            for (int line = 0; line < NR * 4; line += 64) prefetch(reinterpret_cast<const char*>(ahead) + line);
            ahead += ldb;
        }
        vf column[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) column[v] = load(b + v * VW);
        b += ldb;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const float* base = r < 3 ? a : r < 6 ? a3 : r < 9 ? a6 : r < 12 ? a9 : a12;
            const vf x = splat(base[(r % 3) * lda + i]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) acc[r][v] = fma(x, column[v], acc[r][v]);
        }
    }
}

// A stretch of k during which a tile asks for the next panel: passes over one panel share that panel's successor.
struct Ahead {
    const float* panel;
    int64_t first, last;
};

template <int R>
static PS_INLINE void clear(vf (&acc)[R][NV]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[r][v] = vf{};
}

template <int R>
static void tile_f32(const float* a, int64_t lda, const float* panel, int64_t k, const Output& to, Ahead next) {
    vf acc[R][NV];
    clear<R>(acc);
    multiply<R>(a, lda, panel, NR, next.first, acc);
    multiply<R, true>(a + next.first, lda, panel + next.first * NR, NR, next.last - next.first, acc,
                      next.panel + next.first * NR);
    multiply<R>(a + next.last, lda, panel + next.last * NR, NR, k - next.last, acc);
    finish_tile<R>(acc, to);
}

// Calls f(std::integral_constant<int, R>) for the run-time row count R = `rows` in 1..MR.
template <int R = MR, typename F>
static PS_INLINE void with_rows(int64_t rows, F&& f) {
    if constexpr (R == 1) {
        f(std::integral_constant<int, 1>{});
    } else {
        if (rows == R) {
            f(std::integral_constant<int, R>{});
        } else {
            with_rows<R - 1>(rows, f);
        }
    }
}

// Rows of a tile such that `m` rows split into tiles of nearly equal height, none above `most`.
static inline int64_t tile_rows(int64_t m, int64_t most) {
    const int64_t tiles = (m + most - 1) / most;
    return (m + tiles - 1) / tiles;
}

// Rows of `k` floats that fill half of the L2 cache: they stay there while the panels stream past.
static inline int64_t cached_rows(int64_t k) {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    static const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
    static const int64_t found = 0;
#endif
    const int64_t rows = (found > 0 ? found : 512 * 1024) / 2 / (4 * k);
    return rows > MR ? rows : MR;
}

// This thread's panels of C = A W^T. `a` has `m` rows of stride `lda`.
static void gemm_f32(const Team& team, const float* a, int64_t lda, int64_t m, const MatrixF32& w, Epilogue epilogue,
                     float* c, int64_t ldc) {
    const int64_t outputs = panel_outputs(epilogue), n_out = epilogue == Epilogue::kSiluMul ? w.n / 2 : w.n;
    const Range mine = team.share((n_out + outputs - 1) / outputs);
    const int64_t block_rows = tile_rows(m, cached_rows(w.k)), height = tile_rows(block_rows, MR);
    for (int64_t block = 0; block < m; block += block_rows) {
        const int64_t block_end = block + block_rows < m ? block + block_rows : m;
        const int64_t passes = (block_end - block + height - 1) / height;
        for (int64_t p = mine.first; p < mine.last; ++p) {
            const float* panel = w.panels + p * w.k * NR;
            const int64_t cols = n_out - p * outputs < outputs ? n_out - p * outputs : outputs;
            const Output to{epilogue, w.bias ? w.bias + p * NR : nullptr, c + p * outputs, ldc, cols};
            for (int64_t pass = 0; pass < passes; ++pass) {
                const int64_t row = block + pass * height;
                const Ahead next{panel + w.k * NR, w.k * pass / passes, w.k * (pass + 1) / passes};
                with_rows(block_end - row < height ? block_end - row : height, [&](auto rows) {
                    tile_f32<decltype(rows)::value>(a + row * lda, lda, panel, w.k, to.at_row(row), next);
                });
            }
        }
    }
}

}  // namespace ps
