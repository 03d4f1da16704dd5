// y = x W^T + b with int8 weights, on AVX-512 VNNI, whose instruction multiplies four bytes with four and adds them up.
//
// W is packed in panels of 16 outputs, as elsewhere, but four numbers of one output lie together:
//
//     panel 0:  w[0][0..3]  w[1][0..3]  … w[15][0..3]     64 bytes for k = 0 to 3: one vector
//               w[0][4..7]  w[1][4..7]  … w[15][4..7]     k = 4 to 7
//               …                                         numbers beyond the last input are zero, as are outputs
//
// To round x to eight bits as well costs accuracy, so each row of x becomes 16 bits in two planes of bytes (w8a16),
//
//     x[k] = step * (256 * (high[k] - 128) + low[k] - 128),      step = largest |x[k]| / 32512
//
// and goes through the weight as two rows, high and low, at half the cost of float32. Where the user wants eight bits
// all the same (w8a8), there is one plane, at half of that:
//
//     x[k] = step * (byte[k] - 128),                             step = largest |x[k]| / 127
//
// A byte of x counts from 0 to 255, so each sum starts at -128 times the sum of the weights. Sums are whole numbers,
// exact in any order, up to 2^31 / (128 * 127) = 132,104 inputs; packing.py refuses more. In what follows P is the
// number of planes.
#pragma once

#include "source.h"
#include "target.h"

namespace octavo {
namespace OCTAVO_ISA {

#ifdef __AVX512VNNI__

// Not __m512i, which may alias anything: gcc keeps arrays of it in memory.
using Ints = Types<16>::Int;

constexpr int kQuad = 4;
// Rows of a tile of four panels: all sums in registers. And of two, for few rows: so many that all addresses are, too.
template <int P>
constexpr int kQuadRows = P == 2 ? 3 : 6;
template <int P>
constexpr int kFewQuadRows = P == 2 ? 4 : 8;
template <int P>
constexpr float kSteps = P == 2 ? 256 * 127 : 127;  // the first plane has no -128

inline int64_t quads_of(const Linear& l) { return divided_up(l.in, kQuad); }

constexpr int64_t kLineOfBytes = 64;  // inputs of a plane that lie together in any case

// All rows of x, in memory of `quads_room` numbers.
template <int P>
struct Planes {
  static constexpr int kCount = P;

  float* steps;    // of each row
  uint8_t* bytes;  // [rows][planes: high, low][quads * 4]
  int64_t width;   // quads * 4

  // A row's first plane, and bytes from a plane to the next.
  uint8_t* first(int64_t row) const { return bytes + P * row * width; }
  int64_t next_plane(int64_t) const { return width; }
  // Bytes from kLineOfBytes inputs to the next.
  int64_t next_line(int64_t) const { return kLineOfBytes; }
};

template <int P>
inline int64_t quads_room(const Linear& l, int64_t rows) {
  return rows * (1 + P * quads_of(l));
}

// The planes of 16 numbers.
template <int P>
OCTAVO_INLINE void split_numbers(__m512 v, __m512 factor, __mmask16 kept, uint8_t* to, int64_t next_plane) {
  const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
  if constexpr (P == 1) {
    _mm512_mask_cvtepi32_storeu_epi8(to, kept, _mm512_add_epi32(steps, _mm512_set1_epi32(128)));
  } else {
    const __m512i both = _mm512_add_epi32(steps, _mm512_set1_epi32(128 * 256 + 128));  // from 384 to 65408
    _mm512_mask_cvtepi32_storeu_epi8(to, kept, _mm512_srli_epi32(both, 8));
    _mm512_mask_cvtepi32_storeu_epi8(to + next_plane, kept, both);
  }
}

// A row with a number that is not finite has a step of NaN, and so has its result.
template <class Rows>
inline void split(const float* x, int64_t in, const Rows& planes, int64_t row) {
  constexpr int P = Rows::kCount;
  constexpr int together = 4;
  const int64_t whole = in / kLineOfBytes * kLineOfBytes;
  __m512 most[together] = {}, poison[together] = {};
  const auto look = [&](__m512 v, int at) {
    most[at] = _mm512_max_ps(most[at], _mm512_abs_ps(v));
    poison[at] = _mm512_fmadd_ps(v, _mm512_setzero_ps(), poison[at]);
  };
  for (int64_t i = 0; i < whole; i += kLineOfBytes)
    for (int at = 0; at < together; at++) look(_mm512_loadu_ps(x + i + 16 * at), at);
  const auto there = [](int64_t count) { return (__mmask16)((1u << smaller(16, larger(0, count))) - 1); };
  for (int64_t i = whole; i < in; i += 16) look(_mm512_maskz_loadu_ps(there(in - i), x + i), 0);
  for (int at = 1; at < together; at++) {
    most[0] = _mm512_max_ps(most[0], most[at]);
    poison[0] = _mm512_add_ps(poison[0], poison[at]);
  }
  const float largest = _mm512_reduce_max_ps(most[0]);
  const __m512 factor = _mm512_set1_ps(largest > 1e-30f ? kSteps<P> / largest : 0);
  planes.steps[row] = largest / kSteps<P> + sum<16>((Vec<16>)poison[0]);
  uint8_t* to = planes.first(row);
  const int64_t next_plane = planes.next_plane(row), next_line = planes.next_line(row);
  for (int64_t i = 0; i < whole; i += kLineOfBytes, to += next_line)
    for (int at = 0; at < kLineOfBytes; at += 16)
      split_numbers<P>(_mm512_loadu_ps(x + i + at), factor, 0xffff, to + at, next_plane);
  for (int64_t i = whole; i < planes.width; i += 16)
    split_numbers<P>(_mm512_maskz_loadu_ps(there(in - i), x + i), factor, there(planes.width - i), to + i - whole,
                     next_plane);
}

// The sums of a row's planes, the first and the last of them.
template <int P>
OCTAVO_INLINE Vec<16> together(Ints first, Ints last, float step) {
  __m512 steps = _mm512_cvtepi32_ps((__m512i)last);
  if constexpr (P == 2) steps = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)first), _mm512_set1_ps(256), steps);
  return (Vec<16>)_mm512_mul_ps(steps, _mm512_set1_ps(step));
}

