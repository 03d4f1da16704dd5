// y = x W^T + b with weights in groups (groups.h) on AMX (native/amx.h), with the same whole numbers.
//
// A group of a panel is what the instruction wants on its right, 32 inputs of 16 outputs. On its left are eight rows of
// x, whose 16 bits are two planes of signed bytes, t = 256 * high + low:
//
//     8 rows:  inputs 0..31:     [high 0: 32 bytes | … | high 7 | low 0 | … | low 7]     half a kilobyte
//              inputs 32..63:    …                   rows that are not there are zero; bytes in the order of a quad
//
// So a product is the sums of one group, which are scaled and added up in float32 while the next one's are made. Four
// bits go this way from `kGroupTilesFrom` rows on: an item's panels are widened to bytes first.
#pragma once

#ifdef __AMX_TILE__

#include "groups.h"
#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kGroupTilesFrom = 12;  // rows of four bits

// A group of a panel in four bits, widened to bytes.
struct FourBitsAsBytes {
  static constexpr int64_t kQuants = EightBits::kQuants;
  static constexpr int64_t kBytes = kQuants + FourBits::kBytes - FourBits::kQuants;
  static constexpr bool kMinima = true;

  static void widen(const uint8_t* group, uint8_t* to) {
    for (int quad = 0; quad < kGroup / 4; quad++) {
      const UnsignedPairs packed = load_pairs_of<FourBits>(group, quad / 2, 0) >> quad % 2 * 8;
      const UnsignedPairs bytes = (packed & 15) | (packed & 240) << 4;
      memcpy(to + quad * 4 * kPanel, &bytes, sizeof bytes);
    }
    memcpy(to + kQuants, group + FourBits::kQuants, kBytes - kQuants);
  }
};

// All rows of x, in memory of `group_tiles_room` numbers.
struct GroupTiles {
  static constexpr int64_t kRows = kTileRows / 2;
  static constexpr int64_t kBytes = kTileRows * kGroup;  // of a register

  float* steps;
  float* sums;  // [rows / 8][groups][8]: of t, where there are minima
  int8_t* bytes;
  int64_t rows, groups;

  GroupTiles(const Linear& l, int64_t rows, float* memory)
      : steps(memory),
        sums(memory + rows),
        bytes((int8_t*)(((uintptr_t)(sums + divided_up(rows, kRows) * kRows * (l.in / kGroup)) + 63) / 64 * 64)),
        rows(rows),
        groups(l.in / kGroup) {}

  float* sums_from(int64_t row) const { return sums + row / kRows * groups * kRows; }

  // Of the eight rows that this one is of.
  int8_t* from(int64_t row) const { return bytes + row / kRows * groups * kBytes; }
};

inline int64_t group_tiles_room(const Linear& l, int64_t rows) {
  const int64_t groups = divided_up(rows, GroupTiles::kRows) * (l.in / kGroup);
  return rows + groups * (GroupTiles::kRows + GroupTiles::kBytes / 4) + 16;
}

// A row with a number that is not finite has a step of NaN, and so has its result.
template <bool Sums>
inline void split_groups(const float* x, const GroupTiles& to, int64_t row) {
  constexpr int64_t plane = GroupTiles::kRows * kGroup;
  const Size size = size_of(x, to.groups * kGroup);
  const __m512 factor = _mm512_set1_ps(size.largest > 1e-30f ? kGroupSteps / size.largest : 0);
  to.steps[row] = size.largest / kGroupSteps + size.poison;
  const __m512 rounder = _mm512_set1_ps(12582912.0f);
  const __m256i quad = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  int8_t* high = to.from(row) + row % to.kRows * kGroup;
  for (int64_t group = 0; group < to.groups; group++, x += kGroup, high += to.kBytes) {
    const auto rounded = [&](const float* from) {  // as round_row does, with one rounding
      const __m512 shifted = _mm512_fmadd_ps(_mm512_loadu_ps(from), factor, rounder);
      return _mm512_cvtepi32_epi16(_mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(rounder)));
    };
    const __m512i t = _mm512_inserti64x4(_mm512_castsi256_si512(rounded(x)), rounded(x + 16), 1);
    if constexpr (Sums) {
      const __m512i pairs = _mm512_madd_epi16(t, _mm512_set1_epi16(1));
      to.sums_from(row)[group * to.kRows + row % to.kRows] = (float)_mm512_reduce_add_epi32(pairs);
    }
    const __m512i upper = _mm512_srai_epi16(_mm512_add_epi16(t, _mm512_set1_epi16(128)), 8);
    _mm256_storeu_si256((__m256i*)high, _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(upper), quad));
    _mm256_storeu_si256((__m256i*)(high + plane), _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(t), quad));
  }
}

