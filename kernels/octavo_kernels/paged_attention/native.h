// Attention of a step's tokens over the paged cache, which is read where it lies. One block of one kv head:
//
//     keys   [head_dim][block size]             values   [block size][head_dim]
//
//              token 0  1  … 15                          dimension 0  1  … 63
//     dim 0      [ one vector ]                 token 0      [ some vectors  ]
//     dim 1      [            ]                 token 1      [               ]
//     …                                         …
//
// or in bfloat16, where two rows are one vector of pairs, as in a weight:
//
//            [head_dim / 2][block size][2]               [block size / 2][head_dim][2]
//
//              token 0    1    … 15                      dimension 0    1    … 63
//     dims 0, 1  [ 0, 1 | 0, 1 | … ]            tokens 0, 1  [ 0, 1 | 0, 1 | … ]
//     dims 2, 3  [ 2, 3 | 2, 3 | … ]            tokens 2, 3  [ 2, 3 | 2, 3 | … ]
//     …                                         …
//
// and a block holds those of all kv heads, one after the other; in eight bits each head's scales come behind its own. So
// both products are the tile of native/tile.h: scores have vectors of tokens and run over dimensions, results have
// vectors of dimensions and run over tokens. Pairs are what matrix registers want, where there are such (tiles.h),
// and products of pairs (pairs.h).
//
// The query heads that share a kv head, of all tokens of a sequence, are the queries of that head:
//
//     query    0        1        2        3        4      …     three query heads to a kv head
//     token    0        0        0        1        1
//     sees     context before + 1         context before + 2
//
// An item is up to 48 of them, or 96 in tiles.h, and a piece of the context (item.h): a decode's few, for which the cache is
// read where it lies, or a part of a chunk (wide.h), which goes through all pieces of its context. A decode's pieces are
// items of their own, so that several threads can share one long context; another region puts them together.
#pragma once

#include "../native/rows.h"
#include "pairs.h"
#include "tiles.h"
#include "wide.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kWidenFromQueries = 12;

// Scores of all queries with the piece's tokens. Blocks lie anywhere in memory: what is next is asked for meanwhile, and
// values after the last keys, which take as many bytes.
template <int L, class T>
inline void scores(const Item<T>& item) {
  const int64_t size = item.s.block_size, together = kTileVectors * L, last = (item.end - 1) / L * L;
  for (int64_t token = item.begin; token < item.end; token += together) {
    const T *columns[kTileVectors], *ahead[kTileVectors];
    for (int v = 0; v < kTileVectors; v++) {
      // A vector behind the context's end is the last one again; nobody sees its scores.
      columns[v] = item.keys_from(smaller(token + v * L, last));
      ahead[v] = token + together < item.end
                     ? item.keys_from(smaller(token + together + v * L, last))
                     : item.keys_from(smaller(item.begin + v * L, last)) - item.keys + item.values;
    }
    const int64_t stride = is_paired<T> ? 2 * size : size;
    in_tiles<kMostRows, 3, 1>(item.queries, ScoreTile<L, T, T>{item, token - item.begin, columns, stride, ahead});
  }
}

template <int L, int V, class T>
struct ValueTile {
  const Item<T>& item;
  int64_t dimension;

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    const int64_t size = item.s.block_size, dim = item.s.head_dim, seen = item.seen(query + M - 1);
    Sums<M, V, L> sums;
    sums.clear();
    for (int64_t first = 0; first < seen; first += size) {
      const float* a[M];
      const T *b[V], *ahead[V];
      for (int m = 0; m < M; m++) a[m] = item.scores + (query + m) * kScoresStride + first;
      const int64_t later = smaller(item.begin + first + kAskedAhead, item.end - 1);
      for (int v = 0; v < V; v++) {
        const int64_t place = value_place<T>(item.s, 0, dimension + v * L);
        b[v] = item.values + item.block((item.begin + first) / size) + place;
        ahead[v] = item.values + item.block(later / size) + place;
      }
      sums.add(a, b, is_paired<T> ? 2 * dim : dim, smaller(size, seen - first), ahead);
    }
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) store<L>(item.share(query + m) + dimension + v * L, sums.of[m][v]);
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

