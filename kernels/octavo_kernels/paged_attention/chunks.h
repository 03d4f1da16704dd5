// An item of many queries: a part of a prompt. Keys and values are widened first, once for all queries, 256 tokens at a
// time, which stay in the second cache while the queries pass:
//
//     keys    [vectors of tokens][head_dim][L]      values    [tokens][head_dim]
//
// Sums wait in the result's memory from one chunk to the next, so their order is that of native.h, to the last bit.
#pragma once

#include "item.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kChunk = 256;

// Numbers that an item of many queries needs beside its scores.
inline int64_t chunk_room(const Attention& s) { return kChunk * s.head_dim; }

// W tokens at a time, which lie together in a block.
template <int W, class T>
inline void widen_keys(const Item<T>& item, int64_t begin, int64_t end, float* wide) {
  const int64_t size = item.s.block_size, dim = item.s.head_dim;
  for (int64_t token = begin; token < end; token += W) {
    const T* from = item.keys + item.block(token / size) + token % size;
    float* to = wide + (token - begin) / kLanes * kLanes * dim + token % kLanes;
    for (int64_t i = 0; i < dim; i++) store<W>(to + i * kLanes, load<W>(from + i * size));
  }
}

template <class T>
inline void widen_values(const Item<T>& item, int64_t begin, int64_t end, float* wide) {
  const int64_t size = item.s.block_size, numbers = size * item.s.head_dim;
  for (int64_t token = begin; token < end; token += size, wide += numbers) {
    const T* from = item.values + item.block(token / size);
    for (int64_t i = 0; i < numbers; i += kLanes) store<kLanes>(wide + i, load<kLanes>(from + i));
  }
}

template <class T>
inline void chunk_scores(const Item<T>& item, float* wide) {
  const int64_t dim = item.s.head_dim;
  for (int64_t begin = 0; begin < item.longest; begin += kChunk) {
    const int64_t end = smaller(begin + kChunk, item.longest);
    if (item.s.block_size % kLanes)
      widen_keys<8>(item, begin, end, wide);
    else
      widen_keys<kLanes>(item, begin, end, wide);
    for (int64_t token = begin; token < end; token += kTileVectors * kLanes) {
      const float* columns[kTileVectors];
      for (int v = 0; v < kTileVectors; v++) {
        // A vector behind the context's end is the last one again; nobody sees its scores.
        const int64_t at = smaller(token + v * kLanes, (end - 1) / kLanes * kLanes);
        columns[v] = wide + (at - begin) * dim;
      }
      in_tiles<kMostRows, 3, 1>(item.queries, ScoreTile<kLanes, T, float>{item, token, columns, kLanes});
    }
  }
}

template <int L, int V, class T>
struct ChunkTile {
  const Item<T>& item;
  const float* wide;
  int64_t begin, end, dimension;

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    const int64_t longest = item.visible[query + M - 1];  // nobody in this tile sees more
    if (begin >= longest) return;
    const float* a[M];
    const float* b[V];
    for (int m = 0; m < M; m++) a[m] = item.scores + (query + m) * item.stride + begin;
    for (int v = 0; v < V; v++) b[v] = wide + dimension + v * L;
    Sums<M, V, L> sums;
    if (begin)
      each(query, [&](Vec<L>& sum, float* out, int64_t) { sum = load<L>(out); }, sums);
    else
      sums.clear();
    sums.add(a, b, item.s.head_dim, smaller(end, longest) - begin);
    const bool last = longest <= end;
    each(query, [&](Vec<L>& sum, float* out, int64_t m) {
      store<L>(out, last ? sum / item.total[query + m] : sum);
    }, sums);
  }

  // Calls body(sums, their place in the result, row of the tile).
  template <int M, class Body>
  OCTAVO_INLINE void each(int64_t query, const Body& body, Sums<M, V, L>& sums) const {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) body(sums.of[m][v], item.out[query + m] + dimension + v * L, m);
  }
};

template <int L, class T>
inline void chunk_results(const Item<T>& item, float* wide) {
  for (int64_t begin = 0; begin < item.longest; begin += kChunk) {
    const int64_t end = smaller(begin + kChunk, item.longest);
    widen_values(item, begin, end, wide);
    int64_t dimension = 0;
    for (; dimension + kTileVectors * L <= item.s.head_dim; dimension += kTileVectors * L)
      in_tiles<kMostRows, 3, 1>(item.queries, ChunkTile<L, kTileVectors, T>{item, wide, begin, end, dimension});
    for (; dimension < item.s.head_dim; dimension += L)
      in_tiles<kMostRows, 3, 1>(item.queries, ChunkTile<L, 1, T>{item, wide, begin, end, dimension});
  }
}

// wide: `chunk_room` numbers.
template <class T>
inline void attend_in_chunks(Item<T>& item, float* wide) {
  chunk_scores(item, wide);
  softmax(item);
  if (kLanes == 16 && item.s.head_dim % 16)
    chunk_results<8>(item, wide);
  else
    chunk_results<kLanes>(item, wide);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
