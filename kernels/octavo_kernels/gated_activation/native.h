// silu(gate) * up, a row at a time.
#pragma once

#include "../native/simd.h"

namespace octavo {
namespace OCTAVO_ISA {

template <int L>
OCTAVO_INLINE Vec<L> silu_mul(Vec<L> gate, Vec<L> up) {
  return gate / (1.0f + exponential<L>(-gate)) * up;
}

// y may be gate.
inline void silu_mul(const float* gate, const float* up, float* y, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    store<kLanes>(y + i, silu_mul<kLanes>(load<kLanes>(gate + i), load<kLanes>(up + i)));
  for (; i < width; i++) y[i] = silu_mul<kLanes>(splat<kLanes>(gate[i]), splat<kLanes>(up[i]))[0];
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
