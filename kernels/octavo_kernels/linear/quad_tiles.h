// y = x W^T + b with int8 weights on AMX (native/amx.h): the same planes of bytes as in quads.h, to the last bit.
//
// Quads of a panel are what the instruction wants on its right, 64 inputs of 16 outputs at a time. On its left it takes
// eight rows of x, both planes of each, or 16 of one plane:
//
//     8 rows:  inputs 0..63:    [high 0: 64 bytes | high 1 | … | high 7 | low 0 | … | low 7]     a kilobyte
//              inputs 64..127:  …              the last rows take no more room than there are
//
// Such a group of rows goes through four panels at once, two groups go through two. Sums begin at zero, not at -128
// times the sum of the weights, which is added at the end: what leaves 32 bits on the way comes back.
#pragma once

#ifdef __AMX_TILE__

#include "../gated_activation/native.h"
#include "quads.h"
#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

// All rows of x, in memory of `quad_tiles_room` numbers.
template <int P>
struct PlaneTiles {
  static constexpr int kCount = P;
  static constexpr int64_t kRows = kTileRows / P;  // of a group

  float* steps;
  uint8_t* bytes;
  int64_t rows, tiles, width;  // width: inputs, filled up to whole tiles

  PlaneTiles(const Linear& l, int64_t rows, float* memory)
      : steps(memory),
        bytes((uint8_t*)(((uintptr_t)(memory + rows) + 63) / 64 * 64)),
        rows(rows),
        tiles(divided_up(l.in, kTileRowBytes)),
        width(tiles * kTileRowBytes) {}

  // Of the group from this row on, as many rows as there are, and what they are in a register.
  int count(int64_t group) const { return (int)smaller(kRows, rows - group); }
  int tile_rows(int64_t group) const { return P * count(group); }
  uint8_t* from(int64_t group) const { return bytes + group * P * width; }

  // A row's first plane, and bytes from a plane to the next.
  uint8_t* first(int64_t row) const { return from(group(row)) + row % kRows * kTileRowBytes; }
  int64_t next_plane(int64_t row) const { return count(group(row)) * kTileRowBytes; }
  // Bytes from 64 inputs to the next.
  int64_t next_line(int64_t row) const { return tile_rows(group(row)) * kTileRowBytes; }

 private:
  static int64_t group(int64_t row) { return row / kRows * kRows; }
};

template <int P>
inline int64_t quad_tiles_room(const Linear& l, int64_t rows) {
  return rows * (1 + P * divided_up(l.in, kTileRowBytes) * kTileRowBytes / 4) + 16;
}

// What the sums of a panel become: its outputs, of which the last may not be there.
template <int P, bool Bias>
struct Outputs {
  __mmask16 there;
  __m512 scales, bias;
  Ints offsets;

  Outputs(const Linear& l, int64_t column, int64_t end)
      : there((__mmask16)((1u << larger(0, smaller(kPanel, end - column))) - 1)),
        scales(_mm512_loadu_ps(l.scales + column)),
        bias(Bias ? _mm512_maskz_loadu_ps(there, l.bias + column) : __m512{}) {
    memcpy(&offsets, l.offsets + column, sizeof offsets);
  }

  // first, last: a row's sums of its first plane and its last. The product is rounded before anything is added to it, as
  // where there is no AMX: this function of it keeps the compiler from making one instruction of both.
  OCTAVO_INLINE __m512 of(const int32_t* first, const int32_t* last, float step) const {
    Ints sums[2];
    memcpy(&sums[0], first, sizeof(Ints));
    memcpy(&sums[1], last, sizeof(Ints));
    const __m512 steps = (__m512)together<P>(sums[0] + offsets, sums[1] + offsets, step);
    const __m512 value = _mm512_mul_round_ps(steps, scales, _MM_FROUND_CUR_DIRECTION);
    return Bias ? value + bias : value;
  }
};

// Sums on their way to y. Those of one block are written while the next one's products run, a part at each of its first
// steps, and the lines that they go to are asked for during their own: y is larger than the second cache. Gated: of each
// pair of panels the first has gates and the second what they are for, and silu(gate) * up is what is written.
template <int P, bool Gated>
class Results {
 public:
  Results(const Linear& l, const PlaneTiles<P>& planes, const Target& y) : l_(l), planes_(planes), y_(y) {}

  // Takes the first N registers: of `panels` panels, two or four, whose outputs in y begin at `column`, and the group of
  // rows from `row` on, then those of the next group.
  template <int N>
  OCTAVO_INLINE void take(int panels, int64_t column, int64_t row) {
    write_all();
    tile_store<0>(sums_[0]);
    tile_store<1>(sums_[1]);
    if constexpr (N == 4) {
      tile_store<2>(sums_[2]);
      tile_store<3>(sums_[3]);
    }
    panels_ = panels;
    column_ = column;
    row_ = row;
    left_ = N;
    next_ = 0;
  }

