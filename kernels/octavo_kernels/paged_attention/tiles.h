// The piece of an item on AMX, for a cache in bfloat16. As exact as in float32 a query is three rows of bfloat16, and so
// are its weights (native/planes.h); where they may be rounded (ADR 50) both are one. They are on the left, those of up to
// 16 queries; on the right is the cache:
//
//                                   keys, where they lie                             values, gathered
//                                       token 0 … 15                                 dimension 0 … 15
//                           dims 0, 1   [          ]                    tokens 0, 1   [          ]
//                           …           [          ]                    …             [          ]
//                           dims 30, 31 [          ]                    tokens 30, 31 [          ]
//     queries, dims 0 … 31              [  scores  ]   weights, tokens 0 … 31         [ results  ]
//
// A head that is no multiple of 32 wide goes in equal parts of fewer dimensions. 32 tokens are several blocks, so values
// are copied side by side, with zeros behind the context's end: NaN may lie there, and zero times NaN is NaN. Keys have
// tokens for columns, and nobody looks at those behind the end.
//
// The instruction's sums have an order of their own, so a decode goes this way as a prompt does. Half of the time is the
// softmax of the vectors, which takes turns with the products 32 tokens at a time.
#pragma once

#include "../native/planes.h"
#include "item.h"

namespace octavo {
namespace OCTAVO_ISA {

// Whether a cache of this type goes this way here.
template <class T>
constexpr bool has_tiles = false;

#ifdef __AMX_TILE__

template <>
inline constexpr bool has_tiles<BFloat16> = true;

// A thread's memory for it. Rows of queries have a line between them, so that they lie in all places of the first cache.
template <int Planes>
struct TileRoom {
  int64_t query_plane, query_row;
  BFloat16* values;   // [kPiece / 2][head_dim][2]
  BFloat16* weights;  // of each step Planes of [kTileRows][kStep]
  BFloat16* queries;  // [kTileRows] rows of planes

