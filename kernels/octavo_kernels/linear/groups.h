// y = x W^T + b with W in groups, as GGUF files hold it: 32 inputs of one output share a scale, and with four bits a
// minimum, both float16.
//
//     four bits:   w = scale * q + minimum,   q from 0 to 15        eight bits:   w = scale * q,   q from -128 to 127
//
// W is packed in panels of 16 outputs, a panel as its groups one behind the other, and a group of a panel as pairs of
// inputs, each pair for all 16 outputs:
//
//     four bits:   256 bytes, four vectors of 16 * 2 numbers of 16 bits. Number [o][i] of vector j holds q of the
//                  output o at the inputs 8 j + i (bits 0-3), 8 j + 2 + i (bits 4-7), 8 j + 4 + i and 8 j + 6 + i
//     eight bits:  512 bytes, int8 [8 quads][16 outputs][4], of a quad the inputs 0, 2, 1, 3: pairs are the lower and
//                  the upper halves of 16 bits, and group_tiles.h wants quads
//     then         scales [16], and with four bits minima [16]
//
// So one row reads a panel from its first byte to its last, 5 bits for a weight of four. Each row of x is rounded to 16
// bits with a step of its own: x[k] = step * t[k], step = largest |x[k]| / 32512. The sum of q * t over a group is a
// whole number that fits 32 bits: two inputs of 16 outputs are one instruction on AVX-512. With the sum of t,
//
//     y = step * sum over groups (scale * (sum of q * t) + minimum * (sum of t))
//
// in one order, whatever else is in the batch, and the same on all instruction sets. Few rows unpack each group again
// where they need it; for many an item's panels are widened once, to 16 bits. Where there are matrix registers, eight
// bits go through group_tiles.h, and so do many rows of four bits.
#pragma once

#include "source.h"
#include "target.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kGroup = 32;  // inputs
constexpr int kPairs = kGroup / 2;
constexpr float kGroupSteps = 256 * 127;  // of two planes of signed bytes (group_tiles.h)
constexpr int64_t kWidenGroupsFrom = 16;  // rows
constexpr int kFewGroupRows = 3;          // of a tile below
constexpr int kAskedOfGroup = 4;          // how often a tile asks, in each group, for what comes

using Whole = typename Types<kLanes>::Int;
typedef uint16_t UnsignedPairs __attribute__((vector_size(4 * kLanes)));
typedef int16_t SignedPairs __attribute__((vector_size(4 * kLanes)));
typedef int16_t Shorts __attribute__((vector_size(2 * kLanes)));

// sums + first[2 i] * second[2 i] + first[2 i + 1] * second[2 i + 1], numbers of 16 bits.
OCTAVO_INLINE Whole add_pairs(Whole sums, Whole first, SignedPairs second) {
#if defined(__AVX512VNNI__)
  return (Whole)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)first, (__m512i)second);
#elif defined(__AVX512F__)
  return sums + (Whole)_mm512_madd_epi16((__m512i)first, (__m512i)second);
#else
  return sums + (Whole)_mm256_madd_epi16((__m256i)first, (__m256i)second);
#endif
}

// 32 bits of each of kLanes outputs from `output` on: pairs from block * kPairsAtOnce on, in any of the forms below.
template <class Bits>
OCTAVO_INLINE typename Bits::Packed load_pairs_of(const uint8_t* group, int block, int output) {
  typename Bits::Packed packed;
  memcpy(&packed, group + (block * kPanel + output) * 4, sizeof packed);
  return packed;
}

// A group of a panel in four bits.
struct FourBits {
  static constexpr int64_t kQuants = kPanel * kGroup / 2;
  static constexpr int64_t kBytes = kQuants + 2 * kPanel * sizeof(Half);
  static constexpr bool kMinima = true;

  static constexpr int kPairsAtOnce = 4;
  using Packed = UnsignedPairs;

  OCTAVO_INLINE static SignedPairs pair(Packed packed, int number) { return (SignedPairs)(packed >> 4 * number & 15); }

  OCTAVO_INLINE static float value(const uint8_t* group, int output, int input) {
    uint16_t packed;
    memcpy(&packed, group + input / 8 * 4 * kPanel + 4 * output + 2 * (input % 2), sizeof packed);
    return (float)(packed >> input % 8 / 2 * 4 & 15);
  }
};

// A group of a panel in eight bits.
struct EightBits {
  static constexpr int64_t kQuants = kPanel * kGroup;
  static constexpr int64_t kBytes = kQuants + kPanel * sizeof(Half);
  static constexpr bool kMinima = false;

  static constexpr int kPairsAtOnce = 2;
  using Packed = SignedPairs;

  OCTAVO_INLINE static SignedPairs pair(Packed packed, int number) {
    return number ? packed >> 8 : (SignedPairs)((UnsignedPairs)packed << 8) >> 8;
  }

  OCTAVO_INLINE static float value(const uint8_t* group, int output, int input) {
    const int place = input % 2 * 2 + input % 4 / 2;
    return (float)(int8_t)group[input / 4 * 4 * kPanel + 4 * output + place];
  }
};

