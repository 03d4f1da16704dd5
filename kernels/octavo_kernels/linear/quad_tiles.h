// y = x W^T + b with int8 weights on AMX (native/amx.h): the same two planes of bytes as in quads.h, to the last bit.
//
// Quads of a panel are what the instruction wants on its right, 64 inputs of 16 outputs at a time. On its left it takes
// eight rows of x, both planes of each:
//
//     8 rows:  inputs 0..63:    [high 0: 64 bytes | high 1 | … | high 7 | low 0 | … | low 7]     a kilobyte
//              inputs 64..127:  …              the last rows take no more room than there are
//
// Few rows go through four panels at once, more of them two by two. Sums begin at zero, not at -128 times the sum of the
// weights, which is added at the end: what leaves 32 bits on the way comes back.
#pragma once

#ifdef __AMX_TILE__

#include "quads.h"
#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kRowsOfGroup = kTileRows / 2;

// All rows of x, in memory of `quad_tiles_room` numbers.
struct PlaneTiles {
  float* steps;
  uint8_t* bytes;
  int64_t rows, tiles, width;  // width: inputs, filled up to whole tiles

  PlaneTiles(const Linear& l, int64_t rows, float* memory)
      : steps(memory),
        bytes((uint8_t*)(((uintptr_t)(memory + rows) + 63) / 64 * 64)),
        rows(rows),
        tiles(divided_up(l.in, kTileRowBytes)),
        width(tiles * kTileRowBytes) {}

  // Of the eight rows from a multiple of eight on, as many as there are.
  int count(int64_t first) const { return (int)smaller(kRowsOfGroup, rows - first); }
  uint8_t* from(int64_t first) const { return bytes + first * 2 * width; }

  uint8_t* high(int64_t row) const { return from(group(row)) + row % kRowsOfGroup * kTileRowBytes; }
  uint8_t* low(int64_t row) const { return high(row) + count(group(row)) * kTileRowBytes; }
  // Bytes from 64 inputs to the next.
  int64_t next_line(int64_t row) const { return 2 * count(group(row)) * kTileRowBytes; }

 private:
  static int64_t group(int64_t row) { return row / kRowsOfGroup * kRowsOfGroup; }
};

inline int64_t quad_tiles_room(const Linear& l, int64_t rows) {
  return rows * (1 + 2 * divided_up(l.in, kTileRowBytes) * kTileRowBytes / 4) + 16;
}

// Sums of a group of rows and a panel, at their end.
OCTAVO_INLINE void finish_group(const Linear& l, int64_t column, const int32_t (*sums)[kPanel], const PlaneTiles& planes,
                                int64_t row, const Target& y) {
  const int count = planes.count(row);
  Ints offsets;
  memcpy(&offsets, l.offsets + column, sizeof offsets);
  for (int m = 0; m < count; m++) {
    Ints high, low;
    memcpy(&high, sums[m], sizeof high);
    memcpy(&low, sums[count + m], sizeof low);
    finish(l, column, together(high + offsets, low + offsets, planes.steps[row + m]), y.rows + (row + m) * y.stride,
           y.add);
  }
}

// Registers: four sums, two groups of rows, two parts of panels.

// Eight rows or less through P panels, two or four.
template <int P>
inline void one_group(Threads& threads, int thread, const Linear& l, const PanelTiles& panels, int64_t column,
                      const PlaneTiles& planes, int64_t row, bool ahead, const Target& y) {
  const int64_t bytes = 2 * planes.count(row) * kTileRowBytes;
  TileShapes shapes;
  for (int t = 0; t < 5; t++) shapes.set(t, 2 * planes.count(row));
  for (int t = 6; t < 8; t++) shapes.set(t, kTileRows);
  use_tiles(threads, thread, shapes);
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (P == 4) {
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
    if constexpr (P == 4) {
      panels.load<6>(2, tile, ahead);
      tile_multiply_bytes<2, 4, 6>();
      panels.load<7>(3, tile, ahead);
      tile_multiply_bytes<3, 4, 7>();
    }
  }
  alignas(64) int32_t sums[P][kTileRows][kPanel];
  tile_store<0>(sums[0]);
  tile_store<1>(sums[1]);
  if constexpr (P == 4) {
    tile_store<2>(sums[2]);
    tile_store<3>(sums[3]);
  }
  for (int p = 0; p < P; p++) finish_group(l, column + p * kPanel, sums[p], planes, row, y);
}

// Nine to 16 rows through two panels, from `panel` on.
inline void two_groups(Threads& threads, int thread, const Linear& l, const PanelTiles& panels, int panel, int64_t column,
                       const PlaneTiles& planes, int64_t row, bool ahead, const Target& y) {
  const int64_t second = row + kRowsOfGroup, bytes = 2 * planes.count(second) * kTileRowBytes;
  TileShapes shapes;
  for (int t = 0; t < 8; t++) shapes.set(t, kTileRows);
  shapes.set(2, 2 * planes.count(second));
  shapes.set(3, 2 * planes.count(second));
  shapes.set(5, 2 * planes.count(second));
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
    for (int p = 0; p < 2; p++)
      finish_group(l, column + p * kPanel, sums[2 * g + p], planes, row + g * kRowsOfGroup, y);
}

inline void quad_tiles_linear(Threads& threads, const Linear& l, const float* x, int64_t x_stride, const Target& y,
                              int64_t rows, float* memory) {
  const PlaneTiles planes(l, rows, memory);
  each_row(threads, rows, l.in, [&](int64_t row) { split(x + row * x_stride, l.in, planes, row); });
  const int64_t panel = quads_of(l) * kQuad * kPanel;
  linear_items(threads, l, rows, kRowsOfItem, [&](int64_t first, int64_t count, int64_t row, int64_t part, int thread) {
    count = divided_up(count, 2) * 2;  // the weight has an even number of panels
    const PanelTiles panels((const char*)l.weight + first * panel, count, panel);
    const int64_t end = row + part, of_pairs = part % kTileRows > kRowsOfGroup ? end : end - part % kTileRows;
    for (int pair = 0; pair < count; pair += 2)
      for (int64_t at = row; at < of_pairs; at += kTileRows)
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
