// y = x W^T + b, with W [out, in] packed in panels of 16 outputs:
//
//     panel 0:  w[0][0]  w[1][0]  … w[15][0]     16 numbers for k = 0: one vector of AVX-512, two of AVX2
//               w[0][1]  w[1][1]  … w[15][1]     k = 1
//               …                                to k = in - 1
//     panel 1:  w[16][0] …                       outputs beyond the last one are zero
//
// The number of panels is even. A bfloat16 weight has two k in one vector of 32 bits each, which are faster to widen:
//
//     panel 0:  w[0][0..1]  w[1][0..1]  … w[15][0..1]     k = 0 and 1
//               w[0][2..3]  w[1][2..3]  … w[15][2..3]     k = 2 and 3; beyond the last input is zero
//
// So a panel is read from its first byte to its last, which is all that counts for one row: then the weight's way from
// memory is the time that it takes. For many rows a panel in a narrow type is widened once, into a cache, before they
// all go through it; but not pairs on AVX-512. Weights stay in the type that they were stored in, or are int8 with a
// scale for each output, which the sums are multiplied by; sums are float32. Where there are instructions for int8,
// quads.h has another form, and where there are matrix registers, tiles.h. Weights that are stored in groups are in
// groups.h and group_tiles.h.
//
// Where rows of x are to be rounded to eight bits, and there are no instructions for them, they are whole numbers times a
// step in float32.
#pragma once

#include <math.h>

#include "group_tiles.h"
#include "groups.h"
#include "quad_tiles.h"
#include "quads.h"
#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kWidenFrom = 24;  // rows

// What few rows go through, two panels of AVX-512 at a time.
constexpr int kNarrowVectors = 2;
constexpr int kNarrowRows = kLanes == 16 ? 8 : 6;

// Whether a weight is read as it lies by any number of rows. Where there are registers for eight of them, to widen a
// vector of two inputs is two instructions beside 16 products: less than to write them as float32 and to read twice as
// many bytes.
template <class T>
constexpr bool keeps_pairs = is_paired<T> && kLanes == 16;

constexpr int64_t kAhead = 2048;  // numbers of two bytes

// Numbers of one panel. Those of bfloat16 come in pairs, the last of which may be half empty.
inline int64_t panel_numbers(const Linear& l) {
  return kPanel * (l.type == kBFloat16 ? divided_up(l.in, 2) * 2 : l.in);
}

// Bytes for four panels in float32, which is more than those of groups take in 16 bits.
inline int64_t linear_scratch(const Linear& l) { return kWidePanels * panel_numbers(l) * (int64_t)sizeof(float); }

// M rows through V vectors of columns.
template <int V, class T>
struct LinearTile {
  const Linear& l;
  const T* from;  // the first of these panels, the others as far apart as they are in the weight
  Panels panels;
  const float* x;
  int64_t x_stride;
  Target y;

  template <int M>
  OCTAVO_INLINE void run(int64_t row) const {
    constexpr int together = is_paired<T> ? 2 : 1;
    const float* a[M];
    const T *b[V], *ahead[V];
    for (int m = 0; m < M; m++) a[m] = x + (row + m) * x_stride;
    for (int v = 0; v < V; v++) {
      b[v] = from + v / kVectorsOfPanel * panels.apart * panel_numbers(l) + v % kVectorsOfPanel * kLanes * together;
      ahead[v] = b[v] + kAhead;
    }
    Sums<M, V, kLanes> sums;
    sums.clear();
    sums.add(a, b, together * kPanel, l.in, together == 2 ? ahead : nullptr);
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++)
        finish(l, column_of(panels, v), sums.of[m][v], y.rows + (row + m) * y.stride, y.add);
  }
};

// Panels of an item from the one on that is `done`, V vectors at a time, as long as so many are left; returns how many
// are done.
template <int V, int... Rows, class T>
inline int64_t linear_panels(const Linear& l, const T* from, const Panels& panels, int64_t done, const float* x,
                             int64_t x_stride, const Target& y, int64_t rows) {
  constexpr int together = V / kVectorsOfPanel;
  for (; done + together <= panels.count; done += together) {
    const T* first = from + done * panels.apart * panel_numbers(l);
    const LinearTile<V, T> tile{l, first, panels.from(done), x, x_stride, y};
    in_tiles<Rows...>(rows, tile);
  }
  return done;
}

// A weight in pairs becomes one without.
inline void widen(const Linear& l, const BFloat16* panels, int64_t count, float* wide) {
  const int64_t pairs = count * panel_numbers(l) / 2;
  for (int64_t i = 0; i < pairs; i += kLanes)
    widen_pairs<kLanes>(panels + 2 * i, wide + i / kPanel * 2 * kPanel + i % kPanel, kPanel);
}

template <class T>
inline void widen(const Linear& l, const T* panels, int64_t count, float* wide) {
  for (int64_t i = 0; i < count * panel_numbers(l); i += kLanes) store<kLanes>(wide + i, load<kLanes>(panels + i));
}

