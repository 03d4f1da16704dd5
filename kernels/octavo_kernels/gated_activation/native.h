// silu(gate) * up, in place of the gate.
#pragma once

#include "../native/simd.h"

namespace octavo {
namespace OCTAVO_ISA {

template <int L>
OCTAVO_INLINE Vec<L> silu_mul(Vec<L> gate, Vec<L> up) {
  return gate / (1.0f + exponential<L>(-gate)) * up;
}

inline void silu_mul(float* gate, const float* up, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    store<kLanes>(gate + i, silu_mul<kLanes>(load<kLanes>(gate + i), load<kLanes>(up + i)));
  for (; i < width; i++) gate[i] = silu_mul<kLanes>(splat<kLanes>(gate[i]), splat<kLanes>(up[i]))[0];
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