// M rows through the first V panels.
template <int P, int V>
struct QuadsTile {
  const Linear& l;
  Panels panels;
  const Planes<P>& planes;
  Target y;
  Coming& coming;  // from the beginning of each panel

  template <int M>
  OCTAVO_INLINE void run(int64_t row) const {
    const uint8_t* a[P * M];  // first planes, then second ones
    const int8_t* b[V];
    int64_t columns[V];
    Ints sums[P * M][V];
    for (int p = 0; p < P; p++)
      for (int m = 0; m < M; m++) a[p * M + m] = planes.first(row + m) + p * planes.width;
    for (int v = 0; v < V; v++) {
      columns[v] = panels.number(v) * kPanel;
      b[v] = (const int8_t*)l.weight + columns[v] * planes.width;
      for (int m = 0; m < P * M; m++) memcpy(&sums[m][v], l.offsets + columns[v], sizeof(Ints));
    }
    Coming asked = coming;  // in registers
    for (int64_t k = 0; k < planes.width; k += kQuad) {
      asked.ask<V>(b);
      Ints weights[V];
      for (int v = 0; v < V; v++) memcpy(&weights[v], b[v] + k * kPanel, sizeof(Ints));
      for (int m = 0; m < P * M; m++) {
        int32_t quad;
        memcpy(&quad, a[m] + k, sizeof quad);
        const Ints bytes = Ints{} + quad;
        for (int v = 0; v < V; v++)
          sums[m][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[m][v], (__m512i)bytes, (__m512i)weights[v]);
      }
    }
    coming = asked;
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++)
        finish(l, columns[v], together<P>(sums[m][v], sums[(P - 1) * M + m][v], planes.steps[row + m]),
               y.rows + (row + m) * y.stride, y.add);
  }
};

template <int V, int P>
inline void quads_panels(const Linear& l, const Panels& panels, const Planes<P>& planes, const Target& y, int64_t row,
                         int64_t rows) {
  constexpr int most = V > 2 ? kQuadRows<P> : kFewQuadRows<P>;
  Coming coming = coming_panels(panels, kPanel * planes.width, divided_up(rows, most), quads_of(l));
  const QuadsTile<P, V> tile{l, panels, planes, y, coming};
  if constexpr (most > 4)
    in_tiles<most, 4, 2, 1>(row + rows, tile, row);
  else
    in_tiles<most, 2, 1>(row + rows, tile, row);
}

template <int P>
inline void quads_linear(Threads& threads, const Linear& l, const Source& x, const Target& y, int64_t rows,
                         float* memory) {
  const Planes<P> planes{memory, (uint8_t*)(memory + rows), quads_of(l) * kQuad};
  each_source_row(threads, x, rows, l.in, [&](const float* row, int64_t number) { split(row, l.in, planes, number); });
  const auto item = [&](const Panels& panels, int64_t row, int64_t part, int) {
    int64_t done = 0;
    for (; done + kWidePanels <= panels.count; done += kWidePanels)
      quads_panels<kWidePanels>(l, panels.from(done), planes, y, row, part);
    for (; done + 2 <= panels.count; done += 2) quads_panels<2>(l, panels.from(done), planes, y, row, part);
    for (; done < panels.count; done++) quads_panels<1>(l, panels.from(done), planes, y, row, part);
  };
  if (rows < kSpreadBelow) {
    spread_items(threads, divided_up(l.out, kPanel), 1, divided_up(rows, kFewQuadRows<P>), rows, item);
  } else {
    linear_items(threads, l.out, rows, kRowsOfItem, item);
  }
}

#else

// Whoever packs a weight looks at the instruction set first.
template <int P>
inline int64_t quads_room(const Linear&, int64_t) {
  return 0;
}
template <int P>
inline void quads_linear(Threads&, const Linear&, const Source&, const Target&, int64_t, float*) {
  __builtin_trap();
}

#endif

}  // namespace OCTAVO_ISA
}  // namespace octavo
