// The piece of an item by AVX512-BF16, for a cache in bfloat16 whose queries and weights may be rounded to it (ADR 50): one
// instruction multiplies a pair of a row with 16 pairs of columns, and adds both products to 16 sums. In both products of
// attention the cache has its pairs where the instruction wants them, so it is read where it lies, by prompts too:
//
//                       token 0    1    … 15                                 dimension 0    1    … 15
//     query ──► dims 0, 1  [ 0, 1 | 0, 1 | … ]        weights ──► tokens 0, 1  [ 0, 1 | 0, 1 | … ]
//               dims 2, 3  [ 2, 3 | 2, 3 | … ]                    tokens 2, 3  [ 2, 3 | 2, 3 | … ]
//
// Its products of a pair have an order of their own, so a decode goes this way as a prompt does.
#pragma once

#include "item.h"

namespace octavo {
namespace OCTAVO_ISA {

// Whether a cache of this type goes this way here, where it may.
template <class T>
constexpr bool has_pair_products = false;

#if defined(__AVX512BF16__) && !defined(__AMX_TILE__)

template <>
inline constexpr bool has_pair_products<BFloat16> = true;

// A thread's memory for it.
struct PairRoom {
  BFloat16* queries;  // [kQueriesOfItem, head_dim]
  BFloat16* last;     // [head_dim][2]: of the piece's last token, where it has no second one beside it

  PairRoom(const Attention& s, float* memory)
      : queries((BFloat16*)memory), last(queries + kQueriesOfItem * s.head_dim) {}
};

// Floats that it takes.
inline int64_t pair_numbers(const Attention& s) { return (kQueriesOfItem + 2) * s.head_dim / 2; }

OCTAVO_INLINE Vec<16> add_products(Vec<16> sums, Types<16>::Int row, Types<16>::Int columns) {
  return (Vec<16>)_mm512_dpbf16_ps((__m512)sums, (__m512bh)row, (__m512bh)columns);
}
OCTAVO_INLINE Vec<8> add_products(Vec<8> sums, Types<8>::Int row, Types<8>::Int columns) {
  return (Vec<8>)_mm256_dpbf16_ps((__m256)sums, (__m256bh)row, (__m256bh)columns);
}

// M rows of pairs times V vectors of columns of pairs, as `Sums` (native/tile.h) has them.
template <int M, int V, int L>
struct PairSums {
  using Pairs = typename Types<L>::Int;

  Vec<L> of[M][V];

  OCTAVO_INLINE void clear() {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) of[m][v] = Vec<L>{};
  }

  // a: the rows; k: number of the pair; columns: where those of it begin.
  OCTAVO_INLINE void add(const BFloat16* const* a, int64_t k, const BFloat16* const* columns) {
    Pairs column[V];
    for (int v = 0; v < V; v++) memcpy(&column[v], columns[v], sizeof(Pairs));
    for (int m = 0; m < M; m++) {
      int32_t pair;
      memcpy(&pair, a[m] + 2 * k, sizeof pair);
      const Pairs row = Pairs{} + pair;
      for (int v = 0; v < V; v++) of[m][v] = add_products(of[m][v], row, column[v]);
    }
  }
};

// Scores of M queries with four vectors of tokens, those that a query does not see included.
template <int L>
struct PairScores {
  const Item<BFloat16>& item;
  const BFloat16* queries;
  int64_t first;  // in the piece
  const BFloat16* const* columns;
  const BFloat16* const* ahead;  // what the first queries ask for meanwhile

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    if (item.seen(query + M - 1) <= first) return;
    const int64_t dim = item.s.head_dim, stride = 2 * item.s.block_size;
    const BFloat16* a[M];
    for (int m = 0; m < M; m++) a[m] = queries + (query + m) * dim;
    PairSums<M, kTileVectors, L> sums;
    sums.clear();
    for (int64_t k = 0; k < dim / 2; k++) {
      const BFloat16* from[kTileVectors];
      for (int v = 0; v < kTileVectors; v++) {
        from[v] = columns[v] + k * stride;
        if (!query) __builtin_prefetch(ahead[v] + k * stride);
      }
      sums.add(a, k, from);
    }
    for (int m = 0; m < M; m++)
      for (int v = 0; v < kTileVectors; v++)
        store<L>(item.scores + (query + m) * kScoresStride + first + v * L, sums.of[m][v]);
  }
};

