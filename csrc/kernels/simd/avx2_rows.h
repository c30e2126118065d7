// Two and three rows beside two vectors of lanes, of bfloat16; attention_sums.h has the loop for all other numbers.
// Twelve sums, three factors and a vector of lanes fill all sixteen registers: the compiler does not find a way to do
// it, nor with eight sums, so a step is written out.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace homenode {
namespace {

// Eight lanes in the first of the registers 12 .. 15, the even or the odd ones of the pairs at `at` bytes behind
// `line`; times the rows' factors.
#define HOMENODE_EVEN(line, at) "vmovdqu " #at "(%[" #line "]),%%ymm12\nvpslld $16,%%ymm12,%%ymm12\n"
#define HOMENODE_ODD(line, at) "vmovdqu " #at "(%[" #line "]),%%ymm12\nvpand %[mask],%%ymm12,%%ymm12\n"
#define HOMENODE_TWO(n) "vfmadd231ps %%ymm13,%%ymm12,%[a" #n "]\nvfmadd231ps %%ymm14,%%ymm12,%[b" #n "]\n"
#define HOMENODE_THREE(n) HOMENODE_TWO(n) "vfmadd231ps %%ymm15,%%ymm12,%[c" #n "]\n"
#define HOMENODE_TWO_FACTORS(at) "vbroadcastss " #at "(%[x]),%%ymm13\nvbroadcastss " #at "(%[x],%[stride]),%%ymm14\n"
#define HOMENODE_THREE_FACTORS(at) HOMENODE_TWO_FACTORS(at) "vbroadcastss " #at "(%[x],%[stride],2),%%ymm15\n"
#define HOMENODE_VECTORS(choose, rows) \
  choose(first, 0) rows(0) choose(first, 32) rows(1) choose(second, 0) rows(2) choose(second, 32) rows(3)
#define HOMENODE_STEP(rows) \
  rows##_FACTORS(0) HOMENODE_VECTORS(HOMENODE_EVEN, rows) rows##_FACTORS(4) HOMENODE_VECTORS(HOMENODE_ODD, rows)
#define HOMENODE_SUMS(name, row) \
  [name##0] "+x"(sums[row][0].low), [name##1] "+x"(sums[row][0].high), [name##2] "+x"(sums[row][1].low), \
      [name##3] "+x"(sums[row][1].high)
#define HOMENODE_FROM [first] "r"(at[0]), [second] "r"(at[1]), [x] "r"(x), [stride] "r"(4 * stride), [mask] "m"(mask)

inline __attribute__((always_inline)) void add_pairs(const float* x, int64_t stride, const uint16_t* const (&at)[2],
                                                     Lanes (&sums)[2][2]) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  asm(HOMENODE_STEP(HOMENODE_TWO)
      : HOMENODE_SUMS(a, 0), HOMENODE_SUMS(b, 1)
      : HOMENODE_FROM
      : "memory", "xmm12", "xmm13", "xmm14");
}

inline __attribute__((always_inline)) void add_pairs(const float* x, int64_t stride, const uint16_t* const (&at)[2],
                                                     Lanes (&sums)[3][2]) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  asm(HOMENODE_STEP(HOMENODE_THREE)
      : HOMENODE_SUMS(a, 0), HOMENODE_SUMS(b, 1), HOMENODE_SUMS(c, 2)
      : HOMENODE_FROM
      : "memory", "xmm12", "xmm13", "xmm14", "xmm15");
}

#undef HOMENODE_EVEN
#undef HOMENODE_ODD
#undef HOMENODE_TWO
#undef HOMENODE_THREE
#undef HOMENODE_TWO_FACTORS
#undef HOMENODE_THREE_FACTORS
#undef HOMENODE_VECTORS
#undef HOMENODE_STEP
#undef HOMENODE_SUMS
#undef HOMENODE_FROM

}  // namespace
}  // namespace homenode
