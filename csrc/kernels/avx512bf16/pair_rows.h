// Rows of bfloat16 activations, of which a pair of adjacent elements at a time is multiplied with 16 rows of weights,
// or keys.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/in_register.h"

namespace homenode {
namespace {

constexpr int kPairBytes = 4;

// One pair in every lane.
inline __m512bh broadcast_pair(const void* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return reinterpret_cast<__m512bh>(in_register(_mm512_set1_epi32(pair)));
}

// The next pair of M rows, a stride (in bytes) apart. Every third has a pointer of its own, and the address of any is a
// pointer and up to two strides: with a register for each of twelve rows, or one for each multiple of the stride, the
// compiler ran out of them and fetched some from the vector registers, by an instruction that takes the multipliers'
// turn.
template <int M>
struct PairRows {
  const uint8_t* third[(M + 2) / 3];
  size_t stride;
  PairRows(const void* first, size_t from_row_to_row) : stride(from_row_to_row) {
#pragma GCC unroll 16
    for (int i = 0; 3 * i < M; ++i) third[i] = static_cast<const uint8_t*>(first) + 3 * i * stride;
  }
  const uint8_t* operator[](int m) const { return third[m / 3] + m % 3 * stride; }
  void advance() {
#pragma GCC unroll 16
    for (int i = 0; 3 * i < M; ++i) {
      third[i] += kPairBytes;
      asm("" : "+r"(third[i]));  // or the compiler finds out that they move together
    }
  }
};

}  // namespace
}  // namespace homenode
