// Vectors of AVX2 with FMA and F16C for linear/tiles.h: eight lanes, four registers for the rows of a group. The
// integer dot products are missing: the levels that share these vectors differ in them.
#pragma once
#include <immintrin.h>

#include "quant/coding.h"

namespace homenode {
namespace {

using Floats = __m256;
using Ints = __m256i;
constexpr int kLanes = 8;
constexpr int kFloatTokens = 3, kPairTokens = 2, kCodedTokens = 2;  // what 16 registers hold, or nearly

inline Floats zero_floats() { return _mm256_setzero_ps(); }
inline Floats load_floats(const float* p) { return _mm256_loadu_ps(p); }
inline void store_floats(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints round_to_ints(Floats x) { return _mm256_cvtps_epi32(x); }
inline Floats as_floats(Ints x) { return _mm256_castsi256_ps(x); }
inline Ints as_ints(Floats x) { return _mm256_castps_si256(x); }
inline Floats load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats broadcast_float(const void* p) {
  float x;
  __builtin_memcpy(&x, p, 4);
  return _mm256_set1_ps(x);
}

inline Ints zero_ints() { return _mm256_setzero_si256(); }
inline Ints broadcast_int(int32_t x) { return _mm256_set1_epi32(x); }
inline Ints broadcast_bytes4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm256_set1_epi32(x);
}
inline Ints load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Ints load_codes(const uint8_t* p) { return load_bytes(p); }
inline void store_ints(uint8_t* p, Ints x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline __m128i load_eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline Ints load_signed8(const uint8_t* p) { return _mm256_cvtepi8_epi32(load_eight(p)); }
inline Ints load_unsigned8(const uint8_t* p) { return _mm256_cvtepu8_epi32(load_eight(p)); }
inline Ints load_unsigned16(const uint8_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_signed8(int8_t* p, Ints x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints larger_ints(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline int32_t largest_lane(Ints x) {
  int32_t lanes[kLanes], largest;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), x);
  largest = lanes[0];
  for (int i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}
inline int32_t sum_lanes(Ints x) {
  int32_t lanes[kLanes], sum = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), x);
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}
inline Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
template <int N>
inline Ints shift_left32(Ints x) { return _mm256_slli_epi32(x, N); }
template <int N>
inline Ints shift_left16(Ints x) { return _mm256_slli_epi16(x, N); }
template <int N>
inline Ints shift_right16(Ints x) { return _mm256_srli_epi16(x, N); }

template <Table T, int Zero>
inline Ints table_bytes() {
  alignas(16) uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(kTables[int(T) - 1][i] + Zero);
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}
inline Ints look_up(Ints table, Ints codes) { return _mm256_shuffle_epi8(table, codes); }

}  // namespace
}  // namespace homenode
