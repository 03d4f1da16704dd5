// What is done to each row on its own, shared out by rows.
#pragma once

#include "simd.h"
#include "threads.h"

namespace octavo {
namespace OCTAVO_ISA {

// Numbers below which a region is not worth another thread's waking up.
constexpr int64_t kSmallRegion = 1 << 14;

// Calls body(row, thread) for each row of this many numbers.
template <class Body>
inline void each_row(Threads& threads, int64_t rows, int64_t width, const Body& body) {
  const int64_t parts = rows * width < kSmallRegion ? 1 : smaller(rows, 4 * threads.count());
  threads.run(parts, [&](int64_t part, int thread) {
    for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) body(row, thread);
  });
}

// What the step of a row that is rounded depends on.
struct Size {
  float largest;  // of all |x|
  float poison;   // zero, or NaN where a number is not finite
};

inline Size size_of(const float* x, int64_t width) {
  Vec<kLanes> most{}, poison{};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Vec<kLanes> v = load<kLanes>(x + i), size = v < 0 ? -v : v;
    most = size > most ? size : most;
    poison += v * 0;
  }
  Size size{0, sum<kLanes>(poison)};
  for (int lane = 0; lane < kLanes; lane++) size.largest = most[lane] > size.largest ? most[lane] : size.largest;
  for (; i < width; i++) {
    const float absolute = x[i] < 0 ? -x[i] : x[i];
    size.largest = absolute > size.largest ? absolute : size.largest;
    size.poison += x[i] * 0;
  }
  return size;
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
