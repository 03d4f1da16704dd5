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

// Sums of a group of rows and a panel, at their end.
template <int P>
OCTAVO_INLINE void finish_group(const Linear& l, int64_t column, const int32_t (*sums)[kPanel],
                                const PlaneTiles<P>& planes, int64_t row, const Target& y) {
  const int count = planes.count(row);
  Ints offsets;
  memcpy(&offsets, l.offsets + column, sizeof offsets);
  for (int m = 0; m < count; m++) {
    Ints first, last;
    memcpy(&first, sums[m], sizeof first);
    memcpy(&last, sums[(P - 1) * count + m], sizeof last);
    finish(l, column, together<P>(first + offsets, last + offsets, planes.steps[row + m]),
           y.rows + (row + m) * y.stride, y.add);
  }
}

// Registers: four sums, two groups of rows, two parts of panels.

// A group of rows through N panels, two or four.
template <int N, int P>
inline void one_group(Threads& threads, int thread, const Linear& l, const PanelTiles& panels, int64_t column,
                      const PlaneTiles<P>& planes, int64_t row, bool ahead, const Target& y) {
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
  }
  alignas(64) int32_t sums[N][kTileRows][kPanel];
  tile_store<0>(sums[0]);
  tile_store<1>(sums[1]);
  if constexpr (N == 4) {
    tile_store<2>(sums[2]);
    tile_store<3>(sums[3]);
  }
  for (int n = 0; n < N; n++) finish_group(l, column + n * kPanel, sums[n], planes, row, y);
}

// Two groups of rows, the first of them full, through two panels, from `panel` on.
template <int P>
inline void two_groups(Threads& threads, int thread, const Linear& l, const PanelTiles& panels, int panel, int64_t column,
                       const PlaneTiles<P>& planes, int64_t row, bool ahead, const Target& y) {
  const int64_t second = row + planes.kRows, bytes = planes.tile_rows(second) * kTileRowBytes;
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
  }
  alignas(64) int32_t sums[4][kTileRows][kPanel];
  tile_store<0>(sums[0]);
  tile_store<1>(sums[1]);
  tile_store<2>(sums[2]);
  tile_store<3>(sums[3]);
  for (int g = 0; g < 2; g++)
    for (int n = 0; n < 2; n++)
      finish_group(l, column + n * kPanel, sums[2 * g + n], planes, row + g * planes.kRows, y);
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
    constexpr int64_t of_pair = 2 * PlaneTiles<P>::kRows;
    const int64_t end = row + part, of_pairs = part % of_pair > of_pair / 2 ? end : end - part % of_pair;
    for (int pair = 0; pair < count; pair += 2)
      for (int64_t at = row; at < of_pairs; at += of_pair)
        two_groups(threads, thread, l, panels, pair, (first + pair) * kPanel, planes, at, at == row, y);
    if (of_pairs == end) return;
    if (count > 2)
      one_group<4>(threads, thread, l, panels, first * kPanel, planes, of_pairs, of_pairs == row, y);
    else
      one_group<2>(threads, thread, l, panels, first * kPanel, planes, of_pairs, of_pairs == row, y);
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
