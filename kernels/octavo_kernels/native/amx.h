// Intel's AMX: eight registers of a small matrix each, and one instruction that multiplies two and adds to a third.
//
//              B    16 rows of 64 bytes: row k has, for each of 16 columns n, a group of inputs side by side
//                   bfloat16 [k / 2][16][2]   int8 [k / 4][16][4]
//     A             16 rows m of 64 bytes     C    16 rows m of 16 sums, float32 or int32
//     bfloat16 [m][32]   int8 [m][64]              C[m][n] += sum over k of A[m][k] * B[k][n]
//
// B is as panels of a packed weight lie (linear/native.h, linear/quads.h): a kilobyte, front to back. A row of C depends
// on that row of A alone, and not on how many rows there are. Products of bfloat16 are exact in float32; sums over the
// even and over the odd k of one instruction are made apart, from zero, and then added to C: in one order, always.
// Numbers below 2^-126, in whatever place, count as zero.
//
// Registers are named by numbers in the instructions themselves, so a compiler that knew them could not choose better;
// and GCC 12 takes most of a configuration for unused, where its own function loads it. So these are assembly.
#pragma once

#ifdef __AMX_TILE__

#include "simd.h"
#include "threads.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kTileRows = 16;
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;

// How many rows and bytes of a row each register has.
struct TileShapes {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows, int64_t bytes = kTileRowBytes) {
    rows[tile] = (uint8_t)tile_rows;
    row_bytes[tile] = (uint16_t)bytes;
  }
};

// For an item, on this thread: loads the shapes unless they are the thread's already, which costs as much as some ten
// products. What registers hold then is anything. Threads gives them back when the thread sleeps.
inline void use_tiles(Threads& threads, int thread, const TileShapes& shapes) {
  static_assert(sizeof shapes == sizeof(ThreadState), "as the instruction wants it");
  ThreadState& state = threads.state(thread);
  if (!memcmp(&state, &shapes, sizeof shapes)) return;
  memcpy(&state, &shapes, sizeof shapes);
  asm volatile("ldtilecfg %0" ::"m"(state) : "memory");
}

inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

// In what follows numbers in < > are registers.

template <int T>
OCTAVO_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

// stride: bytes from row to row.
template <int T>
OCTAVO_INLINE void tile_load(const void* from, int64_t stride = kTileRowBytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}

template <int T>
OCTAVO_INLINE void tile_store(void* to, int64_t stride = kTileRowBytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}

// C += A B, bfloat16 and float32.
template <int C, int A, int B>
OCTAVO_INLINE void tile_multiply_bfloat16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// The same of bytes, those of A from 0 to 255, those of B signed; sums of 32 bits.
template <int C, int A, int B>
OCTAVO_INLINE void tile_multiply_bytes() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// The same with both signed.
template <int C, int A, int B>
OCTAVO_INLINE void tile_multiply_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

#endif