  // Asks for a row's lines in two panels.
  OCTAVO_INLINE void ask_for(int64_t column, int64_t row) const {
    const float* to = y_.rows + row * y_.stride + column;
    __builtin_prefetch(to, 1);
    if constexpr (!Gated) __builtin_prefetch(to + kPanel, 1);
  }

  // A register, or two where they belong together; if there is one.
  OCTAVO_INLINE void write_some() {
    if (!left_) return;
    const int32_t* sums = sums_[next_][0];
    const int64_t column = column_ + (next_ & (panels_ - 1)) / (Gated ? 2 : 1) * kPanel;
    const int64_t row = next_ < panels_ ? row_ : row_ + PlaneTiles<P>::kRows;
    next_ += Gated ? 2 : 1;
    left_ -= Gated ? 2 : 1;
    if constexpr (Gated)
      l_.bias ? write_gated<true>(sums, column, row) : write_gated<false>(sums, column, row);
    else if (y_.add)
      l_.bias ? write<true, true>(sums, column, row) : write<false, true>(sums, column, row);
    else
      l_.bias ? write<true, false>(sums, column, row) : write<false, false>(sums, column, row);
  }

  void write_all() {
    while (left_) write_some();
  }

 private:
  // One function for all blocks: where it is a part of others, each could round another of its products.
  template <bool Bias, bool Add>
  __attribute__((noinline)) void write(const int32_t* sums, int64_t column, int64_t row) const {
    const Outputs<P, Bias> outputs(l_, column, l_.out);
    const int64_t count = planes_.count(row), stride = y_.stride;
    const float* steps = planes_.steps + row;
    const int32_t* last = sums + (P - 1) * count * kPanel;
    float* to = y_.rows + row * stride + column;
    for (int64_t m = 0; m < count; m++, to += stride) {
      __m512 value = outputs.of(sums + m * kPanel, last + m * kPanel, steps[m]);
      if constexpr (Add) value += _mm512_maskz_loadu_ps(outputs.there, to);
      _mm512_mask_storeu_ps(to, outputs.there, value);
    }
  }

  template <bool Bias>
  __attribute__((noinline)) void write_gated(const int32_t* sums, int64_t column, int64_t row) const {
    const int64_t half = l_.out / 2, count = planes_.count(row), stride = y_.stride;
    const Outputs<P, Bias> gates(l_, column, half), ups(l_, half + column, l_.out);
    const float* steps = planes_.steps + row;
    const int32_t *last = sums + (P - 1) * count * kPanel, *up = sums + kTileRows * kPanel;
    const int32_t* last_up = last + kTileRows * kPanel;
    float* to = y_.rows + row * stride + column;
    for (int64_t m = 0; m < count; m++, to += stride) {
      const __m512 gate = gates.of(sums + m * kPanel, last + m * kPanel, steps[m]);
      const __m512 value = ups.of(up + m * kPanel, last_up + m * kPanel, steps[m]);
      _mm512_storeu_ps(to, (__m512)silu_mul<16>((Vec<16>)gate, (Vec<16>)value));
    }
  }

  const Linear& l_;
  const PlaneTiles<P>& planes_;
  const Target& y_;
  int64_t column_, row_;     // of the first register
  int panels_;               // of each group
  int left_ = 0, next_ = 0;  // registers
  alignas(64) int32_t sums_[4][kTileRows][kPanel];
};

// Registers: four sums, two groups of rows, two parts of panels.

constexpr TileShapes kFullShapes = [] {
  TileShapes shapes;
  for (int t = 0; t < 8; t++) shapes.set(t, kTileRows);
  return shapes;
}();

// The panels of an item, in pairs: neighbours, or a gate and what it is for, half the weight apart.
struct Pairs {
  const PanelTiles& panels;
  int64_t half;       // panels; 0: neighbours
  int64_t begin = 0;  // pair

  int64_t first(int64_t pair) const { return half ? begin + pair : 2 * (begin + pair); }
  int64_t second(int64_t pair) const { return half ? begin + pair + half : 2 * (begin + pair) + 1; }
};

// A group of rows through N panels, two or four: the first pairs of an item.
template <int N, int P, bool Gated>
inline void one_group(Threads& threads, int thread, const Pairs& pairs, int64_t column, const PlaneTiles<P>& planes,
                      int64_t row, bool ahead, Results<P, Gated>& results) {
  const int64_t bytes = planes.tile_rows(row) * kTileRowBytes;
  TileShapes shapes;
  for (int t = 0; t < 5; t++) shapes.set(t, planes.tile_rows(row));
  for (int t = 6; t < 8; t++) shapes.set(t, kTileRows);
  use_tiles(threads, thread, shapes);
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (N == 4) {
    tile_zero<2>();
    tile_zero<3>();
  }
  const uint8_t* a = planes.from(row);
  for (int64_t tile = 0; tile < planes.tiles; tile++, a += bytes) {
    tile_load<4>(a);
    pairs.panels.load<6>(pairs.first(0), tile, ahead);
    tile_multiply_bytes<0, 4, 6>();
    pairs.panels.load<7>(pairs.second(0), tile, ahead);
    tile_multiply_bytes<1, 4, 7>();
    if constexpr (N == 4) {
      pairs.panels.load<6>(pairs.first(1), tile, ahead);
      tile_multiply_bytes<2, 4, 6>();
      pairs.panels.load<7>(pairs.second(1), tile, ahead);
      tile_multiply_bytes<3, 4, 7>();
    }
    results.write_some();
  }
  results.template take<N>(N, column, row);
}

