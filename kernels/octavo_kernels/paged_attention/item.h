// The unit of work of native.h: some queries of one kv head and one sequence against a piece of the context, the softmax
// of their scores, and how the shares of two pieces become one.
//
//     context   [ piece 0: 512 tokens | piece 1: 512 tokens | piece 2: the rest ]
//     share     most, total, sums       most, total, sums     …                     of each query
//
// Pieces are the same whatever the batch, the number of threads and the way a prompt was cut, and shares are put together
// from the first to the last. So a token's result is the same, to the last bit, in all of them.
#pragma once

#include <math.h>

#include "../native/abi.h"
#include "../native/tile.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kQueriesOfItem = 48;   // at most, in wide.h
constexpr int64_t kQueriesOfTiles = 96;  // in tiles.h
constexpr int64_t kAskedAhead = 64;  // tokens
constexpr int64_t kPiece = 512;  // tokens: a multiple of every block size, and of every tile
// An odd number of cache lines: else all rows of a tile would lie in the same few sets of the first cache.
constexpr int64_t kScoresStride = kPiece + 16;

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

// Places of a number in its head's part of a block (native.h draws them).
template <class T>
inline int64_t key_place(const Attention& s, int64_t token, int64_t dimension) {
  if (is_paired<T>) return (dimension / 2 * s.block_size + token) * 2 + dimension % 2;
  return dimension * s.block_size + token;
}

template <class T>
inline int64_t value_place(const Attention& s, int64_t token, int64_t dimension) {
  if (is_paired<T>) return (token / 2 * s.head_dim + dimension) * 2 + token % 2;
  return token * s.head_dim + dimension;
}

// A query's share of a piece: [head_dim] sums of weighted values, the largest score, the sum of the weights.
inline int64_t share_numbers(const Attention& s) { return s.head_dim + 16; }

// Queries are in the order of their tokens.
template <class T>
struct Item {
  const Attention& s;
  const T* keys;    // of the item's kv head in block 0
  const T* values;  // likewise
  const int32_t* blocks;
  int64_t queries;
  const float* q[kQueriesOfTiles];  // [head_dim] each, rotated and scaled
  float* out[kQueriesOfTiles];
  int64_t visible[kQueriesOfTiles];  // tokens of the context

  int64_t begin, end;                // the piece at hand, as far as the last query sees it
  float* scores;                     // [queries, kScoresStride]; in tiles.h of 16 at a time
  float* shares;                     // [queries, share_numbers]
  float *key_scales, *value_scales;  // [kPiece] each, 0 behind the end; of eight bits alone

  int64_t block(int64_t number) const { return (int64_t)blocks[number] * s.kv_heads * head_numbers<T>(s); }
  // Where the keys of a token begin, and of those behind it in its block.
  const T* keys_from(int64_t token) const {
    return keys + block(token / s.block_size) + key_place<T>(s, token % s.block_size, 0);
  }
  int64_t longest() const { return visible[queries - 1]; }
  // Tokens of the piece that a query sees; 0 or less: none.
  int64_t seen(int64_t query) const { return smaller(visible[query], end) - begin; }
  float* share(int64_t query) const { return shares + query * share_numbers(s); }
};

// Scales of the piece's tokens side by side, to be read in vectors of any length.
inline void gather_scales(const Item<Int8>& item) {
  const int64_t size = item.s.block_size, behind = item.s.head_dim * size;
  for (int64_t token = item.begin; token < item.end; token += size) {
    const int64_t at = item.block(token / size) + behind, bytes = smaller(size, item.end - token) * sizeof(float);
    memcpy(item.key_scales + token - item.begin, item.keys + at, bytes);
    memcpy(item.value_scales + token - item.begin, item.values + at, bytes);
  }
  const int64_t count = item.end - item.begin;
  memset(item.key_scales + count, 0, (kPiece - count) * sizeof(float));
  memset(item.value_scales + count, 0, (kPiece - count) * sizeof(float));
}

// Scores of M queries with V vectors of tokens, those that a query does not see included.
template <int L, class T, class K>
struct ScoreTile {
  const Item<T>& item;
  int64_t first;  // in the piece
  const K* const* columns;
  int64_t stride;         // from dimension to dimension, or pair to pair
  const K* const* ahead;  // what is to be asked for meanwhile, likewise; or null

