// Product with int8 weights: C[M,N] = scale_a[m] * scale_w[n] * (Q_a W_int8^T). Weights have a scale per output
// channel, activations are 16-bit integers with a scale per row (see rows.h), so the error is that of the weights.
//
// Packed layout: panels of NR columns; for each group of four k, NR columns times four bytes. K is padded to 64. The
// integer sums are exact, so VNNI and AMX give bitwise the same result, whatever M is.
#pragma once

#include "gemm_f32.h"
#include "rows.h"

namespace ps {

// Weights [N,K] quantised. `scales` and `offsets` are per packed column; an offset is kActOffset * column sum.
struct MatrixI8 {
    const int8_t* panels;
    const float* scales;
    const int32_t* offsets;
    const float* bias;
    int64_t n, k;
};

// Quantised rows of activations: planes first, one after the other.
struct RowsI8 {
    const uint8_t* values;
    const float* scales;
    int64_t stride;  // bytes
};

// Rows whose sums fit into the registers, beside the weights' int16 halves where there is one plane.
constexpr int kIntRows = kPlanes == 2 ? MR / 2 : MR - MR / 3;

static inline void pack_panel_i8(const float* w, int64_t n, int64_t k, bool paired, int64_t p, int8_t* panel,
                                 float* scales, int32_t* offsets) {
    std::memset(panel, 0, static_cast<size_t>(padded_k(k) * NR));
    for (int64_t j = 0; j < NR; ++j) {
        const int64_t row = source_row(p, j, n, paired);
        scales[j] = 0.0f;
        offsets[j] = 0;
        if (row < 0) continue;
        const float* x = w + row * k;
        float largest = 0.0f;
        for (int64_t i = 0; i < k; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
        if (largest == 0.0f) continue;
        scales[j] = largest / 127.0f;
        int32_t column_sum = 0;
        for (int64_t i = 0; i < k; ++i) {
            const int32_t q = static_cast<int32_t>(std::nearbyint(x[i] * (127.0f / largest)));
            panel[(i / 4 * NR + j) * 4 + i % 4] = static_cast<int8_t>(q);
            column_sum += q;
        }
        offsets[j] = kActOffset * column_sum;
    }
}

static PS_INLINE int32_t load_i32(const uint8_t* p) {
    int32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// One group of four k: four activations of a row, repeated in every lane, and the weights of VW columns, both in the
// form that the dot product of this CPU takes.
#if defined(__AVX512VNNI__) || (PS_VW == 8 && defined(__AVXVNNI__))
struct ActLanes {
    vi bytes;
    PS_INLINE explicit ActLanes(const uint8_t* a) { bytes = splat_i(load_i32(a)); }
};
struct WeightLanes {
    vi bytes;
    PS_INLINE explicit WeightLanes(const int8_t* w) : bytes(load_i(reinterpret_cast<const int32_t*>(w))) {}
    PS_INLINE vi dot(vi acc, const ActLanes& a) const {
#if PS_VW == 16
        return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a.bytes, (__m512i)bytes);
#else
        return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)a.bytes, (__m256i)bytes);
#endif
    }
};
#elif defined(__AVX2__)
static PS_INLINE vi madd_pairs(vi a, vi b) {
#if PS_VW == 16
    return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}
struct ActLanes {
    vi even, odd;
    PS_INLINE explicit ActLanes(const uint8_t* a) {
        // Two loads of their own, so that each is broadcast straight from memory.
        even = splat_i(load_i32(a));
        odd = splat_i(load_i32(a + 4));
    }
};
struct WeightLanes {
    vi even, odd;  // bytes 0 and 2, 1 and 3 of each lane, as int16 pairs
    PS_INLINE explicit WeightLanes(const int8_t* w) {
        typedef int16_t vs __attribute__((vector_size(VW * 4)));
        const vs bytes = (vs)load_i(reinterpret_cast<const int32_t*>(w));
        even = (vi)((bytes << 8) >> 8);
        odd = (vi)(bytes >> 8);
    }
    PS_INLINE vi dot(vi acc, const ActLanes& a) const {
        return acc + (madd_pairs(even, a.even) + madd_pairs(odd, a.odd));
    }
};
#else
struct ActLanes {
    const uint8_t* bytes;
    PS_INLINE explicit ActLanes(const uint8_t* a) : bytes(a) {}
};
struct WeightLanes {
    const int8_t* bytes;
    PS_INLINE explicit WeightLanes(const int8_t* w) : bytes(w) {}
    PS_INLINE vi dot(vi acc, const ActLanes& a) const {
        for (int l = 0; l < VW; ++l)
            for (int i = 0; i < 4; ++i) acc[l] += static_cast<int8_t>(a.bytes[i]) * bytes[4 * l + i];
        return acc;
    }
};
#endif

