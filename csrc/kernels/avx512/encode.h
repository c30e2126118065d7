// Sixteen parts of activations at once, with the same bits as encode_part (linear/encode.h).
//
// One part by itself spends most of its time on sums and maxima across lanes and on two divisions. Here lane i of a
// vector is part i: maxima and sums are brought there by transposing while they are taken, and the rest is done for all
// sixteen.
#pragma once
#include <cstddef>

#include "linear/encode.h"

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
    const __m512i first =
        _mm512_max_epi32(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
    const __m512i second =
        _mm512_max_epi32(_mm512_unpacklo_epi32(four[2], four[3]), _mm512_unpackhi_epi32(four[2], four[3]));
    quarter[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i a = quarter[2 * i], b = quarter[2 * i + 1];
    half[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  }
  return _mm512_max_epi32(_mm512_shuffle_i32x4(half[0], half[1], 0x88), _mm512_shuffle_i32x4(half[0], half[1], 0xdd));
}

// Lane i: what is the same for all codes of part i; see EncodedPart.
struct PartScales {
  __m512 scale, anchor, inverse;
  __m512i factor;
};

// Of parts without a NaN and without large magnitudes.
HOMENODE_INLINE PartScales scales_of(__m512i largest_bits) {
  const __m512 largest = _mm512_castsi512_ps(largest_bits), anchor = _mm512_set1_ps(kAnchor);
  const __mmask16 usable = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(1e-30f), _CMP_GE_OQ);
  const __m512i least = _mm512_castps_si512(_mm512_div_ps(largest, _mm512_set1_ps(127.0f)));
  const __m512i eighths = _mm512_srli_epi32(_mm512_add_epi32(least, _mm512_set1_epi32((1 << kLowBits) - 1)), kLowBits);
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(eighths, kLowBits));
  const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_srli_epi32(eighths, 23 - kLowBits), 23));
  PartScales s;
  s.scale = _mm512_maskz_mov_ps(usable, scale);
  s.anchor = _mm512_mask_mul_ps(anchor, usable, power, anchor);
  s.inverse = _mm512_maskz_div_ps(usable, _mm512_set1_ps(1.0f), scale);
  s.factor = _mm512_maskz_slli_epi32(usable, _mm512_and_si512(eighths, _mm512_set1_epi32(kEighths - 1)), 7);
  return s;
}

// The codes of two parts, one after the other.
HOMENODE_INLINE __m512i codes_of_two(const float* first, const float* second, float first_inverse,
                                     float second_inverse) {
  const __m512 a = _mm512_set1_ps(first_inverse), b = _mm512_set1_ps(second_inverse);
  const __m512i one = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(first), a)),
                                         _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(first + 16), a)));
  const __m512i two = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(second), b)),
                                         _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(second + 16), b)));
  // Packing works in quarters of a vector: four codes of each of the four operands in turn.
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                  _mm512_packs_epi16(one, two));
}

// Sums of the quarters of four vectors: those of x[0] in the first lane of each quarter, and so on.
HOMENODE_INLINE __m512i sums_of_quarters(const __m512i* x) {
  const __m512i first = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
  const __m512i second = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
}

