// What the processor has and the system saves. The processor is asked itself: of __builtin_cpu_supports old compilers do
// not know all names, and the runtime that PyPI's ziglang links says no to all.
#pragma once

#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace octavo {

// The registers that the system saves, by their bits in XCR0.
inline uint64_t saved_registers() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

inline bool saves(uint64_t registers) { return (saved_registers() & registers) == registers; }

constexpr uint64_t kVectorsOf256 = 1 << 1 | 1 << 2;
constexpr uint64_t kVectorsOf512 = kVectorsOf256 | 1 << 5 | 1 << 6 | 1 << 7;
constexpr uint64_t kTiles = 1 << 17 | 1 << 18;  // their configuration and their data

// Whether one of cpuid's registers, of this leaf and subleaf, has all of these bits.
enum Register { kB, kC, kD, kA };
inline bool has(unsigned leaf, unsigned subleaf, Register which, unsigned bits) {
  unsigned of[4];
  return __get_cpuid_count(leaf, subleaf, &of[kA], &of[kB], &of[kC], &of[kD]) && (of[which] & bits) == bits;
}

// AVX2 with FMA and F16C.
inline bool has_avx2() {
  constexpr unsigned fma = 1 << 12, f16c = 1 << 29, avx2 = 1 << 5;
  return has(1, 0, kC, fma | f16c) && has(7, 0, kB, avx2) && saves(kVectorsOf256);
}

// AVX-512 F, DQ, BW and VL.
inline bool has_avx512() {
  constexpr unsigned f = 1 << 16, dq = 1 << 17, bw = 1 << 30, vl = 1u << 31;
  return has_avx2() && has(7, 0, kB, f | dq | bw | vl) && saves(kVectorsOf512);
}

inline bool has_vnni() { return has_avx512() && has(7, 0, kC, 1 << 11); }

// AVX512-BF16.
inline bool has_bfloat16() { return has_vnni() && has(7, 1, kA, 1 << 5); }

// AMX with products of bfloat16 and int8, whether or not the system permits it. All processors with it have AVX512-BF16,
// which its form uses.
inline bool has_amx() {
  constexpr unsigned bf16 = 1 << 22, tile = 1 << 24, int8 = 1 << 25;
  return has_bfloat16() && has(7, 0, kD, bf16 | tile | int8);
}

// Asks the system for AMX's registers, for this process: it saves 8 KiB more for a thread that uses them. A kernel before
// 5.16 has no such call, and a sandbox may refuse it.
inline bool system_permits_amx() {
  constexpr int request_permission = 0x1023, tile_data = 18;
  return saves(kTiles) && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace octavo
