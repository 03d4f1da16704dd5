// What the forms of linear layers share: the panels of an item, and where a product goes.
#pragma once

#include "../native/abi.h"
#include "../native/threads.h"
#include "../native/tile.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kPanel = 16;
constexpr int kVectorsOfPanel = kPanel / kLanes;
constexpr int64_t kWidePanels = 4;   // of one item
constexpr int64_t kRowsOfItem = 288;  // they stay in the second cache while the panels pass; a multiple of 6 and of 16

// Where a product goes: rows, each `stride` behind the last, that are replaced or added to.
struct Target {
  float* rows;
  int64_t stride;
  bool add;

  Target from(int64_t row) const { return {rows + row * stride, stride, add}; }
};

// Columns of one vector, as far as the layer has them.
OCTAVO_INLINE void finish(const Linear& l, int64_t column, Vec<kLanes> sums, float* y, bool add) {
  if (l.scales) sums *= load<kLanes>(l.scales + column);
  if (column + kLanes <= l.out) {
    if (l.bias) sums += load<kLanes>(l.bias + column);
    if (add) sums += load<kLanes>(y + column);
    store<kLanes>(y + column, sums);
    return;
  }
  float columns[kLanes];
  store<kLanes>(columns, sums);
  for (int64_t i = 0; column + i < l.out; i++) {
    const float value = columns[i] + (l.bias ? l.bias[column + i] : 0);
    y[column + i] = add ? y[column + i] + value : value;
  }
}

// What is to be asked for, in equal parts, while others work.
struct Coming {
  const char *next, *end;
  int64_t share;  // bytes at each step

  Coming(const void* from, int64_t bytes, int64_t steps)
      : next((const char*)from), end(next + bytes), share(divided_up(bytes, 64 * larger(1, steps)) * 64) {}

  OCTAVO_INLINE void ask() {
    for (const char* until = next + share < end ? next + share : end; next < until; next += 64)
      __builtin_prefetch(next, 0, 2);
  }
};

// Shares a product of so many outputs out: calls body(first panel, panels, first row, rows, thread) for each item of up to `together` rows.
template <class Body>
inline void linear_items(Threads& threads, int64_t out, int64_t rows, int64_t together, const Body& body) {
  const int64_t panels = divided_up(out, kPanel);
  // Few items would leave a thread without one while the last is under way.
  const int64_t parts = divided_up(rows, together);
  const int64_t wide = panels * parts >= 8 * kWidePanels * threads.count() ? kWidePanels : kWidePanels / 2;
  const int64_t groups = divided_up(panels, wide);
  threads.run(groups * parts, [&](int64_t item, int thread) {
    const int64_t first = item % groups * wide, row = item / groups * together;
    body(first, smaller(wide, panels - first), row, smaller(together, rows - row), thread);
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