// Lanes 4 l + j of four vectors as quarter l of rows[j].
HOMENODE_INLINE void transpose(__m512i a, __m512i b, __m512i c, __m512i d, __m512i (&rows)[4]) {
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b),
                cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  rows[0] = _mm512_unpacklo_epi64(ab_low, cd_low), rows[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  rows[2] = _mm512_unpacklo_epi64(ab_high, cd_high), rows[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// Where part i of at most sixteen is; the last one stands for those beyond it.
struct PartPlaces {
  const float* x;
  EncodedPart* out[kPartsAtOnce];
  int last;
  const float* values(int i) const { return x + kPartColumns * (i < last ? i : last); }
  uint8_t* line(int i) const { return reinterpret_cast<uint8_t*>(out[i]); }
};

// What follows the codes of each part, 32 bytes.
HOMENODE_INLINE void store_scales(const PartScales& s, const __m512i (&minus_half)[2], const PartPlaces& places) {
  const __m512i whole = _mm512_add_epi32(minus_half[0], minus_half[1]);
  const __m512i total = _mm512_castps_si512(_mm512_mul_ps(s.scale, _mm512_cvtepi32_ps(whole)));
  __m512i first[4], second[4];
  transpose(_mm512_castps_si512(s.scale), whole, minus_half[0], minus_half[1], first);
  transpose(total, _mm512_castps_si512(s.anchor), s.factor, _mm512_setzero_si512(), second);
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i left = _mm512_permutex2var_epi64(first[j], low, second[j]),
                  right = _mm512_permutex2var_epi64(first[j], high, second[j]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places.line(j) + kPartColumns), _mm512_castsi512_si256(left));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places.line(4 + j) + kPartColumns),
                        _mm512_extracti64x4_epi64(left, 1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places.line(8 + j) + kPartColumns), _mm512_castsi512_si256(right));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places.line(12 + j) + kPartColumns),
                        _mm512_extracti64x4_epi64(right, 1));
  }
}
static_assert(offsetof(EncodedPart, scale) == 32 && offsetof(EncodedPart, minus_sum) == 36 &&
              offsetof(EncodedPart, minus_half_sum) == 40 && offsetof(EncodedPart, minus_total) == 48 &&
              offsetof(EncodedPart, anchor) == 52 && offsetof(EncodedPart, factor) == 56);

HOMENODE_INLINE void encode_sixteen(const PartPlaces& places) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i bits[kPartsAtOnce];
#pragma GCC unroll 16
  for (int i = 0; i < kPartsAtOnce; ++i) {
    const float* part = places.values(i);
    bits[i] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(part), magnitude),
                               _mm512_and_si512(_mm512_loadu_si512(part + 16), magnitude));
  }
  const __m512i largest = largest_of_each(bits);
  if (_mm512_cmpgt_epi32_mask(largest, _mm512_set1_epi32(kLargestMagnitude))) {
    for (int i = 0; i <= places.last; ++i) encode_part(places.values(i), places.out[i]);
    return;
  }
  const PartScales s = scales_of(largest);
  alignas(64) float inverse[kPartsAtOnce];
  _mm512_store_ps(inverse, s.inverse);
  __m512i sums[kPartsAtOnce / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kPartsAtOnce; i += 2) {
    const __m512i codes = codes_of_two(places.values(i), places.values(i + 1), inverse[i], inverse[i + 1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places.line(i)), _mm512_castsi512_si256(codes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places.line(i + 1)), _mm512_extracti64x4_epi64(codes, 1));
    sums[i / 2] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
  }
  // Quarters 0 and 1 are the halves of even parts, 2 and 3 those of odd ones.
  const __m512i left = sums_of_quarters(sums), right = sums_of_quarters(sums + 4), none = _mm512_setzero_si512();
  const __m512i first = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27),
                second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  const __m512i minus_half[2] = {_mm512_sub_epi32(none, _mm512_permutex2var_epi32(left, first, right)),
                                 _mm512_sub_epi32(none, _mm512_permutex2var_epi32(left, second, right))};
  store_scales(s, minus_half, places);
}

void encode_parts_wide(const float* x, int64_t tokens, int64_t parts, EncodedPart* out, int64_t stride) {
  PartPlaces places;
  int64_t token = 0, part = 0;
  for (int64_t left = tokens * parts; left > 0; left -= kPartsAtOnce, x += kPartsAtOnce * kPartColumns) {
    places.x = x, places.last = int(left < kPartsAtOnce ? left : kPartsAtOnce) - 1;
    for (int i = 0; i < kPartsAtOnce; ++i) {
      if (i > places.last) {
        places.out[i] = places.out[places.last];
        continue;
      }
      places.out[i] = out + token * stride + part;
      if (++token == tokens) token = 0, ++part;
    }
    encode_sixteen(places);
  }
}

}  // namespace
}  // namespace homenode
