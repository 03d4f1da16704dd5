// The unit of work of native.h, and the softmax of its scores.
#pragma once

#include <math.h>

#include "../native/abi.h"
#include "../native/tile.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kQueriesOfItem = 48;

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

  int64_t block(int64_t number) const { return (int64_t)blocks[number] * s.kv_heads * s.head_dim * s.block_size; }
};

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
        store<L>(item.scores + (query + m) * item.stride + token + v * L, sums.of[m][v]);
  }
};

// Scores become weights, zero for what a query does not see; returns their sum.
inline float weights(float* scores, int64_t visible, int64_t longest) {
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
    store<kLanes>(scores + i, seen);
    totals += seen;
  }
  for (int64_t i = end; i < longest; i++) scores[i] = 0;
  return sum<kLanes>(totals);
}

template <class T>
inline void softmax(Item<T>& item) {
  for (int64_t query = 0; query < item.queries; query++)
    item.total[query] = weights(item.scores + query * item.stride, item.visible[query], item.longest);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
