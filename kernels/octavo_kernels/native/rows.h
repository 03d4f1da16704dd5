// What is done to each row on its own, shared out by rows.
#pragma once

#include "simd.h"
#include "threads.h"

namespace octavo {
namespace OCTAVO_ISA {

// Numbers below which a region is not worth another thread's waking up.
constexpr int64_t kSmallRegion = 1 << 14;

// Calls body(row) for each row of this many numbers.
template <class Body>
inline void each_row(Threads& threads, int64_t rows, int64_t width, const Body& body) {
  const int64_t parts = rows * width < kSmallRegion ? 1 : smaller(rows, 4 * threads.count());
  threads.run(parts, [&](int64_t part, int) {
    for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) body(row);
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