  TileRoom(const Attention& s, float* memory)
      : query_plane(divided_up(s.head_dim, kStep) * kStep),
        query_row(Planes * query_plane + kStep),
        values((BFloat16*)memory),
        weights(values + kPiece * s.head_dim),
        queries(weights + kTileRows * Planes * kPiece) {}
};

// Floats that it takes.
inline int64_t tile_numbers(const Attention& s) {
  const int64_t query_row = kPlanes * divided_up(s.head_dim, kStep) * kStep + kStep;
  return (kPiece * s.head_dim + kTileRows * (kPlanes * kPiece + query_row)) / 2;
}

// Dimensions of one product: equal parts of a head, each of whole pairs.
inline int64_t depth_of_product(int64_t head_dim) {
  int64_t parts = divided_up(head_dim, kStep);
  while (head_dim % (2 * parts)) parts++;
  return head_dim / parts;
}

// Registers of sums, from number 0 on.
template <int P>
OCTAVO_INLINE void zero_sums() {
  tile_zero<0>();
  if constexpr (P > 1) tile_zero<1>();
  if constexpr (P > 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
}

// columns: numbers of one; row: numbers from row to row.
template <int P>
OCTAVO_INLINE void store_sums(float* to, int64_t columns, int64_t row) {
  const int64_t stride = row * (int64_t)sizeof(float);
  tile_store<0>(to, stride);
  if constexpr (P > 1) tile_store<1>(to + columns, stride);
  if constexpr (P > 2) {
    tile_store<2>(to + 2 * columns, stride);
    tile_store<3>(to + 3 * columns, stride);
  }
}

// Where in the piece at hand each register of keys begins.
struct KeyPlaces {
  int64_t count = 0;
  const BFloat16* of[kPiece / 8];

  KeyPlaces(const Item<BFloat16>& item, int64_t columns) {
    for (int64_t token = item.begin; token < item.end; token += columns) of[count++] = item.keys_from(token);
  }
};

// Scores of up to 16 queries with columns of keys.
template <int Planes>
struct KeyColumns {
  const BFloat16* queries;
  int64_t plane, row;     // numbers of a plane, from row to row
  int64_t depth, steps;   // of one product; products
  const KeyPlaces& keys;
  int64_t block_size, columns;  // tokens, those of one register
  bool from_memory;             // ask for what comes next
  float* scores;

  template <int C>
  OCTAVO_INLINE void add(int64_t first, int64_t step, int together) const {
    const int64_t row = 2 * block_size, from = step * depth * block_size;
    tile_load<7>(keys.of[first + C] + from, row * (int64_t)sizeof(BFloat16));
    if (from_memory) {
      const BFloat16* ahead = keys.of[smaller(first + C + together, keys.count - 1)] + from;
      for (int64_t pair = 0; pair < depth / 2; pair++) __builtin_prefetch(ahead + pair * row);
    }
    add_planes<C, Planes>();
  }

  // P registers of columns from the one with number `first` on.
  template <int P>
  OCTAVO_INLINE void run(int64_t first) const {
    zero_sums<P>();
    for (int64_t step = 0; step < steps; step++) {
      load_planes<Planes>(queries + step * depth, plane, row * (int64_t)sizeof(BFloat16));
      add<0>(first, step, P);
      if constexpr (P > 1) add<1>(first, step, P);
      if constexpr (P > 2) {
        add<2>(first, step, P);
        add<3>(first, step, P);
      }
    }
    store_sums<P>(scores + first * columns, columns, kScoresStride);
  }
};

// The softmax of up to 16 queries' scores with the piece, as far as it has come.
template <int Planes>
struct Softmax {
  int rows;
  float* scores;                  // [rows, kScoresStride]
  BFloat16* weights;              // TileRoom's
  float bases[kTileRows];         // what is taken from a row's scores
  Vec<kLanes> totals[kTileRows];  // of a row's weights

  // Scores that a row does not see become minus infinity, up to `filled`.
  OCTAVO_INLINE void begin(const Item<BFloat16>& item, int64_t first, int64_t filled) {
    for (int m = 0; m < rows; m++) {
      float* row = scores + m * kScoresStride;
      for (int64_t i = larger(item.seen(first + m), 0); i < filled; i++) row[i] = -INFINITY;
      Vec<kLanes> most[2] = {load<kLanes>(row), load<kLanes>(row + kLanes)};
      for (int64_t i = kStep; i < filled; i += kStep)
        for (int half = 0; half < 2; half++) {
          const Vec<kLanes> x = load<kLanes>(row + i + half * kLanes);
          most[half] = x > most[half] ? x : most[half];
        }
      const float maximum = largest(most[0] > most[1] ? most[0] : most[1]);
      item.share(first + m)[item.s.head_dim] = maximum;
      bases[m] = base_of(maximum);
      totals[m] = Vec<kLanes>{};
    }
  }

  // The weights of one step. soon: the values of 32 tokens, which are asked for meanwhile.
  OCTAVO_INLINE void weigh(int64_t step, const BFloat16* soon, int64_t dim) {
    const int64_t share = dim / kTileRows;  // of their lines, for each row
    const float* from = scores + step * kStep;
    BFloat16* to = weights + step * Planes * kTileRows * kStep;
    for (int m = 0; m < rows; m++, from += kScoresStride, to += kStep) {
      for (int64_t line = m * share; line < (m + 1) * share; line++) __builtin_prefetch(soon + line * kStep);
      const Vec<kLanes> base = splat<kLanes>(bases[m]);
      const Vec<kLanes> first = power_of_two(load<kLanes>(from) - base);
      const Vec<kLanes> second = power_of_two(load<kLanes>(from + kLanes) - base);
      totals[m] += first + second;
      split_planes<Planes>((__m512)first, (__m512)second, to, kTileRows * kStep);
    }
  }

  OCTAVO_INLINE void end(const Item<BFloat16>& item, int64_t first) const {
    for (int m = 0; m < rows; m++) item.share(first + m)[item.s.head_dim + 1] = total(totals[m]);
  }
};

// Weights of up to 16 queries times columns of values, 32 tokens at a time. A step's weights are made before the products
// of the step before: a register that is loaded right behind the stores would wait for them.
template <int Planes>
struct ValueColumns {
  Softmax<Planes>& softmax;
  const BFloat16* values;
  int64_t dim, columns, steps;
  float* results;
  int64_t row;  // from row to row of them

  template <int C>
  OCTAVO_INLINE void add(int64_t first, int64_t step) const {
    tile_load<7>(values + step * kStep * dim + (first + C) * columns * 2, 2 * dim * (int64_t)sizeof(BFloat16));
    add_planes<C, Planes>();
  }

  template <int P>
  OCTAVO_INLINE void run(int64_t first) const {
    zero_sums<P>();
    if (!first) softmax.weigh(0, values, dim);
    for (int64_t step = 0; step < steps; step++) {
      if (!first && step + 1 < steps) softmax.weigh(step + 1, values + (step + 1) * kStep * dim, dim);
      load_planes<Planes>(softmax.weights + step * Planes * kTileRows * kStep, kTileRows * kStep);
      add<0>(first, step);
      if constexpr (P > 1) add<1>(first, step);
      if constexpr (P > 2) {
        add<2>(first, step);
        add<3>(first, step);
      }
    }
    store_sums<P>(results + first * columns, columns, row);
  }
};

inline void ask_for(const BFloat16* from, int64_t numbers) {
  for (int64_t i = 0; i < numbers; i += kStep) __builtin_prefetch(from + i);
}

// Zeros from the end to the next multiple of kStep. from_memory: ask for later blocks, which lie anywhere, and in the end
// for the first keys.
inline void gather_values(const Item<BFloat16>& item, bool from_memory, BFloat16* to) {
  const int64_t size = item.s.block_size, dim = item.s.head_dim, count = item.end - item.begin;
  const auto block = [&](int64_t token) { return item.block((item.begin + token) / size); };
  for (int64_t token = 0; token < count; token += size) {
    const int64_t later = token + kAskedAhead;
    if (from_memory && later < count)
      ask_for(item.values + block(later), size * dim);
    else if (from_memory)
      ask_for(item.keys + block(smaller(later - count, count - 1)), size * dim);
    memcpy(to + token * dim, item.values + block(token), size * dim * sizeof(BFloat16));
  }
  if (count % 2)
    for (int64_t i = 0; i < dim; i++) to[value_place<BFloat16>(item.s, count, i)].bits = 0;
  const int64_t pairs = divided_up(count, 2) * 2;
  memset(to + pairs * dim, 0, (divided_up(count, kStep) * kStep - pairs) * dim * sizeof(BFloat16));
}

// The first `count` of a vector.
OCTAVO_INLINE __mmask16 lanes(int64_t count) { return (__mmask16)((1u << larger(smaller(count, kLanes), 0)) - 1); }

// The shares of the piece at hand. memory: `TileRoom`'s.
template <int Planes>
inline void attend_tiles(const Item<BFloat16>& item, Threads& threads, int thread, float* memory) {
  const TileRoom<Planes> room(item.s, memory);
  const int64_t size = item.s.block_size, dim = item.s.head_dim, depth = depth_of_product(dim);
  const int64_t tokens = size % kTileColumns ? 8 : kTileColumns, dimensions = dim % kTileColumns ? 8 : kTileColumns;
  const bool from_memory = item.queries <= kTileRows;  // with more, the others find in the caches what the first read
  const KeyPlaces keys(item, tokens);
  gather_values(item, from_memory, room.values);
  for (int64_t first = 0; first < item.queries; first += kTileRows) {
    const int rows = (int)smaller(kTileRows, item.queries - first);
    const int64_t seen = item.seen(first + rows - 1), filled = divided_up(seen, kStep) * kStep;
    if (seen <= 0) continue;
    for (int m = 0; m < rows; m++)
      for (int64_t i = 0; i < dim; i += kStep) {
        const float* q = item.q[first + m] + i;
        const __mmask16 there = lanes(dim - i), behind = lanes(dim - i - kLanes);
        split_planes<Planes>(_mm512_maskz_loadu_ps(there, q), _mm512_maskz_loadu_ps(behind, q + kLanes),
                     room.queries + m * room.query_row + i, room.query_plane);
      }
    use_tiles(threads, thread, planes_shapes(rows, depth, tokens));
    in_tiles<4, 2, 1>(divided_up(seen, tokens),
                      KeyColumns<Planes>{room.queries, room.query_plane, room.query_row, depth, dim / depth, keys, size,
                                         tokens, from_memory, item.scores});
    Softmax<Planes> softmax{rows, item.scores, room.weights};
    softmax.begin(item, first, filled);
    use_tiles(threads, thread, planes_shapes(rows, kStep, dimensions));
    in_tiles<4, 2, 1>(dim / dimensions,
                      ValueColumns<Planes>{softmax, room.values, dim, dimensions, filled / kStep, item.share(first),
                                           share_numbers(item.s)});
    softmax.end(item, first);
  }
}

inline void attend_tiles(const Item<BFloat16>& item, Threads& threads, int thread, float* memory) {
  if (item.s.rounded)
    attend_tiles<1>(item, threads, thread, memory);
  else
    attend_tiles<kPlanes>(item, threads, thread, memory);
}

#else

inline int64_t tile_numbers(const Attention&) { return 0; }

#endif

}  // namespace OCTAVO_ISA
}  // namespace octavo
