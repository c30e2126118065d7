// Sixteen float lanes in one AVX-512 register. The same interface as scalar.h and avx2.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace homenode {
namespace {

struct Lanes {
  __m512 all;
};

constexpr int kRowBlock = 12;  // most rows of the register tile of attention
constexpr int kCodedRowBlock = 4;  // the same over keys and values of codes
constexpr int lanes_beside(int rows) { return rows > 6 ? 2 : 4; }

inline Lanes fill(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, const Lanes& x) { _mm512_storeu_ps(p, x.all); }
inline Lanes add(const Lanes& a, const Lanes& b) { return {_mm512_add_ps(a.all, b.all)}; }
inline Lanes subtract(const Lanes& a, const Lanes& b) { return {_mm512_sub_ps(a.all, b.all)}; }
inline Lanes multiply(const Lanes& a, const Lanes& b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline Lanes divide(const Lanes& a, const Lanes& b) { return {_mm512_div_ps(a.all, b.all)}; }
// a * b + c, rounded once.
inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
  return {_mm512_fmadd_ps(a.all, b.all, c.all)};
}
// sum += a * b, rounded once.
inline void add_product(const Lanes& a, const Lanes& b, Lanes& sum) { sum = multiply_add(a, b, sum); }
// The same for many sums. Left to itself the compiler puts them into other registers as it goes, runs out of them, and
// has sums wait for memory.
inline void add_in_place(const Lanes& a, const Lanes& b, Lanes& sum) {
#ifdef HOMENODE_EMULATE_AVX512
  sum = multiply_add(a, b, sum);
#else
  asm("vfmadd231ps %1, %2, %0" : "+v"(sum.all) : "v"(a.all), "v"(b.all));
#endif
}
// The larger lane; b where either is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) { return {_mm512_max_ps(a.all, b.all)}; }
inline Lanes smaller(const Lanes& a, const Lanes& b) { return {_mm512_min_ps(a.all, b.all)}; }
// Nearest whole number, halves to even.
inline Lanes round_even(const Lanes& x) {
  return {_mm512_roundscale_ps(x.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for whole n in -126 .. 127 with a normal result.
inline Lanes scale_by_power(const Lanes& x, const Lanes& n) { return {_mm512_scalef_ps(x.all, n.all)}; }
// Lanes begin <= i < end of x, `other` elsewhere.
inline Lanes keep(const Lanes& x, int begin, int end, const Lanes& other) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 in =
      _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin)) & _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
  return {_mm512_mask_mov_ps(other.all, in, x.all)};
}
// 32 bf16 values: the even ones and the odd ones.
inline void load_pairs(const uint16_t* p, Lanes& even, Lanes& odd) {
  const __m512i words = _mm512_loadu_si512(p);
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
// One half of load_pairs.
inline Lanes load_even(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline Lanes load_odd(const uint16_t* p) {
  return {
      _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Pairwise: lane i with i + 8, then 4, 2, 1. The same order at every level.
inline float sum_lanes(const Lanes& x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x.all), _mm512_extractf32x8_ps(x.all, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline float largest_lane(const Lanes& x) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x.all), _mm512_extractf32x8_ps(x.all, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

// Sixteen 32-bit sums, and sixteen pairs of 16-bit codes.
struct IntLanes {
  __m512i all;
};
struct PairLanes {
  __m512i all;
};
inline IntLanes zero_ints() { return {_mm512_setzero_si512()}; }
inline Lanes to_floats(const IntLanes& x) { return {_mm512_cvtepi32_ps(x.all)}; }
// 32 int8 codes: a pair in each lane.
inline PairLanes load_code_pairs(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// One pair in all lanes.
inline PairLanes fill_pair(const int16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return {_mm512_set1_epi32(pair)};
}
// The two products of each lane's pairs, added to its sum.
inline void add_products(const PairLanes& a, const PairLanes& b, IntLanes& sum) {
  sum.all = _mm512_dpwssd_epi32(sum.all, a.all, b.all);
}
// Nearest whole numbers, halves to even, of magnitudes below 2^15.
inline void store_codes(int16_t* p, const Lanes& x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x.all)));
}

// A line of eight words, as KV memory is copied.
struct WordLine {
  __m512i all;
};
constexpr int64_t kStreamAlignment = 64;  // of a line that stream_words stores
inline WordLine load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_words(void* p, const WordLine& x) { _mm512_storeu_si512(p, x.all); }
// Past the caches.
inline void stream_words(void* p, const WordLine& x) { _mm512_stream_si512(static_cast<__m512i*>(p), x.all); }
inline WordLine fill_words(uint64_t x) { return {_mm512_set1_epi64(static_cast<long long>(x))}; }
inline WordLine add(const WordLine& a, const WordLine& b) { return {_mm512_add_epi64(a.all, b.all)}; }
inline WordLine exclusive_or(const WordLine& a, const WordLine& b) { return {_mm512_xor_si512(a.all, b.all)}; }
// The lower half of each word times its upper half.
inline WordLine multiply_halves(const WordLine& x) { return {_mm512_mul_epu32(x.all, _mm512_srli_epi64(x.all, 32))}; }
// Words 2i and 2i + 1 exchanged.
inline WordLine swap_pairs(const WordLine& x) { return {_mm512_shuffle_epi32(x.all, _MM_PERM_BADC)}; }

}  // namespace
}  // namespace homenode
