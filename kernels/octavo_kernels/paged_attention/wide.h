// An item of many queries: a part of a prompt. A piece's keys and values are widened first, once for all queries, and
// stay in the second cache while they pass:
//
//     keys    [vectors of tokens][head_dim][L]      values    [tokens][head_dim]
//
// Each sum has the order of native.h, to the last bit.
#pragma once

#include "item.h"

namespace octavo {
namespace OCTAVO_ISA {

// Numbers that an item of many queries needs beside its scores.
inline int64_t wide_numbers(const Attention& s) { return kPiece * s.head_dim; }

// W tokens at a time, which lie together in a block.
template <int W, class T>
inline void widen_keys(const Item<T>& item, float* wide) {
  const int64_t size = item.s.block_size, dim = item.s.head_dim;
  for (int64_t token = item.begin; token < item.end; token += W) {
    const T* from = item.keys_from(token);
    float* to = wide + (token - item.begin) / kLanes * kLanes * dim + token % kLanes;
    if constexpr (is_paired<T>)
      for (int64_t i = 0; i < dim; i += 2) widen_pairs<W>(from + i * size, to + i * kLanes, kLanes);
    else
      for (int64_t i = 0; i < dim; i++) store<W>(to + i * kLanes, load<W>(from + i * size));
  }
}

// L numbers at a time; a row has a multiple of as many.
template <int L, class T>
inline void widen_values(const Item<T>& item, float* wide) {
  const int64_t size = item.s.block_size, dim = item.s.head_dim, numbers = size * dim;
  for (int64_t token = item.begin; token < item.end; token += size, wide += numbers) {
    const T* from = item.values + item.block(token / size);
    if constexpr (is_paired<T>)
      for (int64_t row = 0; row < size; row += 2)
        for (int64_t i = 0; i < dim; i += L) widen_pairs<L>(from + row * dim + 2 * i, wide + row * dim + i, dim);
    else
      for (int64_t i = 0; i < numbers; i += L) store<L>(wide + i, load<L>(from + i));
  }
}

template <class T>
inline void wide_scores(const Item<T>& item, float* wide) {
  const int64_t dim = item.s.head_dim, count = item.end - item.begin;
  if (item.s.block_size % kLanes)
    widen_keys<8>(item, wide);
  else
    widen_keys<kLanes>(item, wide);
  for (int64_t first = 0; first < count; first += kTileVectors * kLanes) {
    const float* columns[kTileVectors];
    for (int v = 0; v < kTileVectors; v++) {
      // A vector behind the context's end is the last one again; nobody sees its scores.
      columns[v] = wide + smaller(first + v * kLanes, (count - 1) / kLanes * kLanes) * dim;
    }
    in_tiles<kMostRows, 3, 1>(item.queries, ScoreTile<kLanes, T, float>{item, first, columns, kLanes, nullptr});
  }
}

template <int L, int V, class T>
struct WideValueTile {
  const Item<T>& item;
  const float* wide;
  int64_t dimension;

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    const int64_t seen = item.seen(query + M - 1);  // nobody in this tile sees more
    if (seen <= 0) return;
    const float* a[M];
    const float* b[V];
    for (int m = 0; m < M; m++) a[m] = item.scores + (query + m) * kScoresStride;
    for (int v = 0; v < V; v++) b[v] = wide + dimension + v * L;
    Sums<M, V, L> sums;
    sums.clear();
    sums.add(a, b, item.s.head_dim, seen);
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) store<L>(item.share(query + m) + dimension + v * L, sums.of[m][v]);
  }
};

template <int L, class T>
inline void wide_results(const Item<T>& item, float* wide) {
  widen_values<L>(item, wide);
  int64_t dimension = 0;
  for (; dimension + kTileVectors * L <= item.s.head_dim; dimension += kTileVectors * L)
    in_tiles<kMostRows, 3, 1>(item.queries, WideValueTile<L, kTileVectors, T>{item, wide, dimension});
  for (; dimension < item.s.head_dim; dimension += L)
    in_tiles<kMostRows, 3, 1>(item.queries, WideValueTile<L, 1, T>{item, wide, dimension});
}

// The shares of the piece at hand. wide: `wide_numbers`.
template <class T>
inline void attend_wide(const Item<T>& item, float* wide) {
  wide_scores(item, wide);
  softmax(item);
  if (kLanes == 16 && item.s.head_dim % 16)
    wide_results<8>(item, wide);
  else
    wide_results<kLanes>(item, wide);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
