// What a linear layer reads. A norm or an activation before it is applied row by row where the layer rounds or splits its
// rows, so that what is between the two never leaves a thread's first cache:
//
//     residual ──► norm ──► a row's room ──► bytes, planes or groups of all rows ──► products
//
// A layer that reads rows as they are has them written first.
#pragma once

#include "../gated_activation/native.h"
#include "../native/rows.h"
#include "../rms_norm/native.h"

namespace octavo {
namespace OCTAVO_ISA {

// Rows, each `stride` behind the last.
struct Source {
  const float* rows;
  int64_t stride;
  const float* norm = nullptr;       // the weight of the norm that they go through, if any
  float eps = 0;                     // its
  int64_t ups = 0;                   // where not zero: rows are gates, and so far behind each is what it is for
  const int64_t* numbers = nullptr;  // of the rows that are read; null: all, in order

  // Numbers that are read for a row of this width.
  int64_t numbers_read(int64_t width) const { return ups ? 2 * width : width; }

  bool as_they_lie() const { return !norm && !ups && !numbers; }

  // A row as the layer is to read it: `width` numbers, in `room` unless they lie so.
  const float* row(int64_t number, int64_t width, float* room) const {
    const float* from = rows + (numbers ? numbers[number] : number) * stride;
    if (norm)
      rms_norm(from, norm, eps, room, width);
    else if (ups)
      silu_mul(from, from + ups, room, width);
    return norm || ups ? room : from;
  }
};

// Calls body(a row, its number) for each.
template <class Body>
inline void each_source_row(Threads& threads, const Source& x, int64_t rows, int64_t width, const Body& body) {
  each_row(threads, rows, x.numbers_read(width), [&](int64_t number, int thread) {
    body(x.row(number, width, threads.scratch(thread)), number);
  });
}

// The same rows as they lie: in memory of rows * width numbers where they do not yet.
inline Source laid_out(Threads& threads, const Source& x, int64_t rows, int64_t width, float* memory) {
  if (x.as_they_lie()) return x;
  each_row(threads, rows, x.numbers_read(width), [&](int64_t number, int) {
    float* to = memory + number * width;
    const float* row = x.row(number, width, to);
    if (row != to) memcpy(to, row, width * sizeof(float));
  });
  return {memory, width};
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
