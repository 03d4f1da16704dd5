// Attention of a step's tokens over the paged cache, which is read where it lies. One block of one kv head:
//
//     keys   [head_dim][block size]             values   [block size][head_dim]
//
//              token 0  1  … 15                          dimension 0  1  … 63
//     dim 0      [ one vector ]                 token 0      [ some vectors  ]
//     dim 1      [            ]                 token 1      [               ]
//     …                                         …
//
// and a block holds those of all kv heads, one after the other; in eight bits each head's scales come behind its own. So both products are the tile of native/tile.h: scores
// have vectors of tokens and run over dimensions, results have vectors of dimensions and run over tokens.
//
// The query heads that share a kv head, of all tokens of a sequence, are the queries of that head:
//
//     query    0        1        2        3        4      …     three query heads to a kv head
//     token    0        0        0        1        1
//     sees     context before + 1         context before + 2
//
// An item is up to 48 of them: a decode's few, for which the cache is read where it lies, or a part of a chunk
// (chunks.h). All its scores are kept, so the softmax needs no correction on the way, and each query's sums have one
// order, whoever shares its item.
#pragma once

#include "../native/threads.h"
#include "chunks.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kWidenFromQueries = 12;

inline int64_t attention_scratch(const Attention& s, const Batch& b) {
  int64_t longest = 0;
  for (int64_t i = 0; i < b.sequences; i++) longest = larger(longest, b.context_lens[i]);
  const int64_t rows = kQueriesOfItem + (s.type == kInt8 ? 2 : 0);  // of scores, and of scales
  return (rows * scores_stride(longest) + chunk_room(s)) * (int64_t)sizeof(float);
}

// Scores of all queries with all tokens, those that a query does not see included.
template <int L, class T>
inline void scores(const Item<T>& item) {
  const int64_t size = item.s.block_size;
  for (int64_t token = 0; token < item.longest; token += kTileVectors * L) {
    const T* columns[kTileVectors];
    for (int v = 0; v < kTileVectors; v++) {
      // A vector behind the context's end is the last one again; nobody sees its scores.
      const int64_t at = smaller(token + v * L, (item.longest - 1) / L * L);
      columns[v] = item.keys + item.block(at / size) + at % size;
    }
    in_tiles<kMostRows, 3, 1>(item.queries, ScoreTile<L, T, T>{item, token, columns, size});
  }
}

template <int L, int V, class T>
struct ValueTile {
  const Item<T>& item;
  int64_t dimension;

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    const int64_t size = item.s.block_size, dim = item.s.head_dim;
    Sums<M, V, L> sums;
    sums.clear();
    for (int64_t token = 0; token < item.longest; token += size) {
      const float* a[M];
      const T* b[V];
      for (int m = 0; m < M; m++) a[m] = item.scores + (query + m) * item.stride + token;
      for (int v = 0; v < V; v++) b[v] = item.values + item.block(token / size) + dimension + v * L;
      sums.add(a, b, dim, smaller(size, item.longest - token));
    }
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++)
        store<L>(item.out[query + m] + dimension + v * L, sums.of[m][v] / item.total[query + m]);
  }
};

template <int L, class T>
inline void results(const Item<T>& item) {
  int64_t dimension = 0;
  for (; dimension + kTileVectors * L <= item.s.head_dim; dimension += kTileVectors * L)
    in_tiles<kMostRows, 3, 1>(item.queries, ValueTile<L, kTileVectors, T>{item, dimension});
  for (; dimension < item.s.head_dim; dimension += L)
    in_tiles<kMostRows, 3, 1>(item.queries, ValueTile<L, 1, T>{item, dimension});
}

template <class T>
inline void attend(Item<T>& item) {
  if (kLanes == 16 && item.s.block_size % 16)
    scores<8>(item);
  else
    scores<kLanes>(item);
  softmax(item);
  if (kLanes == 16 && item.s.head_dim % 16)
    results<8>(item);
  else
    results<kLanes>(item);
}

// q: rows of q_stride that begin with [heads, head_dim]; out: [tokens, heads, head_dim].
// first_items: room for one number per sequence, and one more.
template <class T>
inline void attention_typed(Threads& threads, const Attention& s, const Batch& b, const float* q, int64_t q_stride,
                            const T* keys, const T* values, float* out, int64_t* first_items) {
  const int64_t group = s.heads / s.kv_heads;
  int64_t items = 0;
  for (int64_t i = 0; i < b.sequences; i++) {
    first_items[i] = items;
    items += s.kv_heads * divided_up(b.query_lens[i] * group, kQueriesOfItem);
  }
  first_items[b.sequences] = items;
  threads.run(items, [&](int64_t number, int thread) {
    int64_t sequence = 0, row = 0;
    for (; first_items[sequence + 1] <= number; sequence++) row += b.query_lens[sequence];
    const int64_t query_len = b.query_lens[sequence], parts = divided_up(query_len * group, kQueriesOfItem);
    const int64_t local = number - first_items[sequence], head = local / parts;
    // The end of a chunk sees the most, so it comes first: nobody waits for it in the end.
    const int64_t first = (parts - 1 - local % parts) * kQueriesOfItem;
    Item<T> item = {s,
                    keys + head * head_numbers<T>(s),
                    values + head * head_numbers<T>(s),
                    b.blocks + b.table_starts[sequence],
                    smaller(kQueriesOfItem, query_len * group - first)};
    for (int64_t i = 0; i < item.queries; i++) {
      const int64_t token = (first + i) / group, query_head = head * group + (first + i) % group;
      item.q[i] = q + (row + token) * q_stride + query_head * s.head_dim;
      item.out[i] = out + ((row + token) * s.heads + query_head) * s.head_dim;
      item.visible[i] = b.context_lens[sequence] - query_len + token + 1;
    }
    item.longest = item.visible[item.queries - 1];
    item.scores = threads.scratch(thread);
    item.stride = scores_stride(item.longest);
    float* room = item.scores + kQueriesOfItem * item.stride;
    if constexpr (is_scaled<T>) {
      item.key_scales = room;
      item.value_scales = room + item.stride;
      room += 2 * item.stride;
      gather_scales(item);
    }
    if (item.queries < kWidenFromQueries)
      attend(item);
    else
      attend_in_chunks(item, room);
  });
}

inline void paged_attention(Threads& threads, const Attention& s, const Batch& b, const float* q, int64_t q_stride,
                            const void* keys, const void* values, float* out, int64_t* first_items) {
  switch (s.type) {
    case kBFloat16:
      return attention_typed(threads, s, b, q, q_stride, (const BFloat16*)keys, (const BFloat16*)values, out,
                             first_items);
    case kFloat16:
      return attention_typed(threads, s, b, q, q_stride, (const Half*)keys, (const Half*)values, out, first_items);
    case kInt8:
      return attention_typed(threads, s, b, q, q_stride, (const Int8*)keys, (const Int8*)values, out, first_items);
    default:
      return attention_typed(threads, s, b, q, q_stride, (const float*)keys, (const float*)values, out, first_items);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
