// Weights in groups (groups.h) on AMX (native/amx.h), for many rows: the same whole numbers, and the same float32 sums
// in the same order, so the same result to the last bit.
//
// The 16 bits of a rounded row are two planes of bytes, t = 256 * high + low with high signed and low not, and a group
// is one product with each, of half the inputs that an instruction could take in the same time. The sums leave the
// registers for the group's scale, while the next group's products run.
//
//     a row of x:   group 0: [low: 32 bytes | high: 32 bytes]   group 1: …       as much room as 16-bit numbers take
//     a panel:      group 0: int8 [8 quads of inputs][16 outputs][4], scales [16], minima [16]   group 1: …
//
// Panels are widened to that once for all rows of an item.
#pragma once

#ifdef __AMX_TILE__

#include "../native/amx.h"
#include "groups.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kGroupTilesFrom = 12;  // rows
constexpr int kQuadsOfGroup = kGroup / 4;

// A group of a panel with its quants as the product wants them on its right.
template <class Bits>
struct Quads {
  static constexpr int64_t kQuants = kPanel * kGroup;
  static constexpr int64_t kBytes = kQuants + Bits::kBytes - Bits::kQuants;

  static void widen(const uint8_t* group, uint8_t* to) {
    for (int quad = 0; quad < kQuadsOfGroup; quad++) {
      const __m512i first = pair(group, 2 * quad), second = pair(group, 2 * quad + 1);
      _mm512_storeu_si512(to + quad * 4 * kPanel, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
    memcpy(to + kQuants, group + Bits::kQuants, kBytes - kQuants);
  }

 private:
  // Two inputs of 16 outputs as bytes, in the lower half of 32 bits each.
  static OCTAVO_INLINE __m512i pair(const uint8_t* group, int number) {
    const typename Bits::Packed packed = Bits::load(group, number / Bits::kPairsAtOnce, 0);
    const __m512i pairs = (__m512i)Bits::pair(packed, number % Bits::kPairsAtOnce);
    return _mm512_cvtepu16_epi32(_mm512_cvtepi16_epi8(pairs));
  }
};

// Up to 16 rows through a panel. Rows beyond the last are added up as well, from whatever there is, and not written.
template <class Bits>
struct GroupProducts {
  const Linear& l;
  const uint8_t* panel;
  const RoundedRows& x;
  int64_t row;

  // Registers: sums of low and high of even groups, of odd groups; rows' low and high; the panel's group.
  static TileShapes shapes(int count) {
    TileShapes shapes;
    for (int t = 0; t < 4; t++) shapes.set(t, count);
    for (int t = 4; t < 6; t++) shapes.set(t, count, kGroup);
    shapes.set(6, kQuadsOfGroup);
    return shapes;
  }

  OCTAVO_INLINE void run(int64_t column, int count, const Target& y) const {
    alignas(64) int32_t sums[4][kTileRows][kPanel];
    Vec<16> totals[kTileRows] = {};
    const int64_t groups = l.in / kGroup;
    multiply<0>(0);
    int64_t group = 0;
    for (; group + 2 <= groups; group += 2) {
      multiply<2>(group + 1);
      add<0>(group, sums, totals);
      if (group + 2 < groups) multiply<0>(group + 2);
      add<2>(group + 1, sums + 2, totals);
    }
    if (group < groups) add<0>(group, sums, totals);
    for (int m = 0; m < kTileRows; m++)
      if (m < count) finish(l, column, totals[m] * x.steps[row + m], y.rows + (row + m) * y.stride, y.add);
  }

 private:
  template <int T>
  OCTAVO_INLINE void multiply(int64_t group) const {
    const uint8_t* rows = (const uint8_t*)(x.values + row * x.in) + group * 2 * kGroup;
    tile_load<4>(rows, 2 * x.in);
    tile_load<5>(rows + kGroup, 2 * x.in);
    tile_load<6>(panel + group * Quads<Bits>::kBytes);
    tile_zero<T>();
    tile_zero<T + 1>();
    tile_multiply_bytes<T, 4, 6>();
    tile_multiply_signed_bytes<T + 1, 5, 6>();
  }

  template <int T>
  OCTAVO_INLINE void add(int64_t group, int32_t (*sums)[kTileRows][kPanel], Vec<16>* totals) const {
    tile_store<T>(sums[0]);
    tile_store<T + 1>(sums[1]);
    const uint8_t* from = panel + group * Quads<Bits>::kBytes + Quads<Bits>::kQuants;
    const float* sums_of_rows = x.sums + group * x.stride + row;
    const Vec<16> scales = load<16>((const Half*)from);
    Vec<16> minima{};
    if constexpr (Bits::kMinima) minima = load<16>((const Half*)from + kPanel);
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; m++) {
      Whole low, high;
      memcpy(&low, sums[0][m], sizeof low);
      memcpy(&high, sums[1][m], sizeof high);
      totals[m] += __builtin_convertvector(low + (high << 8), Vec<16>) * scales;
      if constexpr (Bits::kMinima) totals[m] += minima * sums_of_rows[m];
    }
  }
};

template <class Bits>
inline void group_tiles_linear(Threads& threads, const Linear& l, const float* x, int64_t x_stride, const Target& y,
                               int64_t rows, float* memory) {
  const int64_t groups = l.in / kGroup;
  const RoundedRows rounded(l, rows, memory);
  each_row(threads, rows, l.in, [&](int64_t row) {
    uint8_t* to = (uint8_t*)(rounded.values + row * l.in);
    round_row(x + row * x_stride, rounded, row, [&](int64_t i, Shorts values) {
      const __m256i both = (__m256i)values;
      uint8_t* low = to + i / kGroup * 2 * kGroup + i % kGroup;
      _mm_storeu_si128((__m128i*)low, _mm256_cvtepi16_epi8(both));
      _mm_storeu_si128((__m128i*)(low + kGroup), _mm256_cvtepi16_epi8(_mm256_srli_epi16(both, 8)));
    });
  });
  linear_items(threads, l, rows, kRowsOfItem, [&](int64_t first, int64_t count, int64_t row, int64_t part, int thread) {
    const uint8_t* panels = (const uint8_t*)l.weight + first * groups * Bits::kBytes;
    uint8_t* wide = (uint8_t*)threads.scratch(thread);
    for (int64_t g = 0; g < count * groups; g++)
      Quads<Bits>::widen(panels + g * Bits::kBytes, wide + g * Quads<Bits>::kBytes);
    for (int64_t at = row; at < row + part; at += kTileRows) {
      const int together = (int)smaller(kTileRows, row + part - at);
      use_tiles(threads, thread, GroupProducts<Bits>::shapes(together));
      for (int64_t panel = 0; panel < count; panel++) {
        const GroupProducts<Bits> products{l, wide + panel * groups * Quads<Bits>::kBytes, rounded, at};
        products.run((first + panel) * kPanel, together, y);
      }
    }
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
