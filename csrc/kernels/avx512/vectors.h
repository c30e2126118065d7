// The vectors of the levels with AVX-512 that multiply block formats: sixteen lanes, two registers for the rows of a
// group. See linear/tiles.h.
#pragma once
#include <immintrin.h>

#include "kernels/simd/in_register.h"
#include "quant/coding.h"

namespace homenode {
namespace {

using Floats = __m512;
using Ints = __m512i;
constexpr int kLanes = 16;
constexpr int kFloatTokens = 6, kPairTokens = 6, kPanelTokens = 6;  // what 32 registers hold
// Two rows' sums go through memory, which takes less time than the weights coming a second time
constexpr int kCodedTokens = 8;
constexpr bool kWideDotSubtracts128 = false;

inline Floats zero_floats() { return _mm512_setzero_ps(); }
inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
inline void store_floats(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints round_to_ints(Floats x) { return _mm512_cvtps_epi32(x); }
inline Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }
inline Ints as_ints(Floats x) { return _mm512_castps_si512(x); }
inline Floats load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats broadcast_float(const void* p) {
  float x;
  __builtin_memcpy(&x, p, 4);
  return _mm512_set1_ps(x);
}

inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Ints broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_ints(uint8_t* p, Ints x) { _mm512_storeu_si512(p, x); }
inline Ints load_signed8(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints load_unsigned8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints load_unsigned16(const uint8_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_signed8(int8_t* p, Ints x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints larger_ints(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline int32_t largest_lane(Ints x) { return _mm512_reduce_max_epi32(x); }
inline int32_t sum_lanes(Ints x) { return _mm512_reduce_add_epi32(x); }
inline Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
template <int N>
inline Ints shift_left32(Ints x) {
  return _mm512_slli_epi32(x, N);
}
template <int N>
inline Ints shift_left16(Ints x) {
  return _mm512_slli_epi16(x, N);
}
template <int N>
inline Ints shift_right16(Ints x) {
  return _mm512_srli_epi16(x, N);
}

// Weights whose bytes are multiplied as they are.
inline Ints load_codes(const uint8_t* p) { return in_register(load_bytes(p)); }
// Four activation codes to every lane.
inline Ints broadcast_bytes4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return in_register(_mm512_set1_epi32(x));
}

// Unsigned bytes times signed bytes, summed in fours: exact for all values, so a run is the sum itself.
constexpr int run_lines(int) { return 8; }
inline Ints begin_run(Ints sum) { return sum; }
inline Ints end_run(Ints, Ints run) { return run; }
inline Ints add_products(Ints run, Ints weights, Ints codes) { return _mm512_dpbusd_epi32(run, weights, codes); }
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) { return _mm512_dpbusd_epi32(run, weights, codes); }

template <Table T, int Zero>
inline Ints table_bytes() {
  alignas(16) uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(kTables[int(T) - 1][i] + Zero);
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}
inline Ints look_up(Ints table, Ints codes) { return _mm512_shuffle_epi8(table, codes); }

}  // namespace
}  // namespace homenode
