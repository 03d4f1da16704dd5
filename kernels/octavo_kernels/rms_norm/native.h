// x / sqrt(mean(x^2) + eps) * weight, a row at a time.
#pragma once

#include <math.h>

#include "../native/simd.h"

namespace octavo {
namespace OCTAVO_ISA {

// y may be x.
inline void rms_norm(const float* x, const float* weight, float eps, float* y, int64_t width) {
  const int64_t whole = width / kLanes * kLanes;
  Vec<kLanes> squares{};
  for (int64_t i = 0; i < whole; i += kLanes) squares += load<kLanes>(x + i) * load<kLanes>(x + i);
  float total = sum<kLanes>(squares);
  for (int64_t i = whole; i < width; i++) total += x[i] * x[i];
  const float factor = 1 / sqrtf(total / (float)width + eps);
  for (int64_t i = 0; i < whole; i += kLanes)
    store<kLanes>(y + i, load<kLanes>(x + i) * factor * load<kLanes>(weight + i));
  for (int64_t i = whole; i < width; i++) y[i] = x[i] * factor * weight[i];
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