// The rows behind the last one of its eight.
inline void clear_groups(const GroupTiles& to) {
  const int64_t there = to.rows % to.kRows, missing = (to.kRows - there) * kGroup;
  if (!there) return;
  int8_t* high = to.from(to.rows) + there * kGroup;
  for (int64_t group = 0; group < to.groups; group++, high += to.kBytes) {
    memset(high, 0, missing);
    memset(high + to.kRows * kGroup, 0, missing);
  }
}

template <int First>
struct Registers {
  static constexpr int value = First;
};

// Registers: sums of two panels, of one group and of the next; rows; a group of two panels.

// The sums of one group into the registers from C on. ahead: bytes to what is to be asked for meanwhile, or 0.
template <class Bits, int C, int V>
OCTAVO_INLINE void multiply_group(const int8_t* a, const uint8_t* b, int64_t panel, int64_t ahead) {
  if (ahead)
    for (int v = 0; v < V; v++)
      for (int64_t line = 0; line < Bits::kBytes; line += 64) __builtin_prefetch(b + v * panel + ahead + line);
  tile_zero<C>();
  tile_load<4>(a, kGroup);
  tile_load<6>(b);
  tile_multiply_signed<C, 4, 6>();
  if constexpr (V == 2) {
    tile_zero<C + 1>();
    tile_load<7>(b + panel);
    tile_multiply_signed<C + 1, 4, 7>();
  }
}

// Up to M of the eight rows from `row` on through V panels, one or two.
template <class Bits, int V, int M>
inline void group_panels(const Linear& l, const uint8_t* panels, int64_t column, const GroupTiles& x, int64_t row,
                         int64_t ahead, const Target& y) {
  const int64_t panel = x.groups * Bits::kBytes, rows = smaller(M, x.rows - row);
  const int8_t* a = x.from(row);
  const float* sums_of_rows = x.sums_from(row);
  for (int64_t m = 0; m < rows; m++)
    for (int v = 0; v < V; v++) __builtin_prefetch(y.rows + (row + m) * y.stride + column + v * kPanel, 1);
  Vec<kPanel> totals[V][M] = {};
  // What is in the registers from C on, of this group, while the next one's products run.
  const auto add = [&](auto registers, const uint8_t* group, int64_t number) {
    constexpr int C = decltype(registers)::value;
    alignas(64) int32_t sums[V][kTileRows][kPanel];
    tile_store<C>(sums[0]);
    if constexpr (V == 2) tile_store<C + 1>(sums[1]);
    for (int v = 0; v < V; v++) {
      const Vec<kPanel> scales = load<kPanel>(scales_of<Bits>(group + v * panel));
      Vec<kPanel> minima{};
      if constexpr (Bits::kMinima) minima = load<kPanel>(minima_of<Bits>(group + v * panel));
      for (int m = 0; m < M; m++) {
        Whole high, low;
        memcpy(&high, sums[v][m], sizeof high);
        memcpy(&low, sums[v][x.kRows + m], sizeof low);
        totals[v][m] += __builtin_convertvector((high << 8) + low, Vec<kPanel>) * scales;
        if constexpr (Bits::kMinima) totals[v][m] += minima * sums_of_rows[number * x.kRows + m];
      }
    }
  };
  const uint8_t* b = panels;
  multiply_group<Bits, 0, V>(a, b, panel, ahead);
  int64_t group = 1;
  for (; group + 2 <= x.groups; group += 2, b += 2 * Bits::kBytes) {
    multiply_group<Bits, 2, V>(a + group * x.kBytes, b + Bits::kBytes, panel, ahead);
    add(Registers<0>{}, b, group - 1);
    multiply_group<Bits, 0, V>(a + (group + 1) * x.kBytes, b + 2 * Bits::kBytes, panel, ahead);
    add(Registers<2>{}, b + Bits::kBytes, group);
  }
  if (group < x.groups) multiply_group<Bits, 2, V>(a + group * x.kBytes, b + Bits::kBytes, panel, ahead);
  add(Registers<0>{}, b, group - 1);
  if (group < x.groups) add(Registers<2>{}, b + Bits::kBytes, group);
  for (int64_t m = 0; m < rows; m++)
    for (int v = 0; v < V; v++)
      finish(l, column + v * kPanel, totals[v][m] * x.steps[row + m], y.rows + (row + m) * y.stride, y.add);
}

