// y = x W^T + b with bfloat16 weights on AMX (native/amx.h), as exact as in float32: a row of x is three of bfloat16
// (native/planes.h).
//
// Panels of the weight are what the instruction wants on its right, 32 inputs of 16 outputs at a time. Rows lie by 16,
// in the order in which they are read; the last ones take no more room than there are:
//
//     16 rows:  inputs 0..31:   low    [row 0: 32 numbers | row 1 | … | row 15]
//                               middle [ … ]
//                               high   [ … ]
//               inputs 32..63:  …                          beyond the last input is zero
#pragma once

#ifdef __AMX_TILE__

#include "../native/planes.h"
#include "source.h"
#include "target.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kTileAhead = 4096;  // bytes

// Up to four panels of a weight as tiles: a kilobyte each, or what is left with zeros behind, in memory of its own.
struct PanelTiles {
  const char* panels;
  int64_t bytes, whole;  // of a panel; tiles that are filled
  alignas(64) char last[kWidePanels][kTileBytes];

  PanelTiles(const void* panels, int64_t count, int64_t bytes)
      : panels((const char*)panels), bytes(bytes), whole(bytes / kTileBytes) {
    if (whole * kTileBytes == bytes) return;
    memset(last, 0, sizeof last);
    for (int64_t p = 0; p < count; p++)
      memcpy(last[p], this->panels + p * bytes + whole * kTileBytes, bytes - whole * kTileBytes);
  }

  // ahead: ask for what comes later in the panel, which is read from memory.
  template <int T>
  OCTAVO_INLINE void load(int panel, int64_t tile, bool ahead) const {
    const char* from = tile < whole ? panels + panel * bytes + tile * kTileBytes : last[panel];
    if (ahead)
      for (int64_t line = 0; line < kTileBytes; line += 64) __builtin_prefetch(from + kTileAhead + line);
    tile_load<T>(from);
  }
};

// All rows of x, in memory of `tiles_room` numbers.
struct SplitRows {
  BFloat16* numbers;
  int64_t rows, steps;

  SplitRows(const Linear& l, int64_t rows, float* memory)
      : numbers((BFloat16*)(((uintptr_t)memory + 63) / 64 * 64)), rows(rows), steps(divided_up(l.in, kStep)) {}

  // Of the 16 rows from a multiple of 16 on, as many as there are.
  int count(int64_t first) const { return (int)smaller(kTileRows, rows - first); }
  BFloat16* from(int64_t first) const { return numbers + first * steps * kPlanes * kStep; }
};

inline int64_t tiles_room(const Linear& l, int64_t rows) {
  return rows * divided_up(l.in, kStep) * kPlanes * kStep / 2 + 16;
}

inline void split_row(const float* x, int64_t in, const SplitRows& split, int64_t row) {
  const int64_t first = row / kTileRows * kTileRows, plane = split.count(first) * kStep;
  BFloat16* to = split.from(first) + (row - first) * kStep;
  for (int64_t step = 0; step < split.steps; step++, to += kPlanes * plane)
    for (int half = 0; half < 2; half++) {
      const int64_t left = in - step * kStep - half * 16;
      const __mmask16 there = (__mmask16)((1u << smaller(16, larger(0, left))) - 1);
      split_planes(_mm512_maskz_loadu_ps(there, x + step * kStep + half * 16), to + half * 16, plane);
    }
}

template <int Panel>
OCTAVO_INLINE void add_panel(const PanelTiles& panels, int64_t step, bool ahead) {
  panels.load<7>(Panel, step, ahead);
  add_planes<Panel>();
}

// Up to 16 rows through P panels, two or four.
template <int P>
inline void tiles_panels(const Linear& l, const PanelTiles& panels, int64_t column, const SplitRows& split, int64_t row,
                         bool ahead, const Target& y) {
  const int count = split.count(row);
  const int64_t plane = count * kStep;
  const BFloat16* a = split.from(row);
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (P == 4) {
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int64_t step = 0; step < split.steps; step++, a += kPlanes * plane) {
    load_planes(a, plane);
    add_panel<0>(panels, step, ahead);
    add_panel<1>(panels, step, ahead);
    if constexpr (P == 4) {
      add_panel<2>(panels, step, ahead);
      add_panel<3>(panels, step, ahead);
    }
  }
  alignas(64) float sums[P][kTileRows][kPanel];
  tile_store<0>(sums[0]);
  tile_store<1>(sums[1]);
  if constexpr (P == 4) {
    tile_store<2>(sums[2]);
    tile_store<3>(sums[3]);
  }
  for (int m = 0; m < count; m++)
    for (int p = 0; p < P; p++)
      finish(l, column + p * kPanel, load<kPanel>(sums[p][m]), y.rows + (row + m) * y.stride, y.add);
}

inline void tiles_linear(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows,
                         float* memory) {
  const SplitRows split(l, rows, memory);
  each_source_row(threads, x, rows, l.in, [&](const float* row, int64_t number) { split_row(row, l.in, split, number); });
  const int64_t panel = divided_up(l.in, 2) * 2 * kPanel * (int64_t)sizeof(BFloat16);
  // A megabyte of split rows stays in the second cache while panels pass.
  const int64_t fit = (1 << 20) / (split.steps * kStep * kPlanes * (int64_t)sizeof(BFloat16));
  const int64_t parts = divided_up(rows, larger(3 * kTileRows, smaller(kRowsOfItem, fit)));
  const int64_t together = divided_up(rows, parts * kTileRows) * kTileRows;
  linear_items(threads, l.out, rows, together, [&](const Panels& of_item, int64_t row, int64_t part, int thread) {
    const int64_t first = of_item.first, count = divided_up(of_item.count, 2) * 2;  // the weight's panels are even
    const PanelTiles panels((const char*)l.weight + first * panel, count, panel);
    for (int64_t at = row; at < row + part; at += kTileRows) {
      use_tiles(threads, thread, planes_shapes(split.count(at)));
      if (count > 2)
        tiles_panels<4>(l, panels, first * kPanel, split, at, at == row, y);
      else
        tiles_panels<2>(l, panels, first * kPanel, split, at, at == row, y);
    }
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
