// The one inner loop of all matrix products: M rows times V vectors of columns, all sums in registers.
//
//                       b[0]    b[1]    b[2]    b[3]      V vectors of L columns; each has its own address, and row k
//              k = 0  [ L ]   [ L ]   [ L ]   [ L ]       of it lies k * stride further
//              k = 1  [ L ]   [ L ]   [ L ]   [ L ]
//     a[0] ──► k      acc[0][0] …            acc[0][3]    M rows of numbers, each with its own address
//     a[1] ──► k      acc[1][0] …
//
// In a linear layer b are panels of the packed weight. In attention they are blocks of the KV cache, read where they
// lie. Each sum runs over k in order, whatever M is: a row has the same result, to the last bit, in any batch.
#pragma once

#include "simd.h"

namespace octavo {
namespace OCTAVO_ISA {

// With six rows and four vectors, or two where there are half as many registers, all of them are used.
constexpr int kMostRows = 6;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;

template <int M, int V, int L>
struct Sums {
  Vec<L> of[M][V];

  OCTAVO_INLINE void clear() {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) of[m][v] = Vec<L>{};
  }

  // ahead: what comes from memory after each b, which is asked for meanwhile; null: nothing.
  template <class T>
  OCTAVO_INLINE void add(const float* const* a, const T* const* b, int64_t stride, int64_t depth,
                         const T* const* ahead = nullptr) {
    for (int64_t k = 0; k < depth; k++) {
      Vec<L> column[V];
      for (int v = 0; v < V; v++) {
        column[v] = load<L>(b[v] + k * stride);
        if (ahead) __builtin_prefetch(ahead[v] + k * stride);
      }
      add_row(a, k, column);
    }
  }

  // The same with two rows of b in one vector, which cost an instruction each to widen instead of two:
  //
  //     b[v]   [ column 0: k, k + 1 | column 1: k, k + 1 | … ]     stride: to k + 2, k + 3
  //
  OCTAVO_INLINE void add(const float* const* a, const BFloat16* const* b, int64_t stride, int64_t depth,
                         const BFloat16* const* ahead = nullptr) {
    Vec<L> even[V], odd[V];
    int64_t k = 0;
    for (; k + 2 <= depth; k += 2) {
      for (int v = 0; v < V; v++) {
        load_pairs<L>(b[v] + k / 2 * stride, &even[v], &odd[v]);
        if (ahead) __builtin_prefetch(ahead[v] + k / 2 * stride);
      }
      add_row(a, k, even);
      add_row(a, k + 1, odd);
    }
    if (k == depth) return;
    for (int v = 0; v < V; v++) load_pairs<L>(b[v] + k / 2 * stride, &even[v], &odd[v]);
    add_row(a, k, even);
  }

 private:
  OCTAVO_INLINE void add_row(const float* const* a, int64_t k, const Vec<L>* column) {
    for (int m = 0; m < M; m++) {
      const Vec<L> row = splat<L>(a[m][k]);
      for (int v = 0; v < V; v++) of[m][v] += row * column[v];
    }
  }
};

// Calls body.template run<M>(row) for all rows, in tiles of the first M as long as they fit, then of the next. Each
// size is code of its own, so there are no more of them than pay.
template <int M, int... Less, class Body>
OCTAVO_INLINE void in_tiles(int64_t rows, const Body& body, int64_t row = 0) {
  for (; row + M <= rows; row += M) body.template run<M>(row);
  if constexpr (sizeof...(Less) > 0) in_tiles<Less...>(rows, body, row);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
