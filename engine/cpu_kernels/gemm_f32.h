// fp32 product C[M,N] = A[M,K] * W[N,K]^T on weights packed in column panels.
//
// Packed layout: panels of NR columns, zero-padded at the end; inside a panel, for each k, NR consecutive floats. The
// stream is sequential, and one packed copy serves every M. Each output is one chain of fused multiply-adds over
// k = 0..K-1, whatever M is and whichever row tile it falls in: a row's result is bitwise independent of the rest of
// the batch and of chunking.
#pragma once

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

// Where a finished tile goes. `cols` valid output columns are written (NR, or NR/2 after kSiluMul, fewer at the edge).
template <int R, Epilogue E>
static PS_INLINE void finish_tile(vf (&acc)[R][NV], const float* bias, float* c, int64_t ldc, int64_t cols) {
    constexpr int kOutV = E == Epilogue::kSiluMul ? NV / 2 : NV;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        vf out[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) out[v] = bias ? acc[r][v] + load(bias + v * VW) : acc[r][v];
        if (E == Epilogue::kSiluMul) {
#pragma GCC unroll 4
            for (int v = 0; v < NV / 2; ++v) out[v] = silu(out[v]) * out[v + NV / 2];
        }
        float* to = c + r * ldc;
        if (cols == kOutV * VW) {
#pragma GCC unroll 4
            for (int v = 0; v < kOutV; ++v) store(to + v * VW, E == Epilogue::kAdd ? load(to + v * VW) + out[v] : out[v]);
        } else {
            float edge[NR];
            for (int v = 0; v < kOutV; ++v) store(edge + v * VW, out[v]);
            for (int64_t j = 0; j < cols; ++j) to[j] = E == Epilogue::kAdd ? to[j] + edge[j] : edge[j];
        }
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
            ahead += NR;
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

template <int R, Epilogue E>
static void tile_f32(const float* a, int64_t lda, const float* panel, int64_t k, const float* bias, float* c,
                     int64_t ldc, int64_t cols, Ahead next) {
    vf acc[R][NV];
    clear<R>(acc);
    multiply<R>(a, lda, panel, NR, next.first, acc);
    multiply<R, true>(a + next.first, lda, panel + next.first * NR, NR, next.last - next.first, acc, next.panel + next.first * NR);
    multiply<R>(a + next.last, lda, panel + next.last * NR, NR, k - next.last, acc);
    finish_tile<R, E>(acc, bias, c, ldc, cols);
}

// Calls f.template operator()<R>() for the run-time row count `rows` in 1..MR.
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

// Rows kept in the L2 cache while the panels stream past.
constexpr int64_t kRowBlock = 8 * MR;

// This thread's panels of C = A W^T. `a` has `m` rows of stride `lda`.
template <Epilogue E>
static void gemm_f32(const Team& team, const float* a, int64_t lda, int64_t m, const MatrixF32& w, float* c, int64_t ldc) {
    constexpr int64_t kOut = E == Epilogue::kSiluMul ? NR / 2 : NR;
    const int64_t n_out = E == Epilogue::kSiluMul ? w.n / 2 : w.n;
    const Range mine = team.share(num_panels(E == Epilogue::kSiluMul ? n_out * 2 : n_out));
    const int64_t height = tile_rows(m, MR);
    for (int64_t block = 0; block < m; block += kRowBlock / height * height) {
        const int64_t block_end = block + kRowBlock / height * height < m ? block + kRowBlock / height * height : m;
        for (int64_t p = mine.first; p < mine.last; ++p) {
            const float* panel = w.panels + p * w.k * NR;
            const float* bias = w.bias ? w.bias + p * NR : nullptr;
            const int64_t cols = n_out - p * kOut < kOut ? n_out - p * kOut : kOut;
            const int64_t passes = (block_end - block + height - 1) / height;
            for (int64_t pass = 0; pass < passes; ++pass) {
                const int64_t row = block + pass * height, rows = block_end - row < height ? block_end - row : height;
                const Ahead next{panel + w.k * NR, w.k * pass / passes, w.k * (pass + 1) / passes};
                with_rows(rows, [&](auto r) {
                    tile_f32<decltype(r)::value, E>(a + row * lda, lda, panel, w.k, bias, c + row * ldc + p * kOut, ldc, cols, next);
                });
            }
        }
    }
}

}  // namespace ps
