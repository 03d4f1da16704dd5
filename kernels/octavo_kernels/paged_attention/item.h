// The unit of work of native.h, and the softmax of its scores.
#pragma once

#include <math.h>

#include "../native/abi.h"
#include "../native/tile.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kQueriesOfItem = 48;

// Numbers of a row: a token's keys or values of one kv head, in eight bits with their scale, a float, behind them.
template <class T>
inline int64_t row_numbers(const Attention& s) {
  return s.head_dim + (is_scaled<T> ? (int64_t)sizeof(float) : 0);
}

// Numbers of one kv head in one block. Scales lie behind its keys or values: [block size] floats.
template <class T>
inline int64_t head_numbers(const Attention& s) {
  return row_numbers<T>(s) * s.block_size;
}

// An odd number of cache lines: else all rows of a tile would lie in the same few sets of the first cache.
inline int64_t scores_stride(int64_t context) { return (divided_up(context, 64) * 4 + 1) * 16; }

// Some queries of one kv head and one sequence, in the order of their tokens.
template <class T>
struct Item {
  const Attention& s;
  const T* keys;    // of the item's kv head in block 0
  const T* values;  // likewise
  const int32_t* blocks;
  int64_t queries, longest;        // the context that the last query sees
  const float* q[kQueriesOfItem];  // [head_dim] each, rotated and scaled
  float* out[kQueriesOfItem];
  int64_t visible[kQueriesOfItem];
  float total[kQueriesOfItem];  // of the weights
  float* scores;                // [queries, stride]
  int64_t stride;
  float *key_scales, *value_scales;  // [stride] each, of the item's tokens, then 0; of eight bits alone

  int64_t block(int64_t number) const { return (int64_t)blocks[number] * s.kv_heads * head_numbers<T>(s); }
};

// Scales of the item's tokens side by side, to be read in vectors of any length.
inline void gather_scales(const Item<Int8>& item) {
  const int64_t size = item.s.block_size, behind = item.s.head_dim * size;
  for (int64_t token = 0; token < item.longest; token += size) {
    const int64_t at = item.block(token / size) + behind, bytes = smaller(size, item.longest - token) * sizeof(float);
    memcpy(item.key_scales + token, item.keys + at, bytes);
    memcpy(item.value_scales + token, item.values + at, bytes);
  }
  const int64_t rest = (item.stride - item.longest) * sizeof(float);
  memset(item.key_scales + item.longest, 0, rest);
  memset(item.value_scales + item.longest, 0, rest);
}

// Scores of M queries with V vectors of tokens.
template <int L, class T, class K>
struct ScoreTile {
  const Item<T>& item;
  int64_t token;
  const K* const* columns;
  int64_t stride;  // from dimension to dimension

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    Sums<M, kTileVectors, L> sums;
    sums.clear();
    sums.add(item.q + query, columns, stride, item.s.head_dim);
    for (int m = 0; m < M; m++)
      for (int v = 0; v < kTileVectors; v++)
        store<L>(item.scores + (query + m) * item.stride + token + v * L, scaled(sums.of[m][v], token + v * L));
  }

  OCTAVO_INLINE Vec<L> scaled(Vec<L> sums, int64_t first) const {
    if constexpr (is_scaled<T>) return sums * load<L>(item.key_scales + first);
    return sums;
  }
};

// Scores become weights, zero for what a query does not see; returns their sum. Then each is multiplied by its token's
// scale, where there are scales.
template <bool kScaled>
inline float weights(float* scores, const float* scales, int64_t visible, int64_t longest) {
  const int64_t end = divided_up(visible, kLanes) * kLanes;
  for (int64_t i = visible; i < end; i++) scores[i] = -INFINITY;
  Vec<kLanes> most = splat<kLanes>(-INFINITY);
  for (int64_t i = 0; i < end; i += kLanes) {
    const Vec<kLanes> x = load<kLanes>(scores + i);
    most = x > most ? x : most;
  }
  float maximum = most[0];
  for (int i = 1; i < kLanes; i++) maximum = most[i] > maximum ? most[i] : maximum;
  Vec<kLanes> totals{};
  for (int64_t i = 0; i < end; i += kLanes) {
    const Vec<kLanes> x = load<kLanes>(scores + i);
    const Vec<kLanes> weight = exponential<kLanes>(x - maximum);
    const Vec<kLanes> seen = x == -INFINITY ? Vec<kLanes>{} : weight;
    store<kLanes>(scores + i, kScaled ? (x == -INFINITY ? seen : seen * load<kLanes>(scales + i)) : seen);
    totals += seen;
  }
  for (int64_t i = end; i < longest; i++) scores[i] = 0;
  return sum<kLanes>(totals);
}

template <class T>
inline void softmax(Item<T>& item) {
  for (int64_t query = 0; query < item.queries; query++)
    item.total[query] = weights<is_scaled<T>>(item.scores + query * item.stride, item.value_scales,
                                              item.visible[query], item.longest);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
