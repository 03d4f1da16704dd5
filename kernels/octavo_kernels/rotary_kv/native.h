// One token: norm and rotation of its queries and keys, and its place in the KV cache, whose layouts
// paged_attention/native.h draws.
#pragma once

#include "../native/abi.h"
#include "../rms_norm/native.h"

namespace octavo {
namespace OCTAVO_ISA {

// Dimension i turns with dimension i + half; y may be x.
inline void rotate(const float* x, const float* cos, const float* sin, float factor, float* y, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = x[i], second = x[i + half];
    y[i] = (first * cos[i] - second * sin[i]) * factor;
    y[i + half] = (second * cos[i] + first * sin[i]) * factor;
  }
}

// qkv: [heads + 2 kv heads, head_dim]; the queries are rotated in place and multiplied by the attention's scale.
template <class T>
inline void rotary_kv(const Attention& s, float* qkv, const float* q_norm, const float* k_norm, float eps,
                      const float* cos, const float* sin, T* keys, T* values, int64_t slot) {
  const int64_t dim = s.head_dim, half = dim / 2, size = s.block_size, place = slot % size;
  const int64_t block = slot / size * s.kv_heads * dim * size;
  for (int64_t head = 0; head < s.heads; head++) {
    float* q = qkv + head * dim;
    if (q_norm) rms_norm(q, q_norm, eps, q, dim);
    rotate(q, cos, sin, s.scale, q, half);
  }
  for (int64_t head = 0; head < s.kv_heads; head++) {
    float* k = qkv + (s.heads + head) * dim;
    const float* v = k + s.kv_heads * dim;
    if (k_norm) rms_norm(k, k_norm, eps, k, dim);
    rotate(k, cos, sin, 1, k, half);
    T* k_columns = keys + block + head * dim * size + place;
    T* v_row = values + block + (head * size + place) * dim;
    for (int64_t i = 0; i < dim; i++) narrow(k[i], k_columns + i * size);
    for (int64_t i = 0; i < dim; i++) narrow(v[i], v_row + i);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
