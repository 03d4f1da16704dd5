// One token: norm and rotation of its queries and keys, and its place in the KV cache, whose layouts
// paged_attention/native.h draws.
#pragma once

#include "../paged_attention/item.h"
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

// x: [dim], to `to`, each number at its place(dimension).
template <class T, class Place>
inline void write_row(const float* x, int64_t dim, T* to, const Place& place, T*) {
  for (int64_t i = 0; i < dim; i++) narrow(x[i], to + place(i));
}

// As whole numbers of -127 to 127, to which x is rounded, and their scale. A row with a number that is not finite has a
// scale of NaN.
template <class Place>
inline void write_row(float* x, int64_t dim, Int8* to, const Place& place, Int8* scale) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < dim; i++) {
    const float size = fabsf(x[i]);
    largest = size > largest ? size : largest;
    finite &= size <= 3.402823466e38f;
  }
  const float step = finite ? largest / 127 : NAN;
  memcpy(scale, &step, sizeof step);
  for (int64_t i = 0; i < dim; i++) {
    const float steps = step > 0 ? rintf(x[i] / step) : 0;
    x[i] = steps > 127 ? 127 : steps < -127 ? -127 : steps;
  }
  for (int64_t i = 0; i < dim; i++) to[place(i)].value = (int8_t)x[i];
}

// qkv: [heads + 2 kv heads, head_dim]; all of it may be overwritten; the queries are rotated in place and multiplied by the
// attention's scale.
template <class T>
inline void rotary_kv(const Attention& s, float* qkv, const float* q_norm, const float* k_norm, float eps,
                      const float* cos, const float* sin, T* keys, T* values, int64_t slot) {
  const int64_t dim = s.head_dim, half = dim / 2, size = s.block_size, place = slot % size;
  const int64_t numbers = head_numbers<T>(s), block = slot / size * s.kv_heads * numbers;
  for (int64_t head = 0; head < s.heads; head++) {
    float* q = qkv + head * dim;
    if (q_norm) rms_norm(q, q_norm, eps, q, dim);
    rotate(q, cos, sin, s.scale, q, half);
  }
  for (int64_t head = 0; head < s.kv_heads; head++) {
    float* k = qkv + (s.heads + head) * dim;
    float* v = k + s.kv_heads * dim;
    if (k_norm) rms_norm(k, k_norm, eps, k, dim);
    rotate(k, cos, sin, 1, k, half);
    T* k_head = keys + block + head * numbers;
    T* v_head = values + block + head * numbers;
    const int64_t scale = dim * size + place * (numbers / size - dim);  // nothing lies there but in eight bits
    write_row(k, dim, k_head, [&](int64_t i) { return key_place<T>(s, place, i); }, k_head + scale);
    write_row(v, dim, v_head, [&](int64_t i) { return value_place<T>(s, place, i); }, v_head + scale);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