template <class T>
inline void linear_typed(Threads& threads, const Linear& l, const Source& source, const Target& y, int64_t rows,
                         float* memory) {
  const Source x = laid_out(threads, source, rows, l.in, memory);
  const auto narrow = [&](const Panels& panels, int64_t row, int64_t part, int) {
    const T* weight = (const T*)l.weight + panels.first * panel_numbers(l);
    linear_panels<kNarrowVectors, kNarrowRows, 4, 2, 1>(l, weight, panels, 0, x.rows + row * x.stride, x.stride,
                                                        y.from(row), part);
  };
  // The weight has an even number of panels, for the narrow tile of AVX-512.
  const int64_t all = divided_up(l.out, 2 * kPanel) * 2;
  if (rows < kWidenFrom) return spread_items(threads, all, 2, 1, rows, narrow);
  linear_items(threads, all * kPanel, rows, kRowsOfItem, [&](const Panels& panels, int64_t row, int64_t part, int thread) {
    if (part < kWidenFrom || keeps_pairs<T>) return narrow(panels, row, part, thread);
    const T* weight = (const T*)l.weight + panels.first * panel_numbers(l);
    const float *wide, *from = x.rows + row * x.stride;
    if constexpr (sizeof(T) == sizeof(float)) {
      wide = weight;
    } else {
      widen(l, weight, panels.count, threads.scratch(thread));
      wide = threads.scratch(thread);
    }
    const int64_t done =
        linear_panels<kTileVectors, kMostRows, 4, 2, 1>(l, wide, panels, 0, from, x.stride, y.from(row), part);
    linear_panels<kNarrowVectors, kNarrowRows, 4, 2, 1>(l, wide, panels, done, from, x.stride, y.from(row), part);
  });
}

// A row in eight bits as float32. One with a number that is not finite is NaN throughout.
inline void round_to_bytes(const float* x, int64_t in, float* to) {
  const Size size = size_of(x, in);
  const float factor = size.largest > 1e-30f ? 127 / size.largest : 0, step = size.largest / 127 + size.poison;
  for (int64_t i = 0; i < in; i++) to[i] = rintf(x[i] * factor) * step;
}

inline void linear_of_bytes(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows,
                            float* memory) {
  each_source_row(threads, x, rows, l.in,
                  [&](const float* row, int64_t number) { round_to_bytes(row, l.in, memory + number * l.in); });
  linear_typed<Int8>(threads, l, {memory, l.in}, y, rows, nullptr);
}

// Numbers that `linear` needs beside what it reads and writes.
inline int64_t linear_room(const Linear& l, int64_t rows) {
  switch (l.type) {
#ifdef __AMX_TILE__
    case kBFloat16: return tiles_room(l, rows);
    case kInt8Quads: return l.int8_rows ? quad_tiles_room<1>(l, rows) : quad_tiles_room<2>(l, rows);
    case kGroups4: return rows < kGroupTilesFrom ? groups_room(l, rows) : group_tiles_room(l, rows);
    case kGroups8: return group_tiles_room(l, rows);
#else
    case kInt8Quads: return l.int8_rows ? quads_room<1>(l, rows) : quads_room<2>(l, rows);
    case kGroups4:
    case kGroups8: return groups_room(l, rows);
#endif
    default: return rows * l.in;
  }
}

// x: `rows` rows. memory: `linear_room` numbers.
inline void linear(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows, float* memory) {
  switch (l.type) {
#ifdef __AMX_TILE__
    case kBFloat16: return tiles_linear(threads, l, x, y, rows, memory);
    case kInt8Quads:
      return l.int8_rows ? quad_tiles_linear<1, false>(threads, l, x, y, rows, memory)
                         : quad_tiles_linear<2, false>(threads, l, x, y, rows, memory);
    case kGroups4:
      return rows < kGroupTilesFrom ? groups_linear<FourBits>(threads, l, x, y, rows, memory)
                                    : group_tiles_linear<FourBits>(threads, l, x, y, rows, memory);
    case kGroups8: return group_tiles_linear<EightBits>(threads, l, x, y, rows, memory);
#else
    case kBFloat16: return linear_typed<BFloat16>(threads, l, x, y, rows, memory);
    case kInt8Quads:
      return l.int8_rows ? quads_linear<1>(threads, l, x, y, rows, memory)
                         : quads_linear<2>(threads, l, x, y, rows, memory);
    case kGroups4: return groups_linear<FourBits>(threads, l, x, y, rows, memory);
    case kGroups8: return groups_linear<EightBits>(threads, l, x, y, rows, memory);
#endif
    case kFloat16: return linear_typed<Half>(threads, l, x, y, rows, memory);
    case kInt8:
      return l.int8_rows ? linear_of_bytes(threads, l, x, y, rows, memory)
                         : linear_typed<Int8>(threads, l, x, y, rows, memory);
    default: return linear_typed<float>(threads, l, x, y, rows, memory);
  }
}

// A layer whose outputs are gates and, in its second half, what they are for. Returns silu(gate) * up as the next layer
// is to read it; in the first half of each row of y where that came of itself.
inline Source gated_linear(Threads& threads, const Linear& l, const Source& x, float* y, int64_t y_stride, int64_t rows,
                           float* memory) {
  const Target target{y, y_stride, false};
#ifdef __AMX_TILE__
  if (l.type == kInt8Quads && can_be_gated(l)) {
    l.int8_rows ? quad_tiles_linear<1, true>(threads, l, x, target, rows, memory)
                : quad_tiles_linear<2, true>(threads, l, x, target, rows, memory);
    return {y, y_stride};
  }
#endif
  linear(threads, l, x, target, rows, memory);
  return {y, y_stride, nullptr, 0, l.out / 2};
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
