// y = x W^T + b, with W [out, in] packed in panels of 16 outputs:
//
//     panel 0:  w[0][0]  w[1][0]  … w[15][0]     16 numbers for k = 0: one vector of AVX-512, two of AVX2
//               w[0][1]  w[1][1]  … w[15][1]     k = 1
//               …                                to k = in - 1
//     panel 1:  w[16][0] …                       outputs beyond the last one are zero
//
// So a panel is read from its first byte to its last, which is all that counts for one row: then the weight's way from
// memory is the time that it takes. For many rows a panel in a narrow type is widened once, into a cache, before they
// all go through it. Weights stay in the type that they were stored in, or are int8 with a scale for each output, which
// the sums are multiplied by; sums are float32. Where there are instructions for int8, quads.h has another form. Weights that are stored in groups are in groups.h.
#pragma once

#include "groups.h"
#include "quads.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kWidenFrom = 24;   // rows

inline int64_t linear_scratch(const Linear& l) { return kWidePanels * kPanel * l.in * (int64_t)sizeof(float); }

// M rows through V vectors of columns.
template <int V, class T>
struct LinearTile {
  const Linear& l;
  const T* panels;  // that of `column` and those behind it
  int64_t column;
  const float* x;
  int64_t x_stride;
  Target y;

  template <int M>
  OCTAVO_INLINE void run(int64_t row) const {
    const float* a[M];
    const T* b[V];
    for (int m = 0; m < M; m++) a[m] = x + (row + m) * x_stride;
    for (int v = 0; v < V; v++) b[v] = panels + v / kVectorsOfPanel * kPanel * l.in + v % kVectorsOfPanel * kLanes;
    Sums<M, V, kLanes> sums;
    sums.clear();
    sums.add(a, b, kPanel, l.in);
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++)
        finish(l, column + v * kLanes, sums.of[m][v], y.rows + (row + m) * y.stride, y.add);
  }
};

template <int V, class T>
inline void linear_columns(const Linear& l, const T* panels, int64_t column, const float* x, int64_t x_stride,
                           const Target& y, int64_t rows) {
  in_tiles<kMostRows, 4, 2, 1>(rows, LinearTile<V, T>{l, panels, column, x, x_stride, y});
}

// `count` panels from `first` on.
template <class T>
inline void linear_panels(const Linear& l, const T* panels, int64_t first, int64_t count, const float* x,
                          int64_t x_stride, const Target& y, int64_t rows) {
  constexpr int together = kTileVectors / kVectorsOfPanel;  // panels of the widest tile
  int64_t done = 0;
  for (; done + together <= count; done += together)
    linear_columns<kTileVectors>(l, panels + done * kPanel * l.in, (first + done) * kPanel, x, x_stride, y, rows);
  for (; done < count; done++)
    linear_columns<kVectorsOfPanel>(l, panels + done * kPanel * l.in, (first + done) * kPanel, x, x_stride, y, rows);
}

template <class T>
inline void linear_typed(Threads& threads, const Linear& l, const float* x, int64_t x_stride, const Target& y,
                         int64_t rows) {
  linear_items(threads, l, rows, [&](int64_t first, int64_t count, int64_t row, int64_t part, int thread) {
    const T* weight = (const T*)l.weight + first * kPanel * l.in;
    const float* from = x + row * x_stride;
    if (sizeof(T) == sizeof(float) || part < kWidenFrom)
      return linear_panels(l, weight, first, count, from, x_stride, y.from(row), part);
    float* widened = threads.scratch(thread);
    for (int64_t i = 0; i < count * kPanel * l.in; i += kLanes) store<kLanes>(widened + i, load<kLanes>(weight + i));
    linear_panels<float>(l, widened, first, count, from, x_stride, y.from(row), part);
  });
}

// Numbers that `linear` needs beside what it reads and writes.
inline int64_t linear_room(const Linear& l, int64_t rows) {
  switch (l.type) {
    case kInt8Quads: return quads_room(l, rows);
    case kGroups4:
    case kGroups8: return groups_room(l, rows);
    default: return 0;
  }
}

// x: `rows` rows, each x_stride behind the last. memory: `linear_room` numbers.
inline void linear(Threads& threads, const Linear& l, const float* x, int64_t x_stride, const Target& y, int64_t rows,
                   float* memory) {
  switch (l.type) {
    case kBFloat16: return linear_typed<BFloat16>(threads, l, x, x_stride, y, rows);
    case kFloat16: return linear_typed<Half>(threads, l, x, x_stride, y, rows);
    case kInt8: return linear_typed<Int8>(threads, l, x, x_stride, y, rows);
    case kInt8Quads: return quads_linear(threads, l, x, x_stride, y, rows, memory);
    case kGroups4: return groups_linear<FourBits>(threads, l, x, x_stride, y, rows, memory);
    case kGroups8: return groups_linear<EightBits>(threads, l, x, x_stride, y, rows, memory);
    default: return linear_typed<float>(threads, l, x, x_stride, y, rows);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
