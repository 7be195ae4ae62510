// VW rows of floats turned into columns: out[i * stride + j] = rows[j][i].
#pragma once

#include "simd.h"

namespace ps {

#if PS_VW == 16
// 16x16 through 32-bit, 64-bit and two 128-bit-lane interleaves: 64 shuffles.
static PS_INLINE void transpose_16(const float* const* rows, int64_t at, float* out, int64_t stride) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(rows[i] + at);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const __m512d lo = _mm512_castps_pd(b[i + h]), hi = _mm512_castps_pd(b[i + 2 + h]);
            a[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
            a[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
        }
    // a[4g + c], lane l: elements 4l + c of rows 4g..4g+3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512 even01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88),
                     odd01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
        const __m512 even23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
        const __m512 odd23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_ps(out + c * stride, _mm512_shuffle_f32x4(even01, even23, 0x88));
        _mm512_storeu_ps(out + (4 + c) * stride, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
        _mm512_storeu_ps(out + (8 + c) * stride, _mm512_shuffle_f32x4(even01, even23, 0xdd));
        _mm512_storeu_ps(out + (12 + c) * stride, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
    }
}
#elif PS_VW == 8
// 8x8 through 32-bit, 64-bit and 128-bit-lane interleaves.
static PS_INLINE void transpose_8(const float* const* rows, int64_t at, float* out, int64_t stride) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(rows[i] + at);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            a[i + 2 * h] = _mm256_shuffle_ps(b[i + h], b[i + 2 + h], 0x44);
            a[i + 2 * h + 1] = _mm256_shuffle_ps(b[i + h], b[i + 2 + h], 0xee);
        }
    // a[4g + c], lane l: elements 4l + c of rows 4g..4g+3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        _mm256_storeu_ps(out + c * stride, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
        _mm256_storeu_ps(out + (4 + c) * stride, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
    }
}
#endif

static PS_INLINE void transpose_rows(const float* const* rows, int64_t length, float* out, int64_t stride) {
    int64_t i = 0;
#if PS_VW == 16
    for (; i + 16 <= length; i += 16) transpose_16(rows, i, out + i * stride, stride);
#elif PS_VW == 8
    for (; i + 8 <= length; i += 8) transpose_8(rows, i, out + i * stride, stride);
#endif
    for (; i < length; ++i)
        for (int j = 0; j < VW; ++j) out[i * stride + j] = rows[j][i];
}

}  // namespace ps