// The same group with its quants widened to 16 bits, pair by pair, for many rows: [16 pairs][16 outputs][2], then its
// scales and minima as they are.
template <class Bits>
struct Widened {
  static constexpr int64_t kQuants = kPanel * kGroup * (int64_t)sizeof(int16_t);
  static constexpr int64_t kBytes = kQuants + Bits::kBytes - Bits::kQuants;
  static constexpr bool kMinima = Bits::kMinima;

  static constexpr int kPairsAtOnce = 1;
  using Packed = SignedPairs;

  OCTAVO_INLINE static SignedPairs pair(Packed pairs, int) { return pairs; }

  static void widen(const uint8_t* group, uint8_t* to) {
    for (int output = 0; output < kPanel; output += kLanes)
      for (int block = 0; block < kPairs / Bits::kPairsAtOnce; block++) {
        const typename Bits::Packed packed = load_pairs_of<Bits>(group, block, output);
        for (int n = 0; n < Bits::kPairsAtOnce; n++) {
          const SignedPairs pairs = Bits::pair(packed, n);
          const int64_t pair = block * Bits::kPairsAtOnce + n;
          memcpy(to + (pair * kPanel + output) * 2 * (int64_t)sizeof(int16_t), &pairs, sizeof pairs);
        }
      }
    memcpy(to + kQuants, group + Bits::kQuants, kBytes - kQuants);
  }
};

template <class Bits>
OCTAVO_INLINE const Half* scales_of(const uint8_t* group) {
  return (const Half*)(group + Bits::kQuants);
}

template <class Bits>
OCTAVO_INLINE const Half* minima_of(const uint8_t* group) {
  return scales_of<Bits>(group) + kPanel;
}

// All rows of x, in memory of `groups_room` numbers.
struct RoundedRows {
  float* steps;     // of each row
  float* sums;      // [rows][groups], of t
  int16_t* values;  // [rows][in]: t
  int64_t in;
};

inline int64_t groups_room(const Linear& l, int64_t rows) { return rows * (1 + l.in / kGroup + l.in / 2); }

// A row with a number that is not finite has a step of NaN, and so has its result.
inline void round_row(const float* x, const RoundedRows& to, int64_t row) {
  const Vec<kLanes> rounder = splat<kLanes>(12582912.0f);  // 1.5 * 2^23 leaves a whole number in the low bits
  const Size size = size_of(x, to.in);
  const float factor = size.largest > 1e-30f ? kGroupSteps / size.largest : 0;
  to.steps[row] = size.largest / kGroupSteps + size.poison;
  for (int64_t group = 0; group < to.in / kGroup; group++) {
    Vec<kLanes> total{};
    for (int64_t i = group * kGroup; i < (group + 1) * kGroup; i += kLanes) {
      const Vec<kLanes> shifted = load<kLanes>(x + i) * factor + rounder;
      const Shorts values = __builtin_convertvector((Whole)shifted - (Whole)rounder, Shorts);
      memcpy(to.values + row * to.in + i, &values, sizeof values);
      total += shifted - rounder;
    }
    to.sums[row * (to.in / kGroup) + group] = sum<kLanes>(total);
  }
}

// M rows through V vectors of columns.
template <class Bits, int V>
struct GroupsTile {
  const Linear& l;
  const uint8_t* from;  // the first of these panels, the others as far apart as they are in the weight
  Panels panels;
  const RoundedRows& x;
  Target y;
  const uint8_t* weight;  // what is asked for begins at its panels, of so many bytes
  int64_t weight_panel;
  Coming& coming;

  template <int M>
  OCTAVO_INLINE void run(int64_t row) const {
    const int64_t groups = l.in / kGroup;
    const int16_t* values = x.values + row * l.in;
    Vec<kLanes> totals[M][V] = {};
    const uint8_t* begins[kPanels];
    for (int p = 0; p < kPanels; p++) begins[p] = weight + panels.number(p) * weight_panel;
    Coming asked = coming;  // in registers
    for (int64_t g = 0; g < groups; g++) {
      const uint8_t* group[V];
      Whole sums[M][V] = {};
      for (int v = 0; v < V; v++) group[v] = from + (v / kVectorsOfPanel * panels.apart * groups + g) * Bits::kBytes;
      constexpr int blocks = kPairs / Bits::kPairsAtOnce;
      for (int block = 0; block < blocks; block++) {
        if (block % (blocks / kAskedOfGroup) == 0) asked.ask<kPanels>(begins);
        typename Bits::Packed packed[V];
        for (int v = 0; v < V; v++) packed[v] = load_pairs_of<Bits>(group[v], block, output(v));
        for (int n = 0; n < Bits::kPairsAtOnce; n++) {
          SignedPairs weights[V];
          for (int v = 0; v < V; v++) weights[v] = Bits::pair(packed[v], n);
          for (int m = 0; m < M; m++) {
            int32_t both;
            memcpy(&both, values + m * l.in + g * kGroup + 2 * (block * Bits::kPairsAtOnce + n), sizeof both);
            for (int v = 0; v < V; v++) sums[m][v] = add_pairs(sums[m][v], Whole{} + both, weights[v]);
          }
        }
      }
      for (int v = 0; v < V; v++) {
        const Vec<kLanes> scales = load<kLanes>(scales_of<Bits>(group[v]) + output(v));
        for (int m = 0; m < M; m++) totals[m][v] += __builtin_convertvector(sums[m][v], Vec<kLanes>) * scales;
        if constexpr (Bits::kMinima) {
          const Vec<kLanes> minima = load<kLanes>(minima_of<Bits>(group[v]) + output(v));
          for (int m = 0; m < M; m++) totals[m][v] += minima * x.sums[(row + m) * groups + g];
        }
      }
    }
    coming = asked;
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++)
        finish(l, column_of(panels, v), totals[m][v] * x.steps[row + m], y.rows + (row + m) * y.stride, y.add);
  }

  static constexpr int kPanels = V / kVectorsOfPanel;

  static OCTAVO_INLINE int output(int v) { return v % kVectorsOfPanel * kLanes; }
};