template <class Bits, int V>
inline void group_rows(const Linear& l, const uint8_t* panels, int64_t column, const GroupTiles& x, int64_t row,
                       int64_t rows, int64_t ahead, const Target& y) {
  const int64_t end = row + rows;
  for (; row < end; row += x.kRows, ahead = 0) {
    if (end - row > 4)
      group_panels<Bits, V, 8>(l, panels, column, x, row, ahead, y);
    else if (end - row > 1)
      group_panels<Bits, V, 4>(l, panels, column, x, row, ahead, y);
    else
      group_panels<Bits, V, 1>(l, panels, column, x, row, ahead, y);
  }
}

// `count` panels from this column on.
template <class Bits>
inline void group_columns(const Linear& l, const uint8_t* panels, int64_t count, int64_t column, const GroupTiles& x,
                          int64_t row, int64_t rows, int64_t ahead, const Target& y) {
  const int64_t panel = x.groups * Bits::kBytes;
  int64_t done = 0;
  for (; done + 2 <= count; done += 2)
    group_rows<Bits, 2>(l, panels + done * panel, column + done * kPanel, x, row, rows, ahead, y);
  if (done < count) group_rows<Bits, 1>(l, panels + done * panel, column + done * kPanel, x, row, rows, ahead, y);
}

template <class Bits>
inline void group_tiles_linear(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows,
                               float* memory) {
  const GroupTiles split(l, rows, memory);
  clear_groups(split);
  each_source_row(threads, x, rows, l.in,
                  [&](const float* row, int64_t number) { split_groups<Bits::kMinima>(row, split, number); });
  TileShapes shapes;
  for (int t = 0; t < 4; t++) shapes.set(t, kTileRows);
  shapes.set(4, kTileRows, kGroup);
  for (int t = 6; t < 8; t++) shapes.set(t, kGroup / 4);
  const int64_t panel = split.groups * Bits::kBytes;
  linear_items(threads, l.out, rows, kRowsOfItem, [&](const Panels& of_item, int64_t row, int64_t part, int thread) {
    const int64_t first = of_item.first, count = of_item.count;
    use_tiles(threads, thread, shapes);
    const uint8_t* panels = (const uint8_t*)l.weight + first * panel;
    if constexpr (Bits::kMinima) {
      uint8_t* wide = (uint8_t*)threads.scratch(thread);
      for (int64_t g = 0; g < count * split.groups; g++)
        FourBitsAsBytes::widen(panels + g * Bits::kBytes, wide + g * FourBitsAsBytes::kBytes);
      group_columns<FourBitsAsBytes>(l, wide, count, first * kPanel, split, row, part, 0, y);
    } else {
      const int64_t ahead = count * panel;  // the next item
      group_columns<Bits>(l, panels, count, first * kPanel, split, row, part, ahead, y);
    }
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
