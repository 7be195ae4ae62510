// Row-wise words of a decoder layer: RMS norm, rotary embedding, the write into the paged cache, int8 quantisation.
// Every function treats one row by itself, in a fixed order, so that results do not depend on the batch.
#pragma once

#include "simd.h"

namespace ps {

// out = x / rms(x) * weight (RMSNorm, Zhang & Sennrich 2019). `x` and `out` may be the same.
static inline void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
    vf squares = vf{};
    int64_t i = 0;
    for (; i + VW <= n; i += VW) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (int64_t j = i; j < n; ++j) total += x[j] * x[j];
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    for (i = 0; i + VW <= n; i += VW) store(out + i, load(x + i) * splat(scale) * load(weight + i));
    for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

// Rotates one head in place. Pair i is elements i and i + n / 2 (the convention of Hugging Face checkpoints).
static inline void rotate(float* x, const float* cosine, const float* sine, int64_t n) {
    const int64_t half = n / 2;
    int64_t i = 0;
    for (; i + VW <= half; i += VW) {
        const vf a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
        store(x + i, fma(a, c, vf{} - b * s));
        store(x + half + i, fma(b, c, a * s));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = b * cosine[i] + a * sine[i];
    }
}

// Quantised activations. A row is scaled to 16-bit integers q, because 8 bits are too few beside the outliers that
// decoder activations have; the products stay 8-bit by taking q apart, q = 256 * high + low, with two sums per output.
// Layouts, four consecutive values of a row per 32-bit lane of the dot product:
//   u8   two planes (high, low) of value + 128   (VNNI and AMX: unsigned times signed, corrected by 128 * column sum)
//   s16  one plane, (q0, q2), (q1, q3) as int16 pairs, q small enough for 32-bit sums   (x86 without VNNI)
//   s8   two planes (high, low) of signed bytes   (anything else)
#if defined(__AVX512VNNI__) || (PS_VW == 8 && defined(__AVXVNNI__))
constexpr int kActBytes = 1, kActOffset = 128;
#elif defined(__AVX2__)
constexpr int kActBytes = 2, kActOffset = 0;
#else
constexpr int kActBytes = 1, kActOffset = 0;
#endif
constexpr int kPlanes = kActBytes == 1 ? 2 : 1;

// Values that int8 rows are padded to (zeros), so that every kernel may read whole 64-byte steps.
constexpr int64_t kIntStep = 64;
static PS_INLINE int64_t padded_k(int64_t k) { return (k + kIntStep - 1) / kIntStep * kIntStep; }
static PS_INLINE int64_t plane_bytes(int64_t k) { return padded_k(k) * kActBytes; }

// Largest |q|. Two planes: the high one stays within [-127, 127]. One plane: sums of k products with int8 fit 32 bits.
static PS_INLINE float largest_q(int64_t k) {
    constexpr int64_t kTwoPlanes = 127 * 256;
    const int64_t one_plane = INT32_MAX / (127 * k);
    return static_cast<float>(kPlanes == 2 || one_plane > kTwoPlanes ? kTwoPlanes : one_plane);
}

// Symmetric dynamic quantisation of a row; returns the scale. `out` holds kPlanes * plane_bytes(n).
static inline float quantize_row(const float* x, int64_t n, uint8_t* out) {
    vf top = vf{};
    int64_t i = 0;
    for (; i + VW <= n; i += VW) top = vmax(top, vmax(load(x + i), vf{} - load(x + i)));
    float largest = max_lane(top);
    for (; i < n; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    const float inverse = largest > 0.0f ? largest_q(n) / largest : 0.0f;
    uint8_t* low_plane = out + plane_bytes(n);
    const auto put = [out, low_plane](int64_t j, int32_t q) {
        if (kPlanes == 2) {
            const int32_t high = (q + 128) >> 8;
            out[j] = static_cast<uint8_t>(high + kActOffset);
            low_plane[j] = static_cast<uint8_t>(q - 256 * high + kActOffset);
        } else {
            const int64_t slot = j / 4 * 4 + (j % 2) * 2 + j % 4 / 2;
            const int16_t wide = static_cast<int16_t>(q);
            std::memcpy(out + 2 * slot, &wide, 2);
        }
    };
    i = 0;
#if PS_VW == 16 && defined(__AVX512VNNI__)
    const __m512i offset = _mm512_set1_epi32(kActOffset);
    for (; i + 16 <= n; i += 16) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
        const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
        const __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(high, 8));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(high, offset)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(low_plane + i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(low, offset)));
    }
#endif
    for (; i < n; ++i) put(i, static_cast<int32_t>(std::nearbyint(x[i] * inverse)));
    for (; i < padded_k(n); ++i) put(i, 0);
    return largest / largest_q(n);
}

}  // namespace ps
