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
constexpr int64_t kSpreadBelow = 32;  // rows
constexpr int64_t kAheadOfOnePass = 4096;  // bytes
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

// What is to be asked for, in equal parts, while others work: bytes of some stretches of memory, the same of each.
struct Coming {
  int64_t next, end;  // of a stretch
  int64_t due, share;  // until where it is to have been asked for; bytes at each step

  Coming(int64_t from, int64_t bytes, int64_t steps)
      : next(from), end(from + bytes), due(from), share(divided_up(bytes, larger(1, steps))) {}

  // One step, of the stretches that begin there.
  template <int N, class T>
  OCTAVO_INLINE void ask(const T* const* begins) {
    due += share;
    for (const int64_t until = due < end ? due : end; next < until; next += 64)
      for (int n = 0; n < N; n++) __builtin_prefetch((const char*)begins[n] + next);
  }
};

// Panels that one item takes: the first, and each `apart` behind the last one. Those of the next item are `next` behind.
struct Panels {
  int64_t first, count, apart, next;

  int64_t number(int64_t n) const { return first + n * apart; }
  // From the n-th on.
  Panels from(int64_t n) const { return {number(n), count - n, apart, next}; }
};

// Where the V-th vector of an item's panels is in a row of results.
OCTAVO_INLINE int64_t column_of(const Panels& panels, int v) {
  return panels.number(v / kVectorsOfPanel) * kPanel + v % kVectorsOfPanel * kLanes;
}

// What to ask for while rows go through panels, `passes` times all of their `steps`. Whoever reads panels once asks a bit
// ahead, so that memory is busy from their first byte on; else those of the next item come meanwhile.
inline Coming coming_panels(const Panels& panels, int64_t bytes, int64_t passes, int64_t steps) {
  const int64_t next = panels.next * bytes;
  return {passes == 1 ? smaller(kAheadOfOnePass, next) : next, bytes, passes * steps};
}

// Shares a product of so many outputs out: calls body(panels, first row, rows, thread) for each item of up to `together`
// rows. Its panels are neighbours.
template <class Body>
inline void linear_items(Threads& threads, int64_t out, int64_t rows, int64_t together, const Body& body) {
  const int64_t panels = divided_up(out, kPanel), parts = divided_up(rows, together);
  // Few items would leave a thread without one while the last is under way.
  const int64_t wide = panels * parts >= 8 * kWidePanels * threads.count() ? kWidePanels : kWidePanels / 2;
  const int64_t groups = divided_up(panels, wide);
  threads.run(groups * parts, [&](int64_t item, int thread) {
    const int64_t first = item % groups * wide, row = item / groups * together;
    body(Panels{first, smaller(wide, panels - first), 1, wide}, row, smaller(together, rows - row), thread);
  });
}

// The same for few rows, which take no longer than the weight needs from memory. A processor fetches ahead in a stream of
// memory that it knows, and several long ones are faster than one or than many short ones. So each thread's part of the
// panels is cut in two, or in four where rows go through them in several passes, and an item has one panel of each:
//
//     panels of one thread      0  1  2  3  4 | 5  6  7  8  9 | 10 11 12 13 14 | 15 16 17
//     its items, one by one     a  b  c  d  e | a  b  c  d  e | a  b  c  d  e  | a  b  c
//
// Threads begin at a multiple of `unit` panels; with a unit of two, two are never one.
template <class Body>
inline void spread_items(Threads& threads, int64_t panels, int64_t unit, int64_t passes, int64_t rows,
                         const Body& body) {
  const int64_t wide = passes == 1 ? 2 : kWidePanels;
  const int64_t units = panels / unit, count = threads.count();
  const int64_t items = divided_up(divided_up(units, count) * unit, wide);  // of a thread, some perhaps without a panel
  threads.run(items * count, [&](int64_t item, int thread) {
    const int64_t part = item / items, number = item % items;
    const int64_t first = units * part / count * unit, end = units * (part + 1) / count * unit;
    const int64_t apart = divided_up(end - first, wide);
    if (number < apart) body(Panels{first + number, divided_up(end - first - number, apart), apart, 1}, 0, rows,
                              thread);
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