// Two groups of rows, the first of them full, through a pair of panels.
template <int P, bool Gated>
inline void two_groups(Threads& threads, int thread, const Pairs& pairs, int64_t pair, int64_t column,
                       const PlaneTiles<P>& planes, int64_t row, Coming& coming, const char* const* next,
                       Results<P, Gated>& results) {
  const int64_t second = row + planes.kRows, bytes = planes.tile_rows(second) * kTileRowBytes;
  const int64_t rows = planes.kRows + planes.count(second), asked = divided_up(rows, planes.tiles);
  if (bytes == kTileBytes) {
    use_tiles(threads, thread, kFullShapes);
  } else {
    TileShapes shapes = kFullShapes;
    shapes.set(2, planes.tile_rows(second));
    shapes.set(3, planes.tile_rows(second));
    shapes.set(5, planes.tile_rows(second));
    use_tiles(threads, thread, shapes);
  }
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  const uint8_t *a = planes.from(row), *b = planes.from(second);
  for (int64_t tile = 0; tile < planes.tiles; tile++, a += kTileBytes, b += bytes) {
    tile_load<4>(a);
    pairs.panels.load<6>(pairs.first(pair), tile, false);
    tile_multiply_bytes<0, 4, 6>();
    pairs.panels.load<7>(pairs.second(pair), tile, false);
    tile_multiply_bytes<1, 4, 7>();
    tile_load<5>(b);
    tile_multiply_bytes<2, 5, 6>();
    tile_multiply_bytes<3, 5, 7>();
    coming.ask<2>(next);
    results.write_some();
    for (int64_t m = tile * asked; m < smaller((tile + 1) * asked, rows); m++) results.ask_for(column, row + m);
  }
  results.template take<4>(2, column, row);
}

inline bool can_be_gated(const Linear& l) { return l.in % kTileRowBytes == 0 && l.out % (2 * kPanel) == 0; }

// Gated: the weight's outputs are gates and, in its second half, what they are for; y is half as wide as the weight.
template <int P, bool Gated>
inline void quad_tiles_linear(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows,
                              float* memory) {
  const PlaneTiles<P> planes(l, rows, memory);
  each_source_row(threads, x, rows, l.in, [&](const float* row, int64_t number) { split(row, l.in, planes, number); });
  const int64_t panel = quads_of(l) * kQuad * kPanel, out = Gated ? l.out / 2 : l.out;
  linear_items(threads, out, rows, kRowsOfItem, [&](const Panels& of_item, int64_t row, int64_t part, int thread) {
    const int64_t first = of_item.first;
    // The weight has an even number of panels.
    const int64_t count = Gated ? of_item.count : divided_up(of_item.count, 2) * 2;
    const int64_t in_pairs = Gated ? count : count / 2, of_y = kPanel * (Gated ? 1 : 2);
    const PanelTiles panels((const char*)l.weight + first * panel, Gated ? 0 : count, panel);
    const Pairs pairs{panels, Gated ? out / kPanel : 0};
    Results<P, Gated> results(l, planes, y);
    constexpr int64_t two = 2 * PlaneTiles<P>::kRows;
    const int64_t end = row + part, twos = part % two > two / 2 ? end : end - part % two;
    for (int64_t pair = 0; pair < in_pairs; pair++) {
      const char* next[2] = {panels.panels + pairs.first(pair + 1) * panel,
                             panels.panels + pairs.second(pair + 1) * panel};
      Coming coming(0, panel, divided_up(twos - row, two) * planes.tiles);
      for (int64_t at = row; at < twos; at += two)
        two_groups(threads, thread, pairs, pair, first * kPanel + pair * of_y, planes, at, coming, next, results);
    }
    for (int64_t pair = 0; twos < end && pair < in_pairs; pair += 2) {
      const Pairs rest{panels, pairs.half, pair};
      if (pair + 1 < in_pairs)
        one_group<4>(threads, thread, rest, first * kPanel + pair * of_y, planes, twos, twos == row, results);
      else
        one_group<2>(threads, thread, rest, first * kPanel + pair * of_y, planes, twos, twos == row, results);
    }
    results.write_all();
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