template <class T>
struct TileOf {
  using Type = T;
};

// All panels of an item, which begin at `from`, and rows from `row` to `end`, in tiles of so many rows. Of: what the
// weight has.
template <class Bits, class Of, int... Rows>
inline void groups_panels(const Linear& l, const uint8_t* from, const Panels& panels, const RoundedRows& x,
                          const Target& y, int64_t row, int64_t end, int64_t passes) {
  constexpr int together = kTileVectors / kVectorsOfPanel;  // panels of the widest tile
  const int64_t groups = l.in / kGroup, weight_panel = groups * Of::kBytes;
  const uint8_t* weight = (const uint8_t*)l.weight;
  int64_t done = 0;
  const auto through = [&](auto tile_of) {
    using Tile = typename decltype(tile_of)::Type;
    for (; done + Tile::kPanels <= panels.count; done += Tile::kPanels) {
      const Panels these = panels.from(done);
      Coming coming = coming_panels(these, weight_panel, passes, groups * kAskedOfGroup);
      const uint8_t* first = from + done * panels.apart * groups * Bits::kBytes;
      in_tiles<Rows...>(end, Tile{l, first, these, x, y, weight, weight_panel, coming}, row);
    }
  };
  through(TileOf<GroupsTile<Bits, kTileVectors>>{});
  if constexpr (together > 2) through(TileOf<GroupsTile<Bits, 2>>{});
  if constexpr (together > 1) through(TileOf<GroupsTile<Bits, kVectorsOfPanel>>{});
}

template <class Bits>
inline void groups_linear(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows,
                          float* memory) {
  const int64_t groups = l.in / kGroup, panel = groups * Bits::kBytes;
  const RoundedRows rounded{memory, memory + rows, (int16_t*)(memory + rows * (1 + groups)), l.in};
  each_source_row(threads, x, rows, l.in, [&](const float* row, int64_t number) { round_row(row, rounded, number); });
  const auto few = [&](const Panels& panels, int64_t row, int64_t part, int) {
    groups_panels<Bits, Bits, kFewGroupRows, 2, 1>(l, (const uint8_t*)l.weight + panels.first * panel, panels, rounded, y,
                                                   row, row + part, divided_up(part, kFewGroupRows));
  };
  if (rows < kWidenGroupsFrom) {
    return spread_items(threads, divided_up(l.out, kPanel), 1, divided_up(rows, kFewGroupRows), rows, few);
  }
  linear_items(threads, l.out, rows, kRowsOfItem, [&](const Panels& panels, int64_t row, int64_t part, int thread) {
    if (part < kWidenGroupsFrom) return few(panels, row, part, thread);
    const uint8_t* narrow = (const uint8_t*)l.weight + panels.first * panel;
    uint8_t* wide = (uint8_t*)threads.scratch(thread);
    for (int64_t g = 0; g < panels.count * groups; g++)
      Widened<Bits>::widen(narrow + g * Bits::kBytes, wide + g * Widened<Bits>::kBytes);
    groups_panels<Widened<Bits>, Bits, kMostRows, 4, 2, 1>(l, wide, panels, rounded, y, row, row + part,
                                                           divided_up(part, kMostRows));
  });
}

// A row of a weight in groups.
template <class Bits>
inline void groups_row(const void* weight, int64_t in, int64_t row, float* to) {
  const uint8_t* panel = (const uint8_t*)weight + row / kPanel * (in / kGroup) * Bits::kBytes;
  const int output = (int)(row % kPanel);
  for (int64_t i = 0; i < in; i++) {
    const uint8_t* group = panel + i / kGroup * Bits::kBytes;
    to[i] = widened(scales_of<Bits>(group)[output]) * Bits::value(group, output, (int)(i % kGroup));
    if constexpr (Bits::kMinima) to[i] += widened(minima_of<Bits>(group)[output]);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
