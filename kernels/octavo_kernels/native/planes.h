// A float32 number as three of bfloat16, for products on AMX (native/amx.h) that are as exact as in float32:
//
//     x = high + middle + low      high: the first 16 bits of x; middle: those of x - high; low: what is left
//
// which is x, bit for bit: 24 bits are three times 8. Products with bfloat16 numbers are exact in float32, and so is
// every sum but for rounding, as elsewhere. All three go to the same sums, low to high for each step of the depth, so a
// row's result is the same, to the last bit, in any batch.
//
// A number that is not finite is high alone, so that an infinity times a number is one, as in float32. Numbers below
// 2^-103 lose their last bits: what is below 2^-126 counts as zero.
#pragma once

#ifdef __AMX_TILE__

#include "amx.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kPlanes = 3;
constexpr int64_t kStep = kTileRowBytes / sizeof(BFloat16);  // numbers of the depth in one product, at most
constexpr int kTileColumns = 16;

// 16 numbers: low to `to`, middle `plane` numbers behind, high as far behind that.
OCTAVO_INLINE void split_planes(__m512 x, BFloat16* to, int64_t plane) {
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000), infinity = _mm512_set1_epi32(0x7f800000);
  const __m512i bits = _mm512_castps_si512(x);
  const __mmask16 finite = _mm512_cmplt_epu32_mask(_mm512_andnot_si512(_mm512_set1_epi32(INT32_MIN), bits), infinity);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i high = _mm512_mask_mov_epi32(_mm512_and_si512(bits, upper), nan, _mm512_set1_epi32(0x7fc00000));
  const __m512 rest = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(high));
  const __m512i middle = _mm512_and_si512(_mm512_castps_si512(rest), upper);
  const __m512 low = _mm512_sub_ps(rest, _mm512_castsi512_ps(middle));
  const __m512i planes[kPlanes] = {_mm512_castps_si512(low), middle, high};
  for (int p = 0; p < kPlanes; p++)
    _mm256_storeu_si256((__m256i*)(to + p * plane), _mm512_cvtepi32_epi16(_mm512_srli_epi32(planes[p], 16)));
}

// 32 numbers in two vectors, which become one of each plane: cheaper, for whom NaN is as good as an infinity, which is NaN
// in all planes but high. One plane is the numbers rounded to the nearest in bfloat16.
template <int Planes>
OCTAVO_INLINE void split_planes(__m512 first, __m512 second, BFloat16* to, int64_t plane) {
  if constexpr (Planes == 1) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    return;
  }
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  __m512 even = _mm512_permutex2var_ps(first, evens, second), odd = _mm512_permutex2var_ps(first, odds, second);
  for (int p = Planes - 1; p >= 0; p--) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16), high = _mm512_castps_si512(odd);
    constexpr int low_or_upper_of_high = 0xf8;
    _mm512_storeu_si512(to + p * plane, _mm512_ternarylogic_epi32(low, high, upper, low_or_upper_of_high));
    if (!p) return;
    even = _mm512_sub_ps(even, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(even), upper)));
    odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(high, upper)));
  }
}

// Registers: sums of four times 16 columns, three planes of rows, a part of a column.
inline TileShapes planes_shapes(int rows, int64_t depth = kStep, int64_t columns = kTileColumns) {
  TileShapes shapes;
  for (int t = 0; t < 4; t++) shapes.set(t, rows, columns * (int64_t)sizeof(float));
  for (int t = 4; t < 7; t++) shapes.set(t, rows, depth * (int64_t)sizeof(BFloat16));
  shapes.set(7, (int)depth / 2, columns * 2 * (int64_t)sizeof(BFloat16));
  return shapes;
}

// rows: those of low, or of the one plane; plane: numbers to middle's, and from there to high's. stride: bytes from row to
// row.
template <int Planes = kPlanes>
OCTAVO_INLINE void load_planes(const BFloat16* rows, int64_t plane, int64_t stride = kTileRowBytes) {
  tile_load<4>(rows, stride);
  if constexpr (Planes == 1) return;
  tile_load<5>(rows + plane, stride);
  tile_load<6>(rows + 2 * plane, stride);
}

// Adds the products of the planes with what register 7 holds.
template <int Column, int Planes = kPlanes>
OCTAVO_INLINE void add_planes() {
  tile_multiply_bfloat16<Column, 4, 7>();
  if constexpr (Planes == 1) return;
  tile_multiply_bfloat16<Column, 5, 7>();
  tile_multiply_bfloat16<Column, 6, 7>();
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
