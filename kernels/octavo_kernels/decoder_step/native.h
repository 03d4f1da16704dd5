// One step of a decoder, all layers in one call:
//
//     embedding ─► residual
//     each layer:  norm ─► qkv ─► rotary, KV write ─► attention ─► output ─► + residual
//                  norm ─► gate, up ─► activation ─► down ─► + residual
//     wanted rows: norm ─► head ─► logits
//
// Everything is float32 but weights, embedding and KV cache, which have their own types, each layer those it was stored in.
#pragma once

#include <stdlib.h>

#include "../linear/native.h"
#include "../native/rows.h"
#include "../paged_attention/native.h"
#include "../rotary_kv/native.h"

namespace octavo {
namespace OCTAVO_ISA {

// A row of a [rows, width] table.
template <class T>
inline void plain_row(const void* table, int64_t row, int64_t width, float* to) {
  for (int64_t i = 0; i < width; i++) to[i] = widened(((const T*)table)[row * width + i]);
}

// A row of a weight in panels: every sixteenth number of its panel, or pair of them.
template <class T>
inline void packed_row(const Linear& l, int64_t row, float* to) {
  constexpr int64_t together = is_paired<T> ? 2 : 1;
  const T* from = (const T*)l.weight + row / kPanel * panel_numbers(l) + row % kPanel * together;
  for (int64_t i = 0; i < l.in; i++) to[i] = widened(from[i / together * together * kPanel + i % together]);
}

template <class T>
inline void embed(Threads& threads, const Model& m, const Batch& b, float* residual) {
  each_row(threads, b.tokens, m.hidden, [&](int64_t row, int) {
    if (m.embedding)
      plain_row<T>(m.embedding, b.token_ids[row], m.hidden, residual + row * m.hidden);
    else
      packed_row<T>(m.head, b.token_ids[row], residual + row * m.hidden);
  });
}

// The same of a weight in groups.
template <class Bits>
inline void embed_groups(Threads& threads, const Model& m, const Batch& b, float* residual) {
  const void* weight = m.embedding ? m.embedding : m.head.weight;
  each_row(threads, b.tokens, m.hidden, [&](int64_t row, int) {
    groups_row<Bits>(weight, m.hidden, b.token_ids[row], residual + row * m.hidden);
  });
}

template <class T>
inline void rotary_rows(Threads& threads, const Attention& s, const Batch& b, const Layer& layer, float eps,
                        const float* cos, const float* sin, float* qkv) {
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  each_row(threads, b.tokens, width, [&](int64_t row, int) {
    const int64_t angle = b.positions[row] * s.head_dim;
    rotary_kv(s, qkv + row * width, layer.q_norm, layer.k_norm, eps, cos + angle, sin + angle, (T*)layer.keys,
              (T*)layer.values, b.slots[row]);
  });
}

inline void rotary_rows(Threads& threads, const Attention& s, const Batch& b, const Layer& layer, float eps,
                        const float* cos, const float* sin, float* qkv) {
  switch (s.type) {
    case kBFloat16: return rotary_rows<BFloat16>(threads, s, b, layer, eps, cos, sin, qkv);
    case kFloat16: return rotary_rows<Half>(threads, s, b, layer, eps, cos, sin, qkv);
    case kInt8: return rotary_rows<Int8>(threads, s, b, layer, eps, cos, sin, qkv);
    default: return rotary_rows<float>(threads, s, b, layer, eps, cos, sin, qkv);
  }
}

// Calls body(layer, the most rows that go through it at a time) for each linear layer: the layers of a model have one
// shape, but a weight may have another type in each.
template <class Body>
inline void each_linear(const Model& m, const Batch& b, const Body& body) {
  const int64_t of_mlp = smaller(b.tokens, kRowsOfItem);
  for (int64_t i = 0; i < m.layer_count; i++) {
    const Layer& layer = m.layers[i];
    body(layer.qkv, b.tokens);
    body(layer.output, b.tokens);
    body(layer.gate_up, of_mlp);
    body(layer.down, of_mlp);
  }
  body(m.head, b.wanted);
}

inline int64_t step_scratch(const Model& m, const Batch& b) {
  int64_t bytes = attention_scratch(m.attention);
  each_linear(m, b, [&](const Linear& l, int64_t) { bytes = larger(bytes, linear_scratch(l)); });
  return bytes;
}

// From row to row of gate and up, side by side. The line between them is for widths that are a multiple of 4 KiB: the
// same column of all rows would be in one place of the first cache.
inline int64_t gate_up_stride(const Model& m) { return 2 * m.intermediate + 16; }

// What all layers share, one after the other in memory of `step_room` numbers.
struct Room {
  float *residual, *qkv, *attended;
  float* gate_up;       // of one item's rows
  float* of_operation;  // what the linear layers and attention need, one after the other
};

inline int64_t step_room(const Model& m, const Batch& b) {
  const Attention& s = m.attention;
  int64_t of_operation = attention_room(s, b);
  each_linear(m, b, [&](const Linear& l, int64_t rows) { of_operation = larger(of_operation, linear_room(l, rows)); });
  const int64_t row = m.hidden + (2 * s.heads + 2 * s.kv_heads) * s.head_dim;
  const int64_t of_mlp = smaller(b.tokens, kRowsOfItem) * gate_up_stride(m);
  return divided_up(b.tokens * row + of_mlp, 16) * 16 + of_operation;
}

inline Room rooms(const Model& m, int64_t tokens, float* memory) {
  const Attention& s = m.attention;
  Room room;
  room.residual = memory;
  room.qkv = room.residual + tokens * m.hidden;
  room.attended = room.qkv + tokens * (s.heads + 2 * s.kv_heads) * s.head_dim;
  room.gate_up = room.attended + tokens * s.heads * s.head_dim;
  const int64_t before = room.gate_up + smaller(tokens, kRowsOfItem) * gate_up_stride(m) - room.residual;
  room.of_operation = room.residual + divided_up(before, 16) * 16;
  return room;
}

inline void attention_layer(Threads& threads, const Model& m, const Layer& layer, const Batch& b, const Room& room) {
  const Attention& s = m.attention;
  const int64_t qkv_width = (s.heads + 2 * s.kv_heads) * s.head_dim, width = s.heads * s.head_dim;
  const Source normed{room.residual, m.hidden, layer.attention_norm, m.eps};
  linear(threads, layer.qkv, normed, {room.qkv, qkv_width, false}, b.tokens, room.of_operation);
  rotary_rows(threads, s, b, layer, m.eps, m.cos, m.sin, room.qkv);
  paged_attention(threads, s, b, room.qkv, qkv_width, layer.keys, layer.values, room.attended,
                  room.of_operation);
  linear(threads, layer.output, {room.attended, width}, {room.residual, m.hidden, true}, b.tokens, room.of_operation);
}

// As many rows at a time as one item of a product takes, so that what is between gate, up and down stays in the caches.
inline void mlp_layer(Threads& threads, const Model& m, const Layer& layer, int64_t tokens, const Room& room) {
  const int64_t stride = gate_up_stride(m);
  for (int64_t first = 0; first < tokens; first += kRowsOfItem) {
    const int64_t rows = smaller(kRowsOfItem, tokens - first);
    float* residual = room.residual + first * m.hidden;
    const Source normed{residual, m.hidden, layer.mlp_norm, m.eps};
    const Source gated = gated_linear(threads, layer.gate_up, normed, room.gate_up, stride, rows, room.of_operation);
    linear(threads, layer.down, gated, {residual, m.hidden, true}, rows, room.of_operation);
  }
}

// logits: [wanted, head.out]. memory: `step_room` numbers.
inline void decoder_step(Threads& threads, const Model& m, const Batch& b, float* logits, float* memory) {
  const Room room = rooms(m, b.tokens, memory);
  switch (m.embedding_type) {
    case kBFloat16: embed<BFloat16>(threads, m, b, room.residual); break;
    case kFloat16: embed<Half>(threads, m, b, room.residual); break;
    case kGroups4: embed_groups<FourBits>(threads, m, b, room.residual); break;
    case kGroups8: embed_groups<EightBits>(threads, m, b, room.residual); break;
    default: embed<float>(threads, m, b, room.residual);
  }
  for (int64_t i = 0; i < m.layer_count; i++) {
    attention_layer(threads, m, m.layers[i], b, room);
    mlp_layer(threads, m, m.layers[i], b.tokens, room);
  }
  const Source wanted{room.residual, m.hidden, m.norm, m.eps, 0, b.wanted_rows};
  linear(threads, m.head, wanted, {logits, m.head.out, false}, b.wanted, room.of_operation);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