// Blocks lie anywhere in memory: what is next is asked for meanwhile, and values after the last keys.
template <int L>
inline void pair_scores(const Item<BFloat16>& item, const BFloat16* queries) {
  const int64_t together = kTileVectors * L, last = (item.end - 1) / L * L;
  for (int64_t token = item.begin; token < item.end; token += together) {
    const BFloat16 *columns[kTileVectors], *ahead[kTileVectors];
    for (int v = 0; v < kTileVectors; v++) {
      // A vector behind the context's end is the last one again; nobody sees its scores.
      columns[v] = item.keys_from(smaller(token + v * L, last));
      ahead[v] = token + together < item.end
                     ? item.keys_from(smaller(token + together + v * L, last))
                     : item.keys_from(smaller(item.begin + v * L, last)) - item.keys + item.values;
    }
    in_tiles<kMostRows, 3, 1>(item.queries, PairScores<L>{item, queries, token - item.begin, columns, ahead});
  }
}

// A query's weights, rounded, where its scores were.
inline BFloat16* rounded_weights(const Item<BFloat16>& item, int64_t query) {
  return (BFloat16*)(item.scores + query * kScoresStride);
}

// Rounds all weights in their place: 32 are written where 16 of those that were read lay.
inline void round_weights(const Item<BFloat16>& item) {
  const int64_t count = item.end - item.begin;
  for (int64_t query = 0; query < item.queries; query++) {
    float* weights = item.scores + query * kScoresStride;
    if (count % 2) weights[count] = 0;  // beside the last token's
    for (int64_t i = 0; i < count; i += 32) {
      const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + i + 16), _mm512_loadu_ps(weights + i));
      memcpy(rounded_weights(item, query) + i, &rounded, sizeof rounded);
    }
  }
}

// Where the values of each pair of the piece's tokens begin. The last may have one alone: what lies beside it can be NaN,
// and zero times NaN is NaN, so it is copied.
struct PairPlaces {
  const BFloat16* of[kPiece / 2];

  PairPlaces(const Item<BFloat16>& item, BFloat16* last) {
    const int64_t size = item.s.block_size, dim = item.s.head_dim, count = item.end - item.begin;
    for (int64_t token = 0; token < count; token += size) {
      const BFloat16* block = item.values + item.block((item.begin + token) / size);
      for (int64_t i = 0; i < size && token + i < count; i += 2) of[(token + i) / 2] = block + i * dim;
    }
    if (count % 2 == 0) return;
    for (int64_t i = 0; i < 2 * dim; i += 2) last[i] = of[count / 2][i], last[i + 1].bits = 0;
    of[count / 2] = last;
  }
};

template <int L, int V>
struct PairValues {
  const Item<BFloat16>& item;
  const PairPlaces& places;
  int64_t dimension;

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    const int64_t pairs = divided_up(item.seen(query + M - 1), 2);  // nobody in this tile sees more
    const int64_t last = (item.end - item.begin - 1) / 2;
    if (pairs <= 0) return;
    const BFloat16* a[M];
    for (int m = 0; m < M; m++) a[m] = rounded_weights(item, query + m);
    PairSums<M, V, L> sums;
    sums.clear();
    for (int64_t k = 0; k < pairs; k++) {
      const BFloat16* from[V];
      for (int v = 0; v < V; v++) {
        from[v] = places.of[k] + 2 * (dimension + v * L);
        if (!query) __builtin_prefetch(places.of[smaller(k + kAskedAhead / 2, last)] + 2 * (dimension + v * L));
      }
      sums.add(a, k, from);
    }
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) store<L>(item.share(query + m) + dimension + v * L, sums.of[m][v]);
  }
};

template <int L>
inline void pair_results(const Item<BFloat16>& item, BFloat16* last) {
  const PairPlaces places(item, last);
  int64_t dimension = 0;
  for (; dimension + kTileVectors * L <= item.s.head_dim; dimension += kTileVectors * L)
    in_tiles<kMostRows, 3, 1>(item.queries, PairValues<L, kTileVectors>{item, places, dimension});
  for (; dimension < item.s.head_dim; dimension += L)
    in_tiles<kMostRows, 3, 1>(item.queries, PairValues<L, 1>{item, places, dimension});
}

// The shares of the piece at hand. memory: `PairRoom`'s.
inline void attend_pairs(const Item<BFloat16>& item, float* memory) {
  const PairRoom room(item.s, memory);
  const int64_t dim = item.s.head_dim;
  for (int64_t query = 0; query < item.queries; query++)
    for (int64_t i = 0; i < dim; i++) narrow(item.q[query][i], room.queries + query * dim + i);
  if (item.s.block_size % 16)
    pair_scores<8>(item, room.queries);
  else
    pair_scores<16>(item, room.queries);
  softmax(item);
  round_weights(item);
  if (dim % 16)
    pair_results<8>(item, room.last);
  else
    pair_results<16>(item, room.last);
}

#else

inline int64_t pair_numbers(const Attention&) { return 0; }

#endif

}  // namespace OCTAVO_ISA
}  // namespace octavo
