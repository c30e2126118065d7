// The softmax weights of some rows of attention as bfloat16, from the scores of a chunk (see attention.cpp of the
// levels that have it, which includes the lanes first).
#pragma once
#include "kernels/simd/attention.h"

namespace homenode {
namespace {

constexpr int kPairRowBlock = 4;  // rows at once, where they are many

inline __m512bh as_pairs(__m512i x) { return reinterpret_cast<__m512bh>(x); }

// 32 values to bfloat16, in order.
inline __m512i round_line(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

// Keys begin <= i < end of the 32 that start with `first`, as bits.
inline uint32_t visible_bits(int begin, int end, int first) {
  const int low = begin - first, high = end - first;
  const uint32_t below_end = high >= 32  ? ~0u
                             : high <= 0 ? 0
                                         : (1u << high) - 1,
                 below_begin = low <= 0    ? 0
                               : low >= 32 ? ~0u
                                           : (1u << low) - 1;
  return below_end & ~below_begin;
}

// 2^x for x <= 0, 0 where that is too small for a float; NaN stays NaN. The polynomial of 2^f for f in -1/2 .. 1/2 is
// off by at most 1.1e-4, rounding the result to bfloat16 by up to 4e-3.
inline __m512 small_power(__m512 x) {
  const __m512 shift = _mm512_set1_ps(12582912);  // 1.5 * 2^23: a sum with it is a whole number
  const __m512 n = _mm512_sub_ps(_mm512_add_ps(x, shift), shift), f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.05500863f), f, _mm512_set1_ps(0.24221049f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69328291f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
  return _mm512_scalef_ps(p, n);
}

// A row's weights as bfloat16 take the place of its scores.
inline uint16_t* weight_pairs(const AttendArgs& a, int row) {
  return reinterpret_cast<uint16_t*>(a.scores + int64_t(row) * kChunkKeys);
}

// Masked scores as the lowest there is.
inline void hide(uint32_t visible, __m512& low, __m512& high) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  low = _mm512_mask_mov_ps(lowest, static_cast<__mmask16>(visible), low);
  high = _mm512_mask_mov_ps(lowest, static_cast<__mmask16>(visible >> 16), high);
}

// The largest visible score of each of R rows, in lanes. A NaN is passed over here and shows in the sum.
template <int R>
inline void find_tops(const AttendArgs& a, const Seen& seen, int row, __m512 (&tops)[R]) {
  const float* scores = a.scores + int64_t(row) * kChunkKeys;
  for (int r = 0; r < R; ++r) tops[r] = _mm512_set1_ps(-__builtin_inff());
  for (int key = seen.begin & ~31; key < seen.end; key += 32) {
    const bool all = key >= seen.all_begin && key + 32 <= seen.all_end;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* at = scores + int64_t(r) * kChunkKeys + key;
      __m512 low = _mm512_loadu_ps(at), high = _mm512_loadu_ps(at + 16);
      if (!all) hide(visible_bits(a.begin[row + r], a.end[row + r], key), low, high);
      tops[r] = _mm512_max_ps(_mm512_max_ps(low, high), tops[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) tops[r] = _mm512_set1_ps(a.largest[row + r] = largest_lane({tops[r]}));
}

// Scores of R rows become weights 2^(score - largest), 0 where masked. Runs of 32 keys, upwards: a run's weights end
// before the next one's scores. Rows side by side, as each one is a chain of steps that wait for each other.
template <int R>
inline void apply_softmax_pairs(const AttendArgs& a, const Seen& seen, int row) {
  for (int r = row; r < row + R; ++r) {
    if (a.begin[r] < a.end[r]) adjust_scores(a, r);
  }
  __m512 tops[R], sums[R];
  find_tops(a, seen, row, tops);
  const float* scores = a.scores + int64_t(row) * kChunkKeys;
  uint16_t* weights = weight_pairs(a, row);
  const __m512bh ones = as_pairs(_mm512_set1_epi16(0x3f80));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_ps();
  for (int key = seen.begin & ~31; key < seen.end; key += 32) {
    const bool all = key >= seen.all_begin && key + 32 <= seen.all_end;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* at = scores + int64_t(r) * kChunkKeys + key;
      const __m512 low = small_power(_mm512_sub_ps(_mm512_loadu_ps(at), tops[r])),
                   high = small_power(_mm512_sub_ps(_mm512_loadu_ps(at + 16), tops[r]));
      __m512i rounded = round_line(low, high);
      if (!all) rounded = _mm512_maskz_mov_epi16(visible_bits(a.begin[row + r], a.end[row + r], key), rounded);
      sums[r] = _mm512_dpbf16_ps(sums[r], as_pairs(rounded), ones);
      _mm512_storeu_si512(weights + int64_t(r) * 2 * kChunkKeys + key, rounded);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) a.sum[row + r] = sum_lanes({sums[r]});
}

}  // namespace
}  // namespace homenode
