// The intrinsics that the kernels of AVX-VNNI and AVX-512 use, as plain functions of AVX2: the checks then run these
// kernels on processors without them.
//
// CMakeLists.txt puts this header before every unit of these levels (HOMENODE_EMULATE_AVX512). Names found in the
// innermost namespace come first, so the kernels call these functions and not the compiler's of the same names; one
// that is missing here does not compile. After the operation sections of Intel's manual; only what the kernels pass is
// taken, anything else ends the program.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "kernels/emulated/halves.h"

// Where a compiler has them as macros.
#undef _mm512_cmp_ps_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_extracti64x4_epi64
#undef _mm512_roundscale_ps
#undef _mm512_setr_epi32
#undef _mm512_setr_epi64
#undef _mm512_shuffle_i32x4
#undef _mm512_cmpge_epi32_mask
#undef _mm512_cmpgt_epi32_mask
#undef _mm512_cmplt_epi32_mask

namespace homenode {
namespace {

using emulation::by_halves;
using emulation::by_lanes;
using emulation::chosen;
using emulation::Lanes512;
using emulation::lanes_of;
using emulation::mask_of;

// Loads, stores, constants.
HOMENODE_EMULATED __m512 _mm512_setzero_ps() { return __m512{}; }
HOMENODE_EMULATED __m512i _mm512_setzero_si512() { return __m512i{}; }
HOMENODE_EMULATED __m512 _mm512_set1_ps(float x) { return by_lanes<float, __m512>([&](int) { return x; }); }
HOMENODE_EMULATED __m512i _mm512_set1_epi8(int x) { return by_lanes<int8_t, __m512i>([&](int) { return int8_t(x); }); }
HOMENODE_EMULATED __m512i _mm512_set1_epi16(int x) {
  return by_lanes<int16_t, __m512i>([&](int) { return int16_t(x); });
}
HOMENODE_EMULATED __m512i _mm512_set1_epi32(int x) {
  return emulation::join(_mm256_set1_epi32(x), _mm256_set1_epi32(x));
}
HOMENODE_EMULATED __m512i _mm512_set1_epi64(long long x) {
  return emulation::join(_mm256_set1_epi64x(x), _mm256_set1_epi64x(x));
}
template <class... X>
HOMENODE_EMULATED __m512i _mm512_setr_epi32(X... x) {
  static_assert(sizeof...(X) == 16);
  return __builtin_bit_cast(__m512i, Lanes512<int32_t>{{int32_t(x)...}});
}
template <class... X>
HOMENODE_EMULATED __m512i _mm512_setr_epi64(X... x) {
  static_assert(sizeof...(X) == 8);
  return __builtin_bit_cast(__m512i, Lanes512<int64_t>{{int64_t(x)...}});
}
HOMENODE_EMULATED __m512 _mm512_loadu_ps(const void* p) { return emulation::load_floats(p); }
HOMENODE_EMULATED __m512i _mm512_loadu_si512(const void* p) { return emulation::load_ints(p); }
HOMENODE_EMULATED __m512i _mm512_load_si512(const void* p) { return emulation::load_ints(emulation::aligned(p)); }
HOMENODE_EMULATED void _mm512_storeu_ps(void* p, __m512 x) { __builtin_memcpy(p, &x, 64); }
HOMENODE_EMULATED void _mm512_storeu_si512(void* p, __m512i x) { __builtin_memcpy(p, &x, 64); }
HOMENODE_EMULATED void _mm512_store_ps(void* p, __m512 x) { __builtin_memcpy(emulation::aligned(p), &x, 64); }
HOMENODE_EMULATED void _mm512_store_si512(void* p, __m512i x) { __builtin_memcpy(emulation::aligned(p), &x, 64); }
HOMENODE_EMULATED void _mm512_stream_si512(void* p, __m512i x) { __builtin_memcpy(emulation::aligned(p), &x, 64); }
// What is masked off is not touched: it may lie beyond the memory there is.
HOMENODE_EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* p) {
  return by_lanes<float, __m512>([&](int i) { return mask >> i & 1 ? static_cast<const float*>(p)[i] : 0.0f; });
}
HOMENODE_EMULATED void _mm512_mask_storeu_epi16(void* p, __mmask32 mask, __m512i x) {
  const auto lanes = lanes_of<int16_t>(x);
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) __builtin_memcpy(static_cast<char*>(p) + 2 * i, &lanes.at[i], 2);
  }
}

