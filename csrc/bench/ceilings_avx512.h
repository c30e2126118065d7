// The loops of the AVX-512 levels, with VNNI and, where the unit is compiled for it, BF16. Twelve accumulators cover
// the latency of every multiply there is; the instructions are written out, so that the compiler can neither fold them
// nor keep an accumulator anywhere but in a register.
#pragma once
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "bench/ceiling_table.h"

#include <immintrin.h>

namespace homenode {
namespace {

inline __m512i load(const uint8_t* p) { return _mm512_load_si512(p); }

inline uint64_t folded(const __m512i (&v)[8]) {
  __m512i all = v[0];
  for (int i = 1; i < 8; ++i) all = _mm512_xor_si512(all, v[i]);
  return uint64_t(_mm512_reduce_add_epi64(all));
}

uint64_t read_one_stream(const uint8_t* data, size_t bytes) {
  __m512i v[8] = {};
  for (size_t at = 0; at < bytes; at += sizeof v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = _mm512_xor_si512(v[i], load(data + at + 64 * i));
  }
  return folded(v);
}

uint64_t read_eight_streams(const uint8_t* data, size_t bytes) {
  __m512i v[8] = {};
  for (size_t block = 0; block < bytes; block += kReadStep) {
    for (size_t at = 0; at < kStreamBytes; at += 64) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const uint8_t* p = data + block + i * kStreamBytes + at;
        // A prefetch past the end does nothing
        _mm_prefetch(reinterpret_cast<const char*>(p + kReadStep), _MM_HINT_T0);
        v[i] = _mm512_xor_si512(v[i], load(p));
      }
    }
  }
  return folded(v);
}

#define TWELVE(op) \
  op " %%zmm30,%%zmm31,%%zmm0\n" op " %%zmm30,%%zmm31,%%zmm1\n" op " %%zmm30,%%zmm31,%%zmm2\n" op \
     " %%zmm30,%%zmm31,%%zmm3\n" op " %%zmm30,%%zmm31,%%zmm4\n" op " %%zmm30,%%zmm31,%%zmm5\n" op \
     " %%zmm30,%%zmm31,%%zmm6\n" op " %%zmm30,%%zmm31,%%zmm7\n" op " %%zmm30,%%zmm31,%%zmm8\n" op \
     " %%zmm30,%%zmm31,%%zmm9\n" op " %%zmm30,%%zmm31,%%zmm10\n" op " %%zmm30,%%zmm31,%%zmm11\n"
// The operands are zero: nothing overflows, and no number is ever denormal.
#define MULTIPLY(name, op) \
  void name(int64_t rounds) { \
    __asm__ volatile( \
        "vzeroall\nvpxorq %%zmm30,%%zmm30,%%zmm30\nvpxorq %%zmm31,%%zmm31,%%zmm31\n" \
        "1:\n" TWELVE(op) TWELVE(op) "dec %0\njnz 1b\nvzeroupper\n" \
        : "+r"(rounds) \
        : \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
          "xmm12", "xmm13", "xmm14", "xmm15", "xmm30", "xmm31"); \
  }
MULTIPLY(multiply_int8, "vpdpbusd")
MULTIPLY(multiply_f32, "vfmadd231ps")

constexpr MultiplyLoop kFloats = {multiply_f32, 24 * 32};
#ifdef __AVX512BF16__
MULTIPLY(multiply_bf16, "vdpbf16ps")
constexpr MultiplyLoop kPairs = {multiply_bf16, 24 * 64};
#else
constexpr MultiplyLoop kPairs = kFloats;  // without an instruction for it, bfloat16 is multiplied as float32
#endif

constexpr CeilingTable kTable = {read_one_stream, read_eight_streams, {multiply_int8, 24 * 128}, kPairs, kFloats};

}  // namespace
}  // namespace homenode
