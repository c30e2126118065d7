// The loops of the AVX2 levels, with FMA. Without AVX-VNNI there is no dot product of bytes. Products with weights of
// few bits are summed in pairs to 16 bits and added up there, two instructions for 32 products (kernels widen the sums
// now and then besides). Two products of bytes fill 16 bits: widening them takes two instructions more, and as the
// unsigned factor must be a magnitude, moving the sign to the other one takes another. As many multiply numbers of 16
// bits in pairs and add the sums of 32 bits: two for 16 products. bfloat16 is multiplied as float32.
#pragma once
#include "bench/ceiling_table.h"

#include <immintrin.h>

namespace homenode {
namespace {

inline __m256i load(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

inline uint64_t folded(const __m256i (&v)[8]) {
  __m256i all = v[0];
  for (int i = 1; i < 8; ++i) all = _mm256_xor_si256(all, v[i]);
  return uint64_t(_mm256_extract_epi64(all, 0)) ^ uint64_t(_mm256_extract_epi64(all, 1)) ^
         uint64_t(_mm256_extract_epi64(all, 2)) ^ uint64_t(_mm256_extract_epi64(all, 3));
}

uint64_t read_one_stream(const uint8_t* data, size_t bytes) {
  __m256i v[8] = {};
  for (size_t at = 0; at < bytes; at += sizeof v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = _mm256_xor_si256(v[i], load(data + at + 32 * i));
  }
  return folded(v);
}

uint64_t read_eight_streams(const uint8_t* data, size_t bytes) {
  __m256i v[8] = {};
  for (size_t block = 0; block < bytes; block += kReadStep) {
    for (size_t at = 0; at < kStreamBytes; at += 64) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const uint8_t* p = data + block + i * kStreamBytes + at;
        // A prefetch past the end does nothing
        _mm_prefetch(reinterpret_cast<const char*>(p + kReadStep), _MM_HINT_T0);
        v[i] = _mm256_xor_si256(_mm256_xor_si256(v[i], load(p)), load(p + 32));
      }
    }
  }
  return folded(v);
}

#define ALL_REGISTERS \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15"

#ifdef __AVXVNNI__
#define DOT(sum) "%{vex%} vpdpbusd %%ymm14,%%ymm15,%%ymm" #sum "\n"

void multiply_int8(int64_t rounds) {
  __asm__ volatile("vzeroall\n1:\n" DOT(0) DOT(1) DOT(2) DOT(3) DOT(4) DOT(5) DOT(6) DOT(7) DOT(8) DOT(9) DOT(10)
                       DOT(11) "dec %0\njnz 1b\nvzeroupper\n"
                   : "+r"(rounds)
                   :
                   : ALL_REGISTERS);
}

constexpr MultiplyLoop kBytes = {multiply_int8, 12 * 64}, kSmall = kBytes;
#else
// Products into a register of their own, added to an accumulator.
#define PRODUCT(multiply, add, product, sum) \
  multiply " %%ymm14,%%ymm15,%%ymm" #product "\n" add " %%ymm" #product ",%%ymm" #sum ",%%ymm" #sum "\n"
#define MULTIPLY(name, multiply, add) \
  void name(int64_t rounds) { \
    __asm__ volatile("vzeroall\n1:\n" PRODUCT(multiply, add, 0, 6) PRODUCT(multiply, add, 1, 7) \
                         PRODUCT(multiply, add, 2, 8) PRODUCT(multiply, add, 3, 9) PRODUCT(multiply, add, 4, 10) \
                             PRODUCT(multiply, add, 5, 11) "dec %0\njnz 1b\nvzeroupper\n" \
                     : "+r"(rounds) \
                     : \
                     : ALL_REGISTERS); \
  }

MULTIPLY(multiply_int8, "vpmaddwd", "vpaddd")
MULTIPLY(multiply_int6, "vpmaddubsw", "vpaddw")

constexpr MultiplyLoop kBytes = {multiply_int8, 6 * 32}, kSmall = {multiply_int6, 6 * 64};
#endif

#define FMA(sum) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #sum "\n"

void multiply_f32(int64_t rounds) {
  __asm__ volatile("vzeroall\n1:\n" FMA(0) FMA(1) FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9) FMA(10)
                       FMA(11) "dec %0\njnz 1b\nvzeroupper\n"
                   : "+r"(rounds)
                   :
                   : ALL_REGISTERS);
}

constexpr MultiplyLoop kFloats = {multiply_f32, 12 * 16};
constexpr CeilingTable kTable = {read_one_stream, read_eight_streams, kBytes, kFloats, kFloats, kSmall};

}  // namespace
}  // namespace homenode