// The same bits as another kind, and parts of them.
HOMENODE_EMULATED __m512i _mm512_castps_si512(__m512 x) { return __builtin_bit_cast(__m512i, x); }
HOMENODE_EMULATED __m512 _mm512_castsi512_ps(__m512i x) { return __builtin_bit_cast(__m512, x); }
HOMENODE_EMULATED __m256 _mm512_castps512_ps256(__m512 x) { return emulation::half(x, 0); }
HOMENODE_EMULATED __m256i _mm512_castsi512_si256(__m512i x) { return emulation::half(x, 0); }
HOMENODE_EMULATED __m256 _mm512_extractf32x8_ps(__m512 x, int which) { return emulation::half(x, which); }
HOMENODE_EMULATED __m256i _mm512_extracti64x4_epi64(__m512i x, int which) { return emulation::half(x, which); }
HOMENODE_EMULATED __m512i _mm512_broadcast_i32x4(__m128i x) {
  const __m256i both = _mm256_broadcastsi128_si256(x);
  return emulation::join(both, both);
}

// What AVX2 does in each half, or each quarter, of the register.
#define HOMENODE_OF_TWO(Type, name, half_name) \
  HOMENODE_EMULATED Type name(Type a, Type b) { \
    return by_halves([](auto x, auto y) { return half_name(x, y); }, a, b); \
  }
HOMENODE_OF_TWO(__m512, _mm512_add_ps, _mm256_add_ps)
HOMENODE_OF_TWO(__m512, _mm512_sub_ps, _mm256_sub_ps)
HOMENODE_OF_TWO(__m512, _mm512_mul_ps, _mm256_mul_ps)
HOMENODE_OF_TWO(__m512, _mm512_div_ps, _mm256_div_ps)
HOMENODE_OF_TWO(__m512, _mm512_max_ps, _mm256_max_ps)
HOMENODE_OF_TWO(__m512, _mm512_min_ps, _mm256_min_ps)
HOMENODE_OF_TWO(__m512i, _mm512_add_epi32, _mm256_add_epi32)
HOMENODE_OF_TWO(__m512i, _mm512_add_epi64, _mm256_add_epi64)
HOMENODE_OF_TWO(__m512i, _mm512_sub_epi8, _mm256_sub_epi8)
HOMENODE_OF_TWO(__m512i, _mm512_sub_epi32, _mm256_sub_epi32)
HOMENODE_OF_TWO(__m512i, _mm512_mul_epu32, _mm256_mul_epu32)
HOMENODE_OF_TWO(__m512i, _mm512_max_epi32, _mm256_max_epi32)
HOMENODE_OF_TWO(__m512i, _mm512_and_si512, _mm256_and_si256)
HOMENODE_OF_TWO(__m512i, _mm512_or_si512, _mm256_or_si256)
HOMENODE_OF_TWO(__m512i, _mm512_xor_si512, _mm256_xor_si256)
HOMENODE_OF_TWO(__m512i, _mm512_packs_epi16, _mm256_packs_epi16)
HOMENODE_OF_TWO(__m512i, _mm512_packs_epi32, _mm256_packs_epi32)
HOMENODE_OF_TWO(__m512i, _mm512_unpacklo_epi32, _mm256_unpacklo_epi32)
HOMENODE_OF_TWO(__m512i, _mm512_unpackhi_epi32, _mm256_unpackhi_epi32)
HOMENODE_OF_TWO(__m512i, _mm512_unpacklo_epi64, _mm256_unpacklo_epi64)
HOMENODE_OF_TWO(__m512i, _mm512_unpackhi_epi64, _mm256_unpackhi_epi64)
HOMENODE_OF_TWO(__m512i, _mm512_shuffle_epi8, _mm256_shuffle_epi8)
#undef HOMENODE_OF_TWO
#define HOMENODE_OF_COUNT(name, half_name) \
  HOMENODE_EMULATED __m512i name(__m512i a, unsigned count) { \
    return by_halves([count](__m256i x) { return half_name(x, int(count)); }, a); \
  }
HOMENODE_OF_COUNT(_mm512_slli_epi16, _mm256_slli_epi16)
HOMENODE_OF_COUNT(_mm512_srli_epi16, _mm256_srli_epi16)
HOMENODE_OF_COUNT(_mm512_slli_epi32, _mm256_slli_epi32)
HOMENODE_OF_COUNT(_mm512_srli_epi32, _mm256_srli_epi32)
HOMENODE_OF_COUNT(_mm512_srli_epi64, _mm256_srli_epi64)
#undef HOMENODE_OF_COUNT

HOMENODE_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return by_halves([](__m256 x, __m256 y, __m256 z) { return _mm256_fmadd_ps(x, y, z); }, a, b, c);
}
HOMENODE_EMULATED __m512 _mm512_roundscale_ps(__m512 x, int how) {
  emulation::require(how == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  return by_halves([](__m256 y) { return _mm256_round_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }, x);
}
// a * 2^floor(b), rounded once.
HOMENODE_EMULATED __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  const auto x = lanes_of<float>(a), n = lanes_of<float>(b);
  return by_lanes<float, __m512>([&](int i) {
    if (std::isnan(x.at[i]) || std::isnan(n.at[i])) return x.at[i] + n.at[i];
    return std::scalbn(x.at[i], int(std::floor(std::fmin(std::fmax(n.at[i], -1000.0f), 1000.0f))));
  });
}

