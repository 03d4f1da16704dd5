// What crosses the boundary to Python (native/abi.py has the same structures): plain C, 64-bit fields, no ownership.
#pragma once

#include <stdint.h>

namespace octavo {

// From kInt8Quads on they are of weights alone.
enum Type : int64_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFloat16 = 2,
  kInt8 = 3,
  kInt8Quads = 4,
  kGroups4 = 5,  // in groups with scales of their own: linear/groups.h
  kGroups8 = 6,
};

// A weight in panels of 16 columns; linear/native.h draws it, linear/quads.h and linear/groups.h their own forms.
struct Linear {
  const void* weight;
  const float* bias;  // or null
  int64_t out, in;
  int64_t type;
  const float* scales;     // of each output, panels filled up: what the weights are multiplied by; null: one
  const int32_t* offsets;  // of each output, likewise: -128 times the sum of its weights; quads alone
  int64_t int8_rows;       // of an int8 weight: whether rows are rounded to eight bits as well
};

struct Layer {
  const float* attention_norm;
  const float* q_norm;  // or null, with k_norm
  const float* k_norm;
  const float* mlp_norm;
  Linear qkv, output, gate_up, down;
  void* keys;  // [blocks] of the layouts that paged_attention/native.h draws
  void* values;
};

struct Attention {
  int64_t heads, kv_heads, head_dim, block_size;
  int64_t type;     // of the KV cache
  int64_t rounded;  // whether queries and weights are rounded to bfloat16 where they meet a cache in it on AMX
  float scale;      // of queries, log2(e) included: weights are powers of two
};

struct Model {
  int64_t hidden, intermediate, layer_count;
  Attention attention;
  float eps;
  const Layer* layers;
  const float* norm;
  Linear head;
  const void* embedding;  // [vocabulary, hidden], in groups as a weight; or null: the head's weight
  int64_t embedding_type;
  const float* cos;  // [positions, head_dim]
  const float* sin;
};

// Sequences lie one after the other in token_ids, positions and slots.
struct Batch {
  int64_t tokens, sequences, wanted;
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* slots;         // block * block_size + place
  const int64_t* query_lens;    // for each sequence its tokens in this step
  const int64_t* context_lens;  // and all its tokens with KV
  const int64_t* table_starts;  // where its blocks begin in `blocks`
  const int32_t* blocks;
  const int64_t* wanted_rows;  // tokens whose logits are wanted
};

// How a token is drawn from each row of logits.
struct Draws {
  const float* temperature;  // 0: greedy
  const int64_t* top_k;      // 0: all
  const float* top_p;
  const float* min_p;
  const double* uniform;
};

}  // namespace octavo
