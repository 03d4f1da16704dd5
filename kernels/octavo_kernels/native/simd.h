// Vectors of L floats, in the compiler's own vector types: the same source becomes AVX2 or AVX-512.
//
// Files that include this are compiled once for each instruction set, with OCTAVO_ISA as the name of a namespace. What
// is compiled for one set must never run on a processor without it, so nothing here may end up as a function that the
// linker shares between the sets: no templates of the standard library, everything in the namespace.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define OCTAVO_INLINE inline __attribute__((always_inline))

namespace octavo {
namespace OCTAVO_ISA {

#ifdef __AVX512F__
constexpr int kLanes = 16;  // of the widest vector
#else
constexpr int kLanes = 8;
#endif

template <int L>
struct Types {
  typedef float Float __attribute__((vector_size(4 * L)));
  typedef int32_t Int __attribute__((vector_size(4 * L)));
  typedef uint32_t Unsigned __attribute__((vector_size(4 * L)));
  typedef uint16_t Short __attribute__((vector_size(2 * L)));
};

template <int L>
using Vec = typename Types<L>::Float;

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

struct Int8 {
  int8_t value;
};

// Whether numbers of a type mean something only with a scale beside them.
template <class T>
constexpr bool is_scaled = false;
template <>
inline constexpr bool is_scaled<Int8> = true;

// Whether two numbers of the depth of a product lie side by side, in a weight and in the KV cache alike.
template <class T>
constexpr bool is_paired = false;
template <>
inline constexpr bool is_paired<BFloat16> = true;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// x - 0 is x, so that this is one load. x + 0 is not where x is -0, and costs an addition, and a place in its port.
template <int L>
OCTAVO_INLINE Vec<L> splat(float x) {
  return x - Vec<L>{};
}

template <int L>
OCTAVO_INLINE Vec<L> load(const float* from) {
  Vec<L> x;
  memcpy(&x, from, sizeof x);
  return x;
}

template <int L>
OCTAVO_INLINE Vec<L> load(const BFloat16* from) {
  typename Types<L>::Short bits;
  memcpy(&bits, from, sizeof bits);
  return (Vec<L>)(__builtin_convertvector(bits, typename Types<L>::Unsigned) << 16);
}

// L pairs become two vectors.
template <int L>
OCTAVO_INLINE void load_pairs(const BFloat16* from, Vec<L>* first, Vec<L>* second) {
  typename Types<L>::Unsigned pairs;
  memcpy(&pairs, from, sizeof pairs);
  *first = (Vec<L>)(pairs << 16);
  *second = (Vec<L>)(pairs & 0xffff0000);
}

template <int L>
OCTAVO_INLINE Vec<L> load(const Half* from) {
  if constexpr (L == 8) {
    return (Vec<L>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
  }
#ifdef __AVX512F__
  else {
    return (Vec<L>)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)from));
  }
#endif
}

template <int L>
OCTAVO_INLINE Vec<L> load(const Int8* from) {
  if constexpr (L == 8) {
    return (Vec<L>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
  }
#ifdef __AVX512F__
  else {
    return (Vec<L>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
  }
#endif
}

template <int L>
OCTAVO_INLINE void store(float* to, Vec<L> x) {
  memcpy(to, &x, sizeof x);
}

// L pairs; the second of each goes `apart` behind the first.
template <int L>
OCTAVO_INLINE void widen_pairs(const BFloat16* from, float* to, int64_t apart) {
  Vec<L> first, second;
  load_pairs<L>(from, &first, &second);
  store<L>(to, first);
  store<L>(to + apart, second);
}

OCTAVO_INLINE float widened(float x) { return x; }

OCTAVO_INLINE float widened(BFloat16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

OCTAVO_INLINE float widened(Half x) { return _cvtsh_ss(x.bits); }

// Rounded to nearest, ties to even; NaN stays NaN.
OCTAVO_INLINE void narrow(float x, float* to) { *to = x; }

OCTAVO_INLINE void narrow(float x, BFloat16* to) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  to->bits = x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

OCTAVO_INLINE void narrow(float x, Half* to) { to->bits = (uint16_t)_cvtss_sh(x, 0); }

template <int L>
OCTAVO_INLINE float sum(Vec<L> x) {
  float total = 0;
  for (int i = 0; i < L; i++) total += x[i];
  return total;
}

// e^x to within two units of the last place. Below -87 it stays at e^-87; NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds n to a whole number and leaves it in the low bits, from
// where it is moved into the exponent. The polynomial for e^r is Cephes'.
template <int L>
OCTAVO_INLINE Vec<L> exponential(Vec<L> x) {
  typedef typename Types<L>::Int Int;
  const Vec<L> low = splat<L>(-87.0f), high = splat<L>(88.0f), rounder = splat<L>(12582912.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vec<L> shifted = x * 1.44269504f + rounder;
  const Vec<L> n = shifted - rounder;
  const Vec<L> r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec<L> p = splat<L>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Int exponent = ((Int)shifted << 23) + (127 << 23);
  return p * (Vec<L>)exponent;
}

// 2^x for x <= 0, to within two units of the last place; 0 far below, from minus infinity on; NaN stays NaN.
//
// x = n + r with 0 <= r < 1, and 2^r is a polynomial, of the least error with 1 at 0.
OCTAVO_INLINE Vec<kLanes> power_of_two(Vec<kLanes> x) {
#ifdef __AVX512F__
  const Vec<kLanes> r = (Vec<kLanes>)_mm512_maskz_reduce_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEG_INF);
#else
  const Vec<kLanes> n = (Vec<kLanes>)_mm256_floor_ps((__m256)x), r = x - n;
#endif
  Vec<kLanes> p = splat<kLanes>(2.179465846e-4f);
  p = p * r + 1.241492390e-3f;
  p = p * r + 9.681169368e-3f;
  p = p * r + 5.548248637e-2f;
  p = p * r + 2.402298985e-1f;
  p = p * r + 6.931470039e-1f;
  p = p * r + 1.0f;
#ifdef __AVX512F__
  return (Vec<kLanes>)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)x);  // which takes n of x
#else
  const Types<kLanes>::Int exponent = (Types<kLanes>::Int)_mm256_cvtps_epi32((__m256)n) + 127;
  p *= (Vec<kLanes>)(exponent << 23);
  return x < -126.0f ? Vec<kLanes>{} : p;
#endif
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