// Other kinds of numbers.
HOMENODE_EMULATED __m512 _mm512_cvtepi32_ps(__m512i x) {
  return emulation::join(_mm256_cvtepi32_ps(emulation::half(x, 0)), _mm256_cvtepi32_ps(emulation::half(x, 1)));
}
HOMENODE_EMULATED __m512i _mm512_cvtps_epi32(__m512 x) {
  return emulation::join(_mm256_cvtps_epi32(emulation::half(x, 0)), _mm256_cvtps_epi32(emulation::half(x, 1)));
}
HOMENODE_EMULATED __m512 _mm512_cvtph_ps(__m256i x) {
  return emulation::join(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
HOMENODE_EMULATED __m512i _mm512_cvtepi8_epi16(__m256i x) {
  return emulation::join(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)),
                         _mm256_cvtepi8_epi16(_mm256_extracti128_si256(x, 1)));
}
HOMENODE_EMULATED __m512i _mm512_cvtepu16_epi32(__m256i x) {
  return emulation::join(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                         _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}
HOMENODE_EMULATED __m512i _mm512_cvtepi8_epi32(__m128i x) {
  return emulation::join(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}
HOMENODE_EMULATED __m512i _mm512_cvtepu8_epi32(__m128i x) {
  return emulation::join(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)));
}
HOMENODE_EMULATED __m256i _mm512_cvtepi32_epi16(__m512i x) {
  const auto lanes = lanes_of<int32_t>(x);
  return by_lanes<int16_t, __m256i>([&](int i) { return int16_t(lanes.at[i]); });
}
HOMENODE_EMULATED __m128i _mm512_cvtepi32_epi8(__m512i x) {
  const auto lanes = lanes_of<int32_t>(x);
  return by_lanes<int8_t, __m128i>([&](int i) { return int8_t(lanes.at[i]); });
}

// Comparisons, and choices by their masks.
HOMENODE_EMULATED __mmask16 _mm512_cmpgt_epi32_mask(__m512i a, __m512i b) {
  return mask_of(by_halves([](__m256i x, __m256i y) { return _mm256_cmpgt_epi32(x, y); }, a, b));
}
HOMENODE_EMULATED __mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b) { return _mm512_cmpgt_epi32_mask(b, a); }
HOMENODE_EMULATED __mmask16 _mm512_cmpge_epi32_mask(__m512i a, __m512i b) {
  return static_cast<__mmask16>(~_mm512_cmpgt_epi32_mask(b, a));
}
HOMENODE_EMULATED __mmask32 _mm512_cmpeq_epi16_mask(__m512i a, __m512i b) {
  const auto first = lanes_of<int16_t>(a), second = lanes_of<int16_t>(b);
  __mmask32 mask = 0;
  for (int i = 0; i < 32; ++i) mask |= static_cast<__mmask32>(first.at[i] == second.at[i]) << i;
  return mask;
}
HOMENODE_EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how) {
  emulation::require(how == _CMP_GE_OQ);
  return mask_of(
      _mm512_castps_si512(by_halves([](__m256 x, __m256 y) { return _mm256_cmp_ps(x, y, _CMP_GE_OQ); }, a, b)));
}
HOMENODE_EMULATED __m512 _mm512_mask_mov_ps(__m512 other, __mmask16 mask, __m512 x) {
  return chosen<float>(mask, x, other);
}
HOMENODE_EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 other, __m512 x) {
  return chosen<float>(mask, x, other);
}
HOMENODE_EMULATED __m512 _mm512_mask_mul_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b) {
  return chosen<float>(mask, _mm512_mul_ps(a, b), other);
}
HOMENODE_EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 x) { return chosen<float>(mask, x, __m512{}); }
HOMENODE_EMULATED __m512 _mm512_maskz_div_ps(__mmask16 mask, __m512 a, __m512 b) {
  return chosen<float>(mask, _mm512_div_ps(a, chosen<float>(mask, b, _mm512_set1_ps(1))), __m512{});
}
HOMENODE_EMULATED __m512i _mm512_maskz_slli_epi32(__mmask16 mask, __m512i x, unsigned count) {
  return chosen<int32_t>(mask, _mm512_slli_epi32(x, count), __m512i{});
}
HOMENODE_EMULATED __m512i _mm512_maskz_mov_epi16(__mmask32 mask, __m512i x) {
  return chosen<int16_t>(mask, x, __m512i{});
}

