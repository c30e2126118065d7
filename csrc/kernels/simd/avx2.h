// Sixteen float lanes in two AVX2 registers. The same interface as scalar.h and avx512.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace homenode {
namespace {

struct Lanes {
  __m256 low, high;
};

constexpr int kRowBlock = 6;   // most rows of the register tile of attention
constexpr int kCodedRowBlock = 6;  // the same over keys and values of codes
// Vectors of lanes beside so many rows: eight sums and more, each two registers, of the sixteen.
constexpr int lanes_beside(int rows) { return rows > 3 ? 1 : rows > 1 ? 2 : 4; }

inline Lanes fill(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, const Lanes& x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline Lanes add(const Lanes& a, const Lanes& b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Lanes subtract(const Lanes& a, const Lanes& b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Lanes multiply(const Lanes& a, const Lanes& b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Lanes divide(const Lanes& a, const Lanes& b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a * b + c, rounded once.
inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// sum += a * b, rounded once. Left to itself the compiler puts sums into other registers as it goes, runs out of them,
// and has sums wait for memory.
inline void add_product(const Lanes& a, const Lanes& b, Lanes& sum) {
  asm("vfmadd231ps %1, %2, %0" : "+x"(sum.low) : "x"(a.low), "x"(b.low));
  asm("vfmadd231ps %1, %2, %0" : "+x"(sum.high) : "x"(a.high), "x"(b.high));
}
inline void add_in_place(const Lanes& a, const Lanes& b, Lanes& sum) { add_product(a, b, sum); }
// The larger lane; b where either is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes smaller(const Lanes& a, const Lanes& b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
// Nearest whole number, halves to even.
inline Lanes round_even(const Lanes& x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, mode), _mm256_round_ps(x.high, mode)};
}
// x * 2^n for whole n in -126 .. 127 with a normal result. A NaN, for n as well, becomes 0 when it is shifted.
inline __m256 add_exponent(__m256 x, __m256 n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
inline Lanes scale_by_power(const Lanes& x, const Lanes& n) {
  return {add_exponent(x.low, n.low), add_exponent(x.high, n.high)};
}
inline __m256 keep_half(__m256 x, int begin, int end, __m256 other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(begin - 1)),
                                      _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(in));
}
// Lanes begin <= i < end of x, `other` elsewhere.
inline Lanes keep(const Lanes& x, int begin, int end, const Lanes& other) {
  return {keep_half(x.low, begin, end, other.low), keep_half(x.high, begin - 8, end - 8, other.high)};
}
// 32 bf16 values: the even ones and the odd ones.
inline void load_pairs(const uint16_t* p, Lanes& even, Lanes& odd) {
  __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  asm("" : "+x"(a), "+x"(b));  // or each would be loaded twice
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(a, top)), _mm256_castsi256_ps(_mm256_and_si256(b, top))};
}
// The same one after the other, each from memory: what the compiler would load once it would keep in registers that
// sums need.
inline Lanes load_even(const uint16_t* p) {
  Lanes x;
  asm("vmovdqu %1, %0" : "=x"(x.low) : "m"(*reinterpret_cast<const __m256i_u*>(p)));
  asm("vmovdqu %1, %0" : "=x"(x.high) : "m"(*reinterpret_cast<const __m256i_u*>(p + 16)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.low), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.high), 16))};
}
inline Lanes load_odd(const uint16_t* p) {
  Lanes x = load(reinterpret_cast<const float*>(p));
  const __m256 top = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  asm("vandps %1, %0, %0" : "+x"(x.low) : "xm"(top));
  asm("vandps %1, %0, %0" : "+x"(x.high) : "xm"(top));
  return x;
}

// Pairwise: lane i with i + 8, then 4, 2, 1. The same order at every level.
inline float sum_lanes(const Lanes& x) {
  const __m256 half = _mm256_add_ps(x.low, x.high);
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline float largest_lane(const Lanes& x) {
  const __m256 half = _mm256_max_ps(x.low, x.high);
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

// Sixteen 32-bit sums, and sixteen pairs of 16-bit codes.
struct IntLanes {
  __m256i low, high;
};
struct PairLanes {
  __m256i low, high;
};
inline IntLanes zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Lanes to_floats(const IntLanes& x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
// 32 int8 codes: a pair in each lane.
inline PairLanes load_code_pairs(const int8_t* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(halves)), _mm256_cvtepi8_epi16(_mm_loadu_si128(halves + 1))};
}
// One pair in all lanes.
inline PairLanes fill_pair(const int16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
// The two products of each lane's pairs, added to its sum. See add_product.
inline void add_products(const PairLanes& a, const PairLanes& b, IntLanes& sum) {
#ifdef __AVXVNNI__
  sum = {_mm256_dpwssd_avx_epi32(sum.low, a.low, b.low), _mm256_dpwssd_avx_epi32(sum.high, a.high, b.high)};
#else
  asm("vpaddd %1, %0, %0" : "+x"(sum.low) : "x"(_mm256_madd_epi16(a.low, b.low)));
  asm("vpaddd %1, %0, %0" : "+x"(sum.high) : "x"(_mm256_madd_epi16(a.high, b.high)));
#endif
}
// Nearest whole numbers, halves to even, of magnitudes below 2^15.
inline void store_codes(int16_t* p, const Lanes& x) {
  // In each half four of both
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

// A line of eight words, as KV memory is copied.
struct WordLine {
  __m256i low, high;
};
constexpr int64_t kStreamAlignment = 32;  // of a line that stream_words stores
inline WordLine load_words(const void* p) {
  const auto* halves = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store_words(void* p, const WordLine& x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.low);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.high);
}
// Past the caches.
inline void stream_words(void* p, const WordLine& x) {
  _mm256_stream_si256(static_cast<__m256i*>(p), x.low);
  _mm256_stream_si256(static_cast<__m256i*>(p) + 1, x.high);
}
inline WordLine fill_words(uint64_t x) {
  const __m256i all = _mm256_set1_epi64x(static_cast<long long>(x));
  return {all, all};
}
inline WordLine add(const WordLine& a, const WordLine& b) {
  return {_mm256_add_epi64(a.low, b.low), _mm256_add_epi64(a.high, b.high)};
}
inline WordLine exclusive_or(const WordLine& a, const WordLine& b) {
  return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
// The lower half of each word times its upper half.
inline WordLine multiply_halves(const WordLine& x) {
  return {_mm256_mul_epu32(x.low, _mm256_srli_epi64(x.low, 32)),
          _mm256_mul_epu32(x.high, _mm256_srli_epi64(x.high, 32))};
}
// Words 2i and 2i + 1 exchanged.
inline WordLine swap_pairs(const WordLine& x) {
  return {_mm256_shuffle_epi32(x.low, 0x4e), _mm256_shuffle_epi32(x.high, 0x4e)};
}

}  // namespace
}  // namespace homenode

#include "kernels/simd/avx2_rows.h"
