// The piece of an item on AMX, for a cache in bfloat16, as exact as in float32: a query is three rows of bfloat16, and so
// are its weights (native/planes.h). They are on the left, those of up to 16 queries; on the right is the cache:
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
// The instruction's sums have an order of their own, so a decode goes this way as a prompt does.
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

// A thread's memory for it. Rows of planes have a line between them, so that they lie in all places of the first cache.
struct TileRoom {
  static constexpr int64_t weight_row = kPlanes * kPiece + kStep;
  int64_t query_plane, query_row;
  BFloat16* values;   // [kPiece / 2][head_dim][2]
  BFloat16* weights;  // [kTileRows] rows of planes
  BFloat16* queries;  // likewise

  TileRoom(const Attention& s, float* memory)
      : query_plane(divided_up(s.head_dim, kStep) * kStep),
        query_row(kPlanes * query_plane + kStep),
        values((BFloat16*)memory),
        weights(values + kPiece * s.head_dim),
        queries(weights + kTileRows * weight_row) {}
};

// Floats that it takes.
inline int64_t tile_numbers(const Attention& s) {
  const int64_t query_row = kPlanes * divided_up(s.head_dim, kStep) * kStep + kStep;
  return (kPiece * s.head_dim + kTileRows * (TileRoom::weight_row + query_row)) / 2;
}

// Dimensions of one product: equal parts of a head, each of whole pairs.
inline int64_t depth_of_product(int64_t head_dim) {
  int64_t parts = divided_up(head_dim, kStep);
  while (head_dim % (2 * parts)) parts++;
  return head_dim / parts;
}

// Planes of up to 16 rows times columns of the cache.
struct Product {
  const BFloat16* rows;
  int64_t plane, row;     // numbers of a plane, from row to row
  int64_t depth, steps;   // of one product; products
  int64_t columns;        // of one register
  int64_t b_step, b_row;  // numbers from product to product, from pair to pair
  float* to;
  int64_t to_row;

  template <int C>
  OCTAVO_INLINE void add(const BFloat16* const* b, const BFloat16* const* ahead, int64_t step) const {
    tile_load<7>(b[C] + step * b_step, b_row * (int64_t)sizeof(BFloat16));
    if (ahead)
      for (int64_t pair = 0; pair < depth / 2; pair++) __builtin_prefetch(ahead[C] + step * b_step + pair * b_row);
    add_planes<C>();
  }

  template <int C>
  OCTAVO_INLINE void put(int64_t first) const {
    tile_store<C>(to + (first + C) * columns, to_row * (int64_t)sizeof(float));
  }

  // P registers of columns from the one with number `first` on. b: where each begins; ahead: likewise, what is to be asked
  // for meanwhile, or null.
  template <int P>
  OCTAVO_INLINE void run(int64_t first, const BFloat16* const* b, const BFloat16* const* ahead) const {
    tile_zero<0>();
    if constexpr (P > 1) tile_zero<1>();
    if constexpr (P > 2) {
      tile_zero<2>();
      tile_zero<3>();
    }
    for (int64_t step = 0; step < steps; step++) {
      load_planes(rows + step * depth, plane, row * (int64_t)sizeof(BFloat16));
      add<0>(b, ahead, step);
      if constexpr (P > 1) add<1>(b, ahead, step);
      if constexpr (P > 2) {
        add<2>(b, ahead, step);
        add<3>(b, ahead, step);
      }
    }
    put<0>(first);
    if constexpr (P > 1) put<1>(first);
    if constexpr (P > 2) {
      put<2>(first);
      put<3>(first);
    }
  }
};

struct KeyColumns {
  const Item<BFloat16>& item;
  bool from_memory;  // ask for what comes next
  Product product;

  template <int P>
  OCTAVO_INLINE void run(int64_t first) const {
    const int64_t columns = product.columns, last = (item.end - 1) / columns * columns;
    const BFloat16 *b[P], *ahead[P];
    for (int p = 0; p < P; p++) {
      const int64_t token = item.begin + (first + p) * columns;
      b[p] = item.keys_from(token);
      ahead[p] = item.keys_from(smaller(token + P * columns, last));
    }
    product.run<P>(first, b, from_memory ? ahead : nullptr);
  }
};

struct ValueColumns {
  const BFloat16* values;
  Product product;

  template <int P>
  OCTAVO_INLINE void run(int64_t first) const {
    const BFloat16* b[P];
    for (int p = 0; p < P; p++) b[p] = values + (first + p) * product.columns * 2;
    product.run<P>(first, b, nullptr);
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

// The shares of the piece at hand. memory: `TileRoom`'s.
inline void attend_tiles(const Item<BFloat16>& item, Threads& threads, int thread, float* memory) {
  const TileRoom room(item.s, memory);
  const int64_t size = item.s.block_size, dim = item.s.head_dim, depth = depth_of_product(dim);
  const int64_t tokens = size % kTileColumns ? 8 : kTileColumns, dimensions = dim % kTileColumns ? 8 : kTileColumns;
  const bool from_memory = item.queries <= kTileRows;  // with more, the other 16 find in the caches what the first read
  gather_values(item, from_memory, room.values);
  for (int64_t first = 0; first < item.queries; first += kTileRows) {
    const int rows = (int)smaller(kTileRows, item.queries - first);
    const int64_t seen = item.seen(first + rows - 1), filled = divided_up(seen, kStep) * kStep;
    if (seen <= 0) continue;
    for (int m = 0; m < rows; m++)
      for (int64_t i = 0; i < dim; i += kLanes) {
        const __mmask16 there = (__mmask16)((1u << smaller(kLanes, dim - i)) - 1);
        split_planes(_mm512_maskz_loadu_ps(there, item.q[first + m] + i), room.queries + m * room.query_row + i,
                     room.query_plane);
      }
    use_tiles(threads, thread, planes_shapes(rows, depth, tokens));
    const Product scores{room.queries, room.query_plane, room.query_row, depth,       dim / depth,
                         tokens,       depth * size,     2 * size,       item.scores, kScoresStride};
    in_tiles<4, 2, 1>(divided_up(seen, tokens), KeyColumns{item, from_memory, scores});
    for (int m = 0; m < rows; m++) {
      BFloat16* to = room.weights + m * room.weight_row;
      if (item.seen(first + m) > 0)
        weights(item.scores + m * kScoresStride, item.seen(first + m), filled, item.share(first + m) + dim,
                [&](int64_t i, Vec<kLanes> weight) { split_planes((__m512)weight, to + i, kPiece); });
      else
        for (int p = 0; p < kPlanes; p++) memset(to + p * kPiece, 0, filled * sizeof(BFloat16));
    }
    use_tiles(threads, thread, planes_shapes(rows, kStep, dimensions));
    const Product results{room.weights, kPiece,      room.weight_row, kStep,             filled / kStep,
                          dimensions,   kStep * dim, 2 * dim,         item.share(first), share_numbers(item.s)};
    in_tiles<4, 2, 1>(dim / dimensions, ValueColumns{room.values, results});
  }
}

#else

inline int64_t tile_numbers(const Attention&) { return 0; }

#endif

}  // namespace OCTAVO_ISA
}  // namespace octavo