// Lanes in another order.
HOMENODE_EMULATED __m512i _mm512_permutexvar_epi32(__m512i order, __m512i x) {
  const auto from = lanes_of<int32_t>(x), at = lanes_of<int32_t>(order);
  return by_lanes<int32_t, __m512i>([&](int i) { return from.at[at.at[i] & 15]; });
}
template <class T, int Count = 64 / sizeof(T)>
HOMENODE_EMULATED __m512i permuted(__m512i a, __m512i order, __m512i b) {
  const auto first = lanes_of<T>(a), second = lanes_of<T>(b), at = lanes_of<T>(order);
  return by_lanes<T, __m512i>([&](int i) { return (at.at[i] & Count ? second : first).at[at.at[i] & (Count - 1)]; });
}
HOMENODE_EMULATED __m512i _mm512_permutex2var_epi32(__m512i a, __m512i order, __m512i b) {
  return permuted<int32_t>(a, order, b);
}
HOMENODE_EMULATED __m512i _mm512_permutex2var_epi64(__m512i a, __m512i order, __m512i b) {
  return permuted<int64_t>(a, order, b);
}
// Its second argument's type is of the global namespace, where the compiler's function would be found as well.
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32 emulated_shuffle_epi32
HOMENODE_EMULATED __m512i emulated_shuffle_epi32(__m512i x, int order) {
  const auto from = lanes_of<int32_t>(x);
  return by_lanes<int32_t, __m512i>([&](int i) { return from.at[(i & ~3) + (order >> 2 * (i & 3) & 3)]; });
}
// Two quarters of `a` and then two of `b`.
HOMENODE_EMULATED __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int order) {
  const auto first = lanes_of<int32_t>(a), second = lanes_of<int32_t>(b);
  return by_lanes<int32_t, __m512i>(
      [&](int i) { return (i < 8 ? first : second).at[4 * (order >> 2 * (i / 4) & 3) + i % 4]; });
}
HOMENODE_EMULATED int _mm512_reduce_add_epi32(__m512i x) {
  uint32_t sum = 0;
  for (const uint32_t lane : lanes_of<uint32_t>(x).at) sum += lane;
  return int(sum);
}
HOMENODE_EMULATED int _mm512_reduce_max_epi32(__m512i x) {
  int largest = INT32_MIN;
  for (const int lane : lanes_of<int32_t>(x).at) largest = lane > largest ? lane : largest;
  return largest;
}

// VNNI. Four unsigned bytes times four signed ones, exact; the even and the odd of them.
HOMENODE_EMULATED __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
  const __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
HOMENODE_EMULATED __m256i _mm256_dpwssd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
HOMENODE_EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  return by_halves([](__m256i x, __m256i y, __m256i z) { return _mm256_dpbusd_avx_epi32(x, y, z); }, sum, a, b);
}
HOMENODE_EMULATED __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
  return by_halves([](__m256i x, __m256i y, __m256i z) { return _mm256_dpwssd_avx_epi32(x, y, z); }, sum, a, b);
}

// BF16: denormal numbers are taken and left as zero, whatever the thread's settings.
HOMENODE_EMULATED __m256 without_denormals(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), sign = _mm256_set1_epi32(INT32_MIN),
                exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i tiny = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, _mm256_and_si256(bits, sign), tiny));
}
// Two values to each lane, the second factor's lower 16 bits first in memory but second in the sum: each product is
// added by a rounding of its own.
HOMENODE_EMULATED __m256 add_pair_products(__m256 sum, __m256i a, __m256i b) {
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
  const auto odd = [&](__m256i x) { return without_denormals(_mm256_castsi256_ps(_mm256_and_si256(x, upper))); };
  const auto even = [&](__m256i x) { return without_denormals(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16))); };
  sum = without_denormals(_mm256_fmadd_ps(odd(a), odd(b), without_denormals(sum)));
  return without_denormals(_mm256_fmadd_ps(even(a), even(b), sum));
}
HOMENODE_EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  const __m512i x = __builtin_bit_cast(__m512i, a), y = __builtin_bit_cast(__m512i, b);
  return emulation::join(add_pair_products(emulation::half(sum, 0), emulation::half(x, 0), emulation::half(y, 0)),
                        add_pair_products(emulation::half(sum, 1), emulation::half(x, 1), emulation::half(y, 1)));
}
// The sixteen of `low` first. Nearest, halves to even.
HOMENODE_EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  const auto first = lanes_of<uint32_t>(low), second = lanes_of<uint32_t>(high);
  return by_lanes<uint16_t, __m512bh>([&](int i) {
    const uint32_t bits = (i < 16 ? first : second).at[i & 15], magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    if (magnitude < 0x00800000) return uint16_t(bits >> 16 & 0x8000);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  });
}

}  // namespace
}  // namespace homenode
