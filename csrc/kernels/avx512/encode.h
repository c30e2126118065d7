// Sixteen parts of activations at once, with the same bits as encode_part (linear_encode.h).
//
// One part by itself spends most of its time on sums and maxima across lanes and on two divisions. Here lane i of a vector is part i: maxima and sums
// are brought there by transposing while they are taken, and the rest is done for all sixteen.
#pragma once
#include "kernels/linear_encode.h"

namespace homenode {
namespace {

constexpr int kPartsAtOnce = 16;
static_assert(kPanelFloats == 128);  // a shift below

// Lane i: the largest lane of x[i].
HOMENODE_INLINE __m512i largest_of_each(__m512i (&x)[kPartsAtOnce]) {
  __m512i quarter[4], half[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i* four = x + 4 * i;
    const __m512i first = _mm512_max_epi32(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
    const __m512i second = _mm512_max_epi32(_mm512_unpacklo_epi32(four[2], four[3]), _mm512_unpackhi_epi32(four[2], four[3]));
    quarter[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i a = quarter[2 * i], b = quarter[2 * i + 1];
    half[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
  return _mm512_max_epi32(_mm512_shuffle_i32x4(half[0], half[1], 0x88), _mm512_shuffle_i32x4(half[0], half[1], 0xdd));
}

// What is the same for all codes of a part, for sixteen parts; see EncodedPart.
struct PartScales {
  __m512 scale, anchor, inverse;
  __m512i factor;
};

HOMENODE_INLINE PartScales scales_of(__m512i largest_bits) {
  const __m512 largest = _mm512_castsi512_ps(largest_bits), none = _mm512_setzero_ps(), nan = _mm512_set1_ps(__builtin_nanf(""));
  const __mmask16 large = _mm512_cmpgt_epi32_mask(largest_bits, _mm512_set1_epi32(kLargestMagnitude));
  const __mmask16 usable = __mmask16(~large & ~_mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_LT_OQ));
  const __m512i least = _mm512_castps_si512(_mm512_div_ps(largest, _mm512_set1_ps(127.0f)));
  const __m512i eighths = _mm512_srli_epi32(_mm512_add_epi32(least, _mm512_set1_epi32((1 << kLowBits) - 1)), kLowBits);
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(eighths, kLowBits));
  const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_srli_epi32(eighths, 23 - kLowBits), 23));
  PartScales s;
  s.scale = _mm512_mask_mov_ps(_mm512_maskz_mov_ps(usable, scale), large, nan);
  s.anchor = _mm512_mask_mov_ps(_mm512_mask_mul_ps(_mm512_set1_ps(kAnchor), usable, power, _mm512_set1_ps(kAnchor)), large, nan);
  s.inverse = _mm512_mask_div_ps(none, usable, _mm512_set1_ps(1.0f), scale);  // elsewhere 0: times an infinity NaN, whose code is 0 as well
  s.factor = _mm512_maskz_slli_epi32(usable, _mm512_and_si512(eighths, _mm512_set1_epi32(kEighths - 1)), 7);
  return s;
}

// The codes of a part; lanes 0 .. 3 sum to the sum of the first sixteen, 4 .. 7 to that of the others.
HOMENODE_INLINE __m256i store_codes(const float* x, float inverse, int8_t* codes) {
  const __m512 factor = _mm512_set1_ps(inverse);
  const __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor)));
  const __m128i second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), factor)));
  const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), all);
  return _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), all);
}

// Parts 0 .. count - 1 (at most sixteen) of x to out[0], out[step], ...; the last one stands for those beyond it.
HOMENODE_INLINE void encode_sixteen(const float* x, int count, EncodedPart* out, int64_t step) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i bits[kPartsAtOnce];
#pragma GCC unroll 16
  for (int i = 0; i < kPartsAtOnce; ++i) {
    const float* part = x + kPartColumns * (i < count ? i : count - 1);
    bits[i] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(part), magnitude), _mm512_and_si512(_mm512_loadu_si512(part + 16), magnitude));
  }
  const PartScales s = scales_of(largest_of_each(bits));
  alignas(64) float inverse[kPartsAtOnce], scale[kPartsAtOnce], anchor[kPartsAtOnce], total[kPartsAtOnce];
  alignas(64) int32_t factor[kPartsAtOnce], halves[2][kPartsAtOnce] = {};
  _mm512_store_ps(inverse, s.inverse);
  for (int i = 0; i < count; i += 4) {
    __m256i sums[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int at = i + j < count ? i + j : count - 1;
      sums[j] = store_codes(x + kPartColumns * at, inverse[at], out[at * step].codes);
    }
    const __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    _mm_store_si128(reinterpret_cast<__m128i*>(halves[0] + i), _mm_sub_epi32(_mm_setzero_si128(), _mm256_castsi256_si128(four)));
    _mm_store_si128(reinterpret_cast<__m128i*>(halves[1] + i), _mm_sub_epi32(_mm_setzero_si128(), _mm256_extracti128_si256(four, 1)));
  }
  const __m512i whole = _mm512_add_epi32(_mm512_load_si512(halves[0]), _mm512_load_si512(halves[1]));
  _mm512_store_ps(total, _mm512_mul_ps(s.scale, _mm512_cvtepi32_ps(whole)));
  _mm512_store_ps(scale, s.scale);
  _mm512_store_ps(anchor, s.anchor);
  _mm512_store_si512(factor, s.factor);
  for (int i = 0; i < count; ++i) {
    EncodedPart& part = out[i * step];
    part.scale = scale[i];
    part.minus_half_sum[0] = halves[0][i], part.minus_half_sum[1] = halves[1][i];
    part.minus_sum = halves[0][i] + halves[1][i];
    part.minus_total = total[i];
    part.anchor = anchor[i];
    part.factor = factor[i];
  }
}

void encode_parts_wide(const float* x, int64_t count, EncodedPart* out, int64_t step) {
  for (; count > 0; count -= kPartsAtOnce, x += kPartsAtOnce * kPartColumns, out += kPartsAtOnce * step) {
    encode_sixteen(x, int(count < kPartsAtOnce ? count : kPartsAtOnce), out, step);
  }
}

}  // namespace
}  // namespace homenode