  template <int M>
  OCTAVO_INLINE void run(int64_t query) const {
    if (item.seen(query + M - 1) <= first) return;
    Sums<M, kTileVectors, L> sums;
    sums.clear();
    sums.add(item.q + query, columns, stride, item.s.head_dim, ahead);
    for (int m = 0; m < M; m++)
      for (int v = 0; v < kTileVectors; v++)
        store<L>(item.scores + (query + m) * kScoresStride + first + v * L, scaled(sums.of[m][v], first + v * L));
  }

  OCTAVO_INLINE Vec<L> scaled(Vec<L> sums, int64_t at) const {
    if constexpr (is_scaled<T>) return sums * load<L>(item.key_scales + at);
    return sums;
  }
};

// Of all numbers of a vector, in halves: there are as many of these as queries and pieces.
#ifdef __AVX512F__
inline float largest(Vec<16> x) { return _mm512_reduce_max_ps((__m512)x); }
inline float total(Vec<16> x) { return _mm512_reduce_add_ps((__m512)x); }
#else
template <class Both>
inline float halved(__m256 x, const Both& both) {
  __m128 half = both(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = both(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(both(half, _mm_movehdup_ps(half)));
}
inline float largest(Vec<8> x) {
  return halved((__m256)x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}
inline float total(Vec<8> x) {
  return halved((__m256)x, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}
#endif

// What is taken from scores, so that the largest weight is one. Where all are minus infinity, so that all are zero.
inline float base_of(float maximum) { return maximum == -INFINITY ? 0 : maximum; }

// Weights take the place of scores, zero where a query sees nothing, each multiplied by its token's scale where there are
// scales. Their sum before that and the largest score go to the share.
template <class T>
inline void softmax(const Item<T>& item) {
  const int64_t dim = item.s.head_dim, count = item.end - item.begin;
  for (int64_t query = 0; query < item.queries; query++) {
    float* scores = item.scores + query * kScoresStride;
    const int64_t seen = item.seen(query), end = divided_up(larger(seen, 0), kLanes) * kLanes;
    if (end < count) memset(scores + end, 0, (count - end) * sizeof(float));
    if (seen <= 0) continue;
    for (int64_t i = seen; i < end; i++) scores[i] = -INFINITY;
    Vec<kLanes> most = splat<kLanes>(-INFINITY);
    for (int64_t i = 0; i < end; i += kLanes) {
      const Vec<kLanes> x = load<kLanes>(scores + i);
      most = x > most ? x : most;
    }
    const float maximum = largest(most), base = base_of(maximum);
    Vec<kLanes> totals{};
    for (int64_t i = 0; i < end; i += kLanes) {
      Vec<kLanes> weight = power_of_two(load<kLanes>(scores + i) - base);
      totals += weight;
      // What nobody sees has any scale.
      if constexpr (is_scaled<T>) weight = weight == 0 ? weight : weight * load<kLanes>(item.value_scales + i);
      store<kLanes>(scores + i, weight);
    }
    item.share(query)[dim] = maximum;
    item.share(query)[dim + 1] = total(totals);
  }
}

// Adds the share of a later piece to that of all before it. One function for all who do this: where it is a part of
// others, each could round another of its products.
__attribute__((noinline)) inline void merge(float* __restrict to, const float* __restrict from, int64_t dim) {
  const float most = from[dim] > to[dim] ? from[dim] : to[dim];
  const Vec<kLanes> kept = power_of_two(splat<kLanes>(to[dim] - most));
  const Vec<kLanes> added = power_of_two(splat<kLanes>(from[dim] - most));
  for (int64_t i = 0; i < dim; i++) to[i] = to[i] * kept[0] + from[i] * added[0];
  to[dim] = most;
  to[dim + 1] = to[dim + 1] * kept[0] + from[dim + 1] * added[0];
}

inline void finish(const float* share, float* out, int64_t dim) {
  const float part = 1 / share[dim + 1];
  for (int64_t i = 0; i < dim; i++) out[i] = share[i] * part;
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