// The shares of the piece at hand.
template <class T>
inline void attend(const Item<T>& item) {
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

// A thread, and its memory for an item.
struct ItemRoom {
  Threads& threads;
  int thread;
  float *scores, *scales, *shares, *later, *of_form;
};

inline int64_t queries_of_item(const Attention& s) {
  return has_tiles<BFloat16> && s.type == kBFloat16 ? kQueriesOfTiles : kQueriesOfItem;
}

inline int64_t attention_scratch(const Attention& s) {
  const int64_t shares = 2 * queries_of_item(s) * share_numbers(s);
  const int64_t of_form = larger(wide_numbers(s), larger(tile_numbers(s), pair_numbers(s)));
  return (kQueriesOfItem * kScoresStride + 2 * kPiece + shares + of_form) * (int64_t)sizeof(float);
}

inline ItemRoom item_room(const Attention& s, Threads& threads, int thread) {
  ItemRoom room{threads, thread};
  room.scores = threads.scratch(thread);
  room.scales = room.scores + kQueriesOfItem * kScoresStride;
  room.shares = room.scales + 2 * kPiece;
  room.later = room.shares + queries_of_item(s) * share_numbers(s);
  room.of_form = room.later + queries_of_item(s) * share_numbers(s);
  return room;
}

// How a sequence of a step becomes items.
struct Cut {
  int64_t group, queries;  // of each kv head
  int64_t parts;           // of the queries
  int64_t pieces;          // of the context, each an item of its own; 1: it goes through all

  Cut(const Attention& s, const Batch& b, int64_t sequence)
      : group(s.heads / s.kv_heads),
        queries(b.query_lens[sequence] * group),
        parts(divided_up(queries, queries_of_item(s))),
        pieces(queries < kWidenFromQueries ? divided_up(b.context_lens[sequence], kPiece) : 1) {}

  int64_t shares(const Attention& s) const { return pieces > 1 ? s.kv_heads * pieces * queries : 0; }
};

// What all items need, one after the other: [sequences + 1] numbers of their first items, the same of their first shares,
// and the shares: of each sequence [kv heads, pieces, queries].
struct AttentionRoom {
  int64_t *first_items, *first_shares;
  float* shares;
};

inline int64_t attention_room(const Attention& s, const Batch& b) {
  int64_t shares = 0;
  for (int64_t i = 0; i < b.sequences; i++) shares += Cut(s, b, i).shares(s);
  return divided_up(4 * (b.sequences + 1), 16) * 16 + shares * share_numbers(s);
}

inline AttentionRoom attention_room(const Attention& s, const Batch& b, float* memory) {
  AttentionRoom room;
  room.first_items = (int64_t*)memory;
  room.first_shares = room.first_items + b.sequences + 1;
  room.shares = memory + divided_up(4 * (b.sequences + 1), 16) * 16;
  int64_t items = 0, shares = 0;
  for (int64_t i = 0; i <= b.sequences; i++) {
    room.first_items[i] = items;
    room.first_shares[i] = shares;
    if (i == b.sequences) break;
    const Cut cut(s, b, i);
    items += s.kv_heads * cut.parts * cut.pieces;
    shares += cut.shares(s);
  }
  return room;
}

// The shares of the piece that begins there.
template <class T>
inline void attend_piece(Item<T>& item, int64_t begin, float* shares, const ItemRoom& room) {
  item.begin = begin;
  item.end = smaller(begin + kPiece, item.longest());
  item.shares = shares;
  if constexpr (is_scaled<T>) gather_scales(item);
  if constexpr (has_tiles<T>) return attend_tiles(item, room.threads, room.thread, room.of_form);
  if constexpr (has_pair_products<T>)
    if (item.s.rounded) return attend_pairs(item, room.of_form);
  if (item.queries < kWidenFromQueries)
    attend(item);
  else
    attend_wide(item, room.of_form);
}

template <class T>
inline void attend_all(Item<T>& item, const ItemRoom& room) {
  const int64_t dim = item.s.head_dim, share = share_numbers(item.s);
  attend_piece(item, 0, room.shares, room);
  for (int64_t begin = kPiece; begin < item.longest(); begin += kPiece) {
    attend_piece(item, begin, room.later, room);
    for (int64_t i = 0; i < item.queries; i++)
      if (item.seen(i) > 0) merge(room.shares + i * share, room.later + i * share, dim);
  }
  for (int64_t i = 0; i < item.queries; i++) finish(room.shares + i * share, item.out[i], dim);
}

// Puts together what the pieces of a decode's context have left.
inline void merge_pieces(Threads& threads, const Attention& s, const Batch& b, const AttentionRoom& room, float* out) {
  const int64_t dim = s.head_dim, share = share_numbers(s);
  int64_t row = 0;
  for (int64_t sequence = 0; sequence < b.sequences; row += b.query_lens[sequence++]) {
    const Cut cut(s, b, sequence);
    if (cut.pieces == 1) continue;
    float* shares = room.shares + room.first_shares[sequence] * share;
    const int64_t context_before = b.context_lens[sequence] - b.query_lens[sequence];
    each_row(threads, s.kv_heads * cut.queries, cut.pieces * dim, [&](int64_t number, int) {
      const int64_t head = number / cut.queries, query = number % cut.queries, token = query / cut.group;
      float* all = shares + (head * cut.pieces * cut.queries + query) * share;
      for (int64_t piece = 1; piece * kPiece <= context_before + token; piece++)
        merge(all, all + piece * cut.queries * share, dim);
      finish(all, out + ((row + token) * s.heads + head * cut.group + query % cut.group) * dim, dim);
    });
  }
}

// q: rows of q_stride that begin with [heads, head_dim]; out: [tokens, heads, head_dim].
// memory: `attention_room` numbers.
template <class T>
inline void attention_typed(Threads& threads, const Attention& s, const Batch& b, const float* q, int64_t q_stride,
                            const T* keys, const T* values, float* out, float* memory) {
  const AttentionRoom room = attention_room(s, b, memory);
  threads.run(room.first_items[b.sequences], [&](int64_t number, int thread) {
    int64_t sequence = 0, row = 0;
    for (; room.first_items[sequence + 1] <= number; sequence++) row += b.query_lens[sequence];
    const Cut cut(s, b, sequence);
    const int64_t local = number - room.first_items[sequence], of_head = cut.parts * cut.pieces;
    const int64_t head = local / of_head, piece = local % cut.pieces;
    // The end of a chunk sees the most, so it comes first: nobody waits for it in the end.
    const int64_t most = queries_of_item(s), first = (cut.parts - 1 - local % of_head / cut.pieces) * most;
    Item<T> item = {s,
                    keys + head * head_numbers<T>(s),
                    values + head * head_numbers<T>(s),
                    b.blocks + b.table_starts[sequence],
                    smaller(most, cut.queries - first)};
    for (int64_t i = 0; i < item.queries; i++) {
      const int64_t token = (first + i) / cut.group, query_head = head * cut.group + (first + i) % cut.group;
      item.q[i] = q + (row + token) * q_stride + query_head * s.head_dim;
      item.out[i] = out + ((row + token) * s.heads + query_head) * s.head_dim;
      item.visible[i] = b.context_lens[sequence] - b.query_lens[sequence] + token + 1;
    }
    const ItemRoom own = item_room(s, threads, thread);
    item.scores = own.scores;
    item.key_scales = own.scales;
    item.value_scales = own.scales + kPiece;
    if (cut.pieces == 1) return attend_all(item, own);
    const int64_t share = room.first_shares[sequence] + (head * cut.pieces + piece) * cut.queries;
    attend_piece(item, piece * kPiece, room.shares + share * share_numbers(s), own);
  });
  merge_pieces(threads, s, b, room, out);
}

inline void paged_attention(Threads& threads, const Attention& s, const Batch& b, const float* q, int64_t q_stride,
                            const void* keys, const void* values, float* out, float* memory) {
  switch (s.type) {
    case kBFloat16:
      return attention_typed(threads, s, b, q, q_stride, (const BFloat16*)keys, (const BFloat16*)values, out, memory);
    case kFloat16:
      return attention_typed(threads, s, b, q, q_stride, (const Half*)keys, (const Half*)values, out, memory);
    case kInt8:
      return attention_typed(threads, s, b, q, q_stride, (const Int8*)keys, (const Int8*)values, out, memory);
    default:
      return attention_typed(threads, s, b, q, q_stride, (const float*)keys, (const float*)values, out, memory);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
