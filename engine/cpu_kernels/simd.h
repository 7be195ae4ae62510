// Vector words: one width chosen at compile time (AVX-512: 16 floats, AVX/AVX2: 8, anything else: 4), as GCC/Clang
// vector extensions, so that the same source compiles on x86-64 and aarch64. Intrinsics appear only where an extension
// has no word for the instruction.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define PS_VW 16
#elif defined(__AVX__)
#define PS_VW 8
#else
#define PS_VW 4
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PS_INLINE inline __attribute__((always_inline))

namespace ps {

constexpr int VW = PS_VW;

typedef float vf __attribute__((vector_size(VW * 4)));
typedef float vf_u __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef int32_t vi_u __attribute__((vector_size(VW * 4), aligned(4), may_alias));

static PS_INLINE vf load(const float* p) { return *reinterpret_cast<const vf_u*>(p); }
static PS_INLINE void store(float* p, vf v) { *reinterpret_cast<vf_u*>(p) = v; }
static PS_INLINE vf splat(float x) { return x - vf{}; }
static PS_INLINE vi load_i(const int32_t* p) { return *reinterpret_cast<const vi_u*>(p); }
static PS_INLINE vi splat_i(int32_t x) { return x - vi{}; }

// a*b + c in one rounding where the machine has it. Spelled out, and contraction is off in the build, so that every
// instance of a template rounds alike.
static PS_INLINE vf fma(vf a, vf b, vf c) {
#if PS_VW == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif PS_VW == 8 && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static PS_INLINE vf vmax(vf a, vf b) {
#if PS_VW == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

static PS_INLINE vf vmin(vf a, vf b) {
#if PS_VW == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return a < b ? a : b;
#endif
}

static PS_INLINE float sum(vf v) {
    float s[VW];
    store(s, v);
    for (int w = VW / 2; w > 0; w /= 2)
        for (int i = 0; i < w; ++i) s[i] += s[i + w];
    return s[0];
}

static PS_INLINE float max_lane(vf v) {
#if PS_VW == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float m = v[0];
    for (int i = 1; i < VW; ++i) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

// exp(x) with about 2 ulp: 2^n * p(r), r = x - n ln 2, degree-6 polynomial (Cephes expf coefficients). Exactly 0 from
// about -104 (AVX-512) or -87 (elsewhere) down, -inf included; above 88 it stays at exp(88).
static PS_INLINE vf exp(vf x) {
#if PS_VW == 16
    x = vmin(vmax(x, splat(-105.0f)), splat(88.0f));
    const vf n = (vf)_mm512_roundscale_ps((__m512)(x * splat(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT);
#else
    const vf lowest = splat(-87.0f);
    const vi dead = x < lowest;
    x = vmin(vmax(x, lowest), splat(88.0f));
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const vf shifted = fma(x, splat(1.44269504088896341f), magic);
    const vf n = shifted - magic;
#endif
    vf r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
#if PS_VW == 16
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const vf y = p * (vf)(((vi)shifted << 23) + splat_i(0x3f800000));
    return (vf)((vi)y & ~dead);
#endif
}

// 1 / x for normal x, to about 1 ulp.
static PS_INLINE vf reciprocal(vf x) {
#if PS_VW == 16
    const vf y = (vf)_mm512_rcp14_ps((__m512)x);
    const vf once = fma(y, fma(vf{} - x, y, splat(1.0f)), y);
    return fma(once, fma(vf{} - x, once, splat(1.0f)), once);
#else
    return splat(1.0f) / x;
#endif
}

static PS_INLINE vf silu(vf x) { return x * reciprocal(splat(1.0f) + exp(vf{} - x)); }

static PS_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace ps
