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

// Sums on their way to y. Those of one block are written while the next one's products run, some at each step of it, and
// the lines that they go to are asked for during their own: y is larger than the second cache.
template <int P>
class Results {
 public:
  Results(const Linear& l, const PlaneTiles<P>& planes, const Target& y) : l_(l), planes_(planes), y_(y) {}

  // Takes the first N registers: of `panels` panels from `column` on, two or four, and the group of rows from `row` on,
  // then those of the next group.
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
    group_ = row;
    count_ = planes_.count(row);
    next_ = place_ = 0;
    left_ = panels * count_;
    if (N > panels) left_ += panels * planes_.count(row + PlaneTiles<P>::kRows);
  }

  // Asks for a row's lines in two panels.
  OCTAVO_INLINE void ask_for(int64_t column, int64_t row) const {
    const float* to = y_.rows + row * y_.stride + column;
    __builtin_prefetch(to, 1);
    __builtin_prefetch(to + kPanel, 1);
  }

  // Vectors to write at each step of a block, so that all are written at its end.
  int64_t share() const { return divided_up(left_, planes_.tiles); }

  void write_all() { write(left_); }

  OCTAVO_INLINE void write(int64_t vectors) {
    vectors = smaller(vectors, left_);
    left_ -= vectors;
    for (; vectors > 0; vectors--) {
      const int64_t column = column_ + (next_ & (panels_ - 1)) * kPanel, row = group_ + place_;
      Ints offsets, first, last;
      memcpy(&offsets, l_.offsets + column, sizeof offsets);
      memcpy(&first, sums_[next_][place_], sizeof first);
      memcpy(&last, sums_[next_][(P - 1) * count_ + place_], sizeof last);
      finish(l_, column, together<P>(first + offsets, last + offsets, planes_.steps[row]), y_.rows + row * y_.stride,
             y_.add);
      if (++place_ < count_) continue;
      place_ = 0;
      next_++;
      if (next_ & (panels_ - 1)) continue;
      group_ += PlaneTiles<P>::kRows;
      count_ = planes_.count(group_);
    }
  }

 private:
  const Linear& l_;
  const PlaneTiles<P>& planes_;
  const Target& y_;
  int64_t left_ = 0;            // vectors
  int64_t column_, group_;      // of the first register; of the next vector's group of rows
  int panels_, count_;          // of each group; rows of that group
  int next_, place_;            // register and row of the next vector
  alignas(64) int32_t sums_[4][kTileRows][kPanel];
};

// Registers: four sums, two groups of rows, two parts of panels.

// A group of rows through N panels, two or four.
template <int N, int P>
inline void one_group(Threads& threads, int thread, const PanelTiles& panels, int64_t column,
                      const PlaneTiles<P>& planes, int64_t row, bool ahead, Results<P>& results) {
  const int64_t bytes = planes.tile_rows(row) * kTileRowBytes, share = results.share();
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
    panels.load<6>(0, tile, ahead);
    tile_multiply_bytes<0, 4, 6>();
    panels.load<7>(1, tile, ahead);
    tile_multiply_bytes<1, 4, 7>();
    if constexpr (N == 4) {
      panels.load<6>(2, tile, ahead);
      tile_multiply_bytes<2, 4, 6>();
      panels.load<7>(3, tile, ahead);
      tile_multiply_bytes<3, 4, 7>();
    }
    results.write(share);
  }
  results.template take<N>(N, column, row);
}

// Two groups of rows, the first of them full, through two panels, from `panel` on.
template <int P>
inline void two_groups(Threads& threads, int thread, const PanelTiles& panels, int panel, int64_t column,
                       const PlaneTiles<P>& planes, int64_t row, bool ahead, Results<P>& results) {
  const int64_t second = row + planes.kRows, bytes = planes.tile_rows(second) * kTileRowBytes;
  const int64_t rows = planes.kRows + planes.count(second), asked = divided_up(rows, planes.tiles);
  const int64_t share = results.share();
  TileShapes shapes;
  for (int t = 0; t < 8; t++) shapes.set(t, kTileRows);
  shapes.set(2, planes.tile_rows(second));
  shapes.set(3, planes.tile_rows(second));
  shapes.set(5, planes.tile_rows(second));
  use_tiles(threads, thread, shapes);
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  const uint8_t *a = planes.from(row), *b = planes.from(second);
  for (int64_t tile = 0; tile < planes.tiles; tile++, a += kTileBytes, b += bytes) {
    tile_load<4>(a);
    panels.load<6>(panel, tile, ahead);
    tile_multiply_bytes<0, 4, 6>();
    panels.load<7>(panel + 1, tile, ahead);
    tile_multiply_bytes<1, 4, 7>();
    tile_load<5>(b);
    tile_multiply_bytes<2, 5, 6>();
    tile_multiply_bytes<3, 5, 7>();
    results.write(share);
    for (int64_t m = tile * asked; m < smaller((tile + 1) * asked, rows); m++) results.ask_for(column, row + m);
  }
  results.template take<4>(2, column, row);
}

template <int P>
inline void quad_tiles_linear(Threads& threads, const Linear& l, const float* x, int64_t x_stride, const Target& y,
                              int64_t rows, float* memory) {
  const PlaneTiles<P> planes(l, rows, memory);
  each_row(threads, rows, l.in, [&](int64_t row) { split(x + row * x_stride, l.in, planes, row); });
  const int64_t panel = quads_of(l) * kQuad * kPanel;
  linear_items(threads, l, rows, kRowsOfItem, [&](int64_t first, int64_t count, int64_t row, int64_t part, int thread) {
    count = divided_up(count, 2) * 2;  // the weight has an even number of panels
    const PanelTiles panels((const char*)l.weight + first * panel, count, panel);
    Results<P> results(l, planes, y);
    constexpr int64_t of_pair = 2 * PlaneTiles<P>::kRows;
    const int64_t end = row + part, of_pairs = part % of_pair > of_pair / 2 ? end : end - part % of_pair;
    for (int pair = 0; pair < count; pair += 2)
      for (int64_t at = row; at < of_pairs; at += of_pair)
        two_groups(threads, thread, panels, pair, (first + pair) * kPanel, planes, at, at == row, results);
    if (of_pairs < end && count > 2)
      one_group<4>(threads, thread, panels, first * kPanel, planes, of_pairs, of_pairs == row, results);
    else if (of_pairs < end)
      one_group<2>(threads, thread, panels, first * kPanel, planes, of_pairs, of_pairs == row, results);
    results.write_all();
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