// acc holds the integer sums of R rows, the low plane's after the high plane's; scales them and hands them to the fp32
// epilogue.
template <int R>
static PS_INLINE void finish_tile_i8(const vi (&acc)[kPlanes * R][NV], const MatrixI8& w, int64_t p,
                                     const float* row_scales, const Output& to) {
    vf value[R][NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            const vi offset = load_i(w.offsets + p * NR + v * VW);
            vf exact = __builtin_convertvector(acc[r][v] - offset, vf);
            if (kPlanes == 2) {
                exact = fma(exact, splat(256.0f), __builtin_convertvector(acc[(kPlanes - 1) * R + r][v] - offset, vf));
            }
            value[r][v] = exact * (load(w.scales + p * NR + v * VW) * splat(row_scales[r]));
        }
    finish_tile<R>(value, to);
}

template <int R>
static void tile_i8(const RowsI8& a, int64_t row, const MatrixI8& w, int64_t p, const Output& to) {
    const int64_t groups = padded_k(w.k) / 4, lda = a.stride;
    const uint8_t *x = a.values + row * lda, *x3 = x + 3 * lda, *x6 = x + 6 * lda, *x9 = x + 9 * lda,
                  *x12 = x + 12 * lda;
    const int64_t plane = plane_bytes(w.k);
    const int8_t* b = w.panels + p * groups * 4 * NR;
    vi acc[kPlanes * R][NV] = {};
    for (int64_t g = 0; g < groups; ++g) {
        const WeightLanes first(b), second(b + VW * 4);
#pragma GCC unroll 16
        for (int r = 0; r < kPlanes * R; ++r) {
            const int at = r % R;
            const uint8_t* base = at < 3 ? x : at < 6 ? x3 : at < 9 ? x6 : at < 12 ? x9 : x12;
            const ActLanes act(base + (at % 3) * lda + (r / R) * plane + g * 4 * kActBytes);
            acc[r][0] = first.dot(acc[r][0], act);
            acc[r][1] = second.dot(acc[r][1], act);
#pragma GCC unroll 4
            for (int v = 2; v < NV; ++v) acc[r][v] = WeightLanes(b + v * VW * 4).dot(acc[r][v], act);
        }
        b += 4 * NR;
    }
    finish_tile_i8<R>(acc, w, p, a.scales + row, to);
}

}  // namespace ps

#include "gemm_amx.h"

namespace ps {

// Asks for the part of panel `p` that belongs to this pass. Passes go over one panel again and again, and the hardware
// does not guess that the next one follows.
static PS_INLINE void prefetch_panel_part(const MatrixI8& w, int64_t p, int64_t row, int64_t rows, int64_t m) {
    const int64_t bytes = padded_k(w.k) * NR;
    for (int64_t at = bytes * row / m / 64 * 64; at < bytes * (row + rows) / m; at += 64)
        prefetch(w.panels + p * bytes + at);
}

// This thread's panels of C.
static void gemm_i8(const Team& team, const RowsI8& a, int64_t m, const MatrixI8& w, Epilogue epilogue, float* c,
                    int64_t ldc) {
    const int64_t outputs = panel_outputs(epilogue), n_out = epilogue == Epilogue::kSiluMul ? w.n / 2 : w.n;
    const Range mine = team.share((n_out + outputs - 1) / outputs);
    const bool amx = amx_ready() && m >= kAmxRows;
    const int64_t most = amx ? kAmxTile : kIntRows, fit = cached_rows(a.stride / 4);
    const int64_t block_rows = amx ? (fit + most - 1) / most * most : tile_rows(m, fit);
    const int64_t height = amx ? most : tile_rows(block_rows, most);
    for (int64_t block = 0; block < m; block += block_rows) {
        const int64_t block_end = block + block_rows < m ? block + block_rows : m, in_block = block_end - block;
        for (int64_t p = mine.first; p < mine.last; ++p) {
            const int64_t cols = n_out - p * outputs < outputs ? n_out - p * outputs : outputs;
            const Output to{epilogue, w.bias ? w.bias + p * NR : nullptr, c + p * outputs, ldc, cols};
            for (int64_t row = block; row < block_end; row += height) {
                const int64_t rows = block_end - row < height ? block_end - row : height;
                if (in_block > height) prefetch_panel_part(w, p + 1, row - block, rows, in_block);
                if (amx) {
                    tile_amx(a, row, rows, w, p, to.at_row(row));
                } else {
                    with_rows<kIntRows>(rows,
                                        [&](auto r) { tile_i8<decltype(r)::value>(a, row, w, p, to.at_row(row)); });
                }
            }
        }
    }
}

}  // namespace ps
