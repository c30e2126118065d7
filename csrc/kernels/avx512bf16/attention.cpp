// Attention over bf16 KV memory by dot products of bfloat16 pairs; everything else of kernels.h as the level avx512 has it.
//
// One instruction multiplies two elements of 16 keys, or two tokens' values, as they lie in memory. It wants both factors as bfloat16: queries are
// rounded once when they are loaded, softmax weights when they are computed, and a row's sum is that of its rounded weights, so that what rounding
// adds to all of them alike cancels. tests/native/test_attention.py measures the error.
//
// What fixes the value of a row, bit by bit:
//   score      one chain of dot products over pairs of the head's elements in order, for each key;
//   largest    over the visible keys of the chunk;
//   sum        one chain of dot products with ones over runs of 32 keys counted from the chunk's start; lane i adds keys 2i and 2i + 1, then sum_lanes;
//   output     for each element one chain of dot products over the pairs of keys with a visible one. The value of a key that is not visible is
//              taken as 0: it may be anything, and belong to another sequence.
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a fault of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/simd/avx512.h"

#include "kernels/simd/table.h"

namespace homenode {
namespace {

constexpr int kRunKeys = kRun * kTileKeys;
constexpr int kPairLine = 2 * kTileKeys;  // bf16 elements of a cache line: two of each of 16 keys, or two tokens' values of 16 elements

inline __m512bh as_pairs(__m512i x) { return reinterpret_cast<__m512bh>(x); }
inline __m512i load_line(const void* p) { return _mm512_loadu_si512(p); }

// One pair in every lane, by an instruction of its own: as an operand of each dot product the load would be repeated.
inline __m512bh broadcast_pair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  __m512i all = _mm512_set1_epi32(pair);
  asm("" : "+v"(all));
  return as_pairs(all);
}

// 32 values to bfloat16, in order.
inline __m512i round_line(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

float load_query_pairs(const float* q, int64_t head_dim, float scale, void* out) {
  auto* codes = static_cast<uint16_t*>(out);
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t d = 0; d < head_dim; d += 32) {
    const uint32_t present = head_dim - d >= 32 ? ~0u : (1u << (head_dim - d)) - 1;
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present), q + d);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present >> 16), q + d + 16);
    _mm512_mask_storeu_epi16(codes + d, present, round_line(_mm512_mul_ps(low, scales), _mm512_mul_ps(high, scales)));
  }
  return 1;
}

// Keys begin <= i < end of the 32 that start with `first`, as bits.
inline uint32_t visible_bits(int begin, int end, int first) {
  const int low = begin - first, high = end - first;
  const uint32_t below_end = high >= 32 ? ~0u : high <= 0 ? 0 : (1u << high) - 1, below_begin = low <= 0 ? 0 : low >= 32 ? ~0u : (1u << low) - 1;
  return below_end & ~below_begin;
}

// Scores of R rows against T tiles.
template <int R, int T>
inline void score_pairs(const AttendArgs& a, const Piece& ahead, int row, int tile) {
  __m512 sums[R][T];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = _mm512_setzero_ps();
  }
  const uint16_t* q = static_cast<const uint16_t*>(a.queries) + int64_t(row) * a.head_dim;
  for (int64_t d = 0; d < a.head_dim; d += 2) {
    __m512bh k[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) k[t] = as_pairs(load_line(static_cast<const uint16_t*>(a.keys[tile + t]) + d * kTileKeys));
    ahead.fetch(d * kPairLine);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512bh x = broadcast_pair(q + int64_t(r) * a.head_dim + d);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) sums[r][t] = _mm512_dpbf16_ps(sums[r][t], k[t], x);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(a.scores + int64_t(row + r) * kChunkKeys + (tile + t) * kTileKeys, sums[r][t]);
  }
}

// 2^x for x <= 0, 0 where that is too small for a float; NaN stays NaN. The polynomial of 2^f for f in 0 .. 1 is off by at most 9e-5; rounding the
// result to bfloat16 by up to 4e-3.
inline __m512 small_power(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0770670846f), f, _mm512_set1_ps(0.22764495f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695116818f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
  return _mm512_scalef_ps(p, x);  // 2^floor(x) * p
}

// A row's weights as bfloat16 take the place of its scores.
inline uint16_t* weight_pairs(const AttendArgs& a, int row) { return reinterpret_cast<uint16_t*>(a.scores + int64_t(row) * kChunkKeys); }

// 32 scores of a row, the lowest there is where masked.
inline __m512 larger_visible(const AttendArgs& a, int row, int key, __m512 top) {
  const float* scores = a.scores + int64_t(row) * kChunkKeys + key;
  __m512 low = _mm512_loadu_ps(scores), high = _mm512_loadu_ps(scores + 16);
  if (key < a.begin[row] || key + 32 > a.end[row]) {
    const uint32_t visible = visible_bits(a.begin[row], a.end[row], key);
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    low = _mm512_mask_mov_ps(lowest, static_cast<__mmask16>(visible), low);
    high = _mm512_mask_mov_ps(lowest, static_cast<__mmask16>(visible >> 16), high);
  }
  return _mm512_max_ps(_mm512_max_ps(low, high), top);  // a NaN is passed over here and shows in the sum
}

// Scores become weights 2^(score - largest), 0 where masked. Runs of 32 keys, upwards: a run's weights end before the next one's scores.
inline void soften_pairs(const AttendArgs& a, int row) {
  forget_row(a, row);
  const int begin = a.begin[row], end = a.end[row], first = begin & ~31;
  if (begin >= end) return;
  if (a.softcap != 0) cap_scores(a, row);
  __m512 top = _mm512_set1_ps(-__builtin_inff());
  for (int key = first; key < end; key += 32) top = larger_visible(a, row, key, top);
  a.largest[row] = largest_lane({top});
  const __m512 tops = _mm512_set1_ps(a.largest[row]);
  const __m512bh ones = as_pairs(_mm512_set1_epi16(0x3f80));
  const float* scores = a.scores + int64_t(row) * kChunkKeys;
  __m512 sum = _mm512_setzero_ps();
  for (int key = first; key < end; key += 32) {
    const __m512 low = small_power(_mm512_sub_ps(_mm512_loadu_ps(scores + key), tops));
    const __m512 high = small_power(_mm512_sub_ps(_mm512_loadu_ps(scores + key + 16), tops));
    __m512i rounded = round_line(low, high);
    if (key < begin || key + 32 > end) rounded = _mm512_maskz_mov_epi16(visible_bits(begin, end, key), rounded);
    sum = _mm512_dpbf16_ps(sum, as_pairs(rounded), ones);
    _mm512_storeu_si512(weight_pairs(a, row) + key, rounded);
  }
  a.sum[row] = sum_lanes({sum});
}

// Adds the values of the keys begin .. end - 1 (even both) to the outputs of R rows, C vectors of lanes starting at element d. Only the elements in
// `kept` of each pair of keys count.
template <int R, int C>
inline void value_pairs(const AttendArgs& a, const Piece* ahead, int row, int64_t d, int begin, int end, uint32_t kept) {
  const int64_t padded = padded_head(a.head_dim);
  __m512 sums[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r][c] = _mm512_loadu_ps(a.out + (row + r) * padded + d + 16 * c);
  }
  const uint16_t* weights = weight_pairs(a, row) + begin;
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(kept));
  while (begin < end) {
    const int tile = begin / kTileKeys, tile_end = (tile + 1) * kTileKeys < end ? (tile + 1) * kTileKeys : end;
    const uint16_t* values = static_cast<const uint16_t*>(a.values[tile]) + begin % kTileKeys * int64_t(a.head_dim) + 2 * d;
    const Piece& piece = ahead[R > 1 ? begin / kRunKeys : 0];
    int64_t line = d + begin % kRunKeys;
    for (; begin < tile_end; begin += 2, weights += 2, line += 2, values += 2 * a.head_dim) {
      if (R > 1 && line < d + 16 * C) piece.fetch(line * kPairLine);
      __m512bh v[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) v[c] = as_pairs(R == 1 ? _mm512_and_si512(load_line(values + kPairLine * c), mask) : load_line(values + kPairLine * c));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m512bh x = broadcast_pair(weights + int64_t(r) * 2 * kChunkKeys);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], v[c], x);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(a.out + (row + r) * padded + d + 16 * c, sums[r][c]);
  }
}

template <int R>
inline void value_pair_rows(const AttendArgs& a, const Piece* ahead, int row, int begin, int end, uint32_t kept = ~0u) {
  if (begin >= end) return;
  const int64_t padded = padded_head(a.head_dim);
  int64_t d = 0;
  for (; d + 16 * kLaneBlock <= padded; d += 16 * kLaneBlock) value_pairs<R, kLaneBlock>(a, ahead, row, d, begin, end, kept);
  for (; d < padded; d += 16) value_pairs<R, 1>(a, ahead, row, d, begin, end, kept);
}

// The pairs of keys begin .. end - 1 for one row; one of which only half is visible is taken by itself.
inline void value_pair_row(const AttendArgs& a, int row, int begin, int end) {
  const Piece nothing{};
  if (begin >= end) return;
  if (begin % 2) {
    value_pair_rows<1>(a, &nothing, row, begin - 1, begin + 1, 0xffff0000u);
    ++begin;
  }
  value_pair_rows<1>(a, &nothing, row, begin, end & ~1);
  if (end % 2 && begin < end) value_pair_rows<1>(a, &nothing, row, end - 1, end + 1, 0x0000ffffu);
}

template <int R>
inline void score_pair_rows(const AttendArgs& a, Piece ahead, int row, int tile, int end) {
  if (tile + kRun == end) return score_pairs<R, kRun>(a, ahead, row, tile);
  for (; tile + 2 <= end; tile += 2, ahead.count = 0) score_pairs<R, 2>(a, ahead, row, tile);
  if (tile < end) score_pairs<R, 1>(a, ahead, row, tile);
}

// The outputs of R rows: the keys only some of them see are added row by row, before and after those that all see.
template <int R>
inline void weigh_pair_rows(const AttendArgs& a, Ahead& all_ahead, int row) {
  const Seen seen = seen_by(a, row, R);
  const int begin = (seen.all_begin + 1) & ~1, end = seen.all_end & ~1;  // what all see, in whole pairs
  if (begin >= end) {
    for (int r = row; r < row + R; ++r) value_pair_row(a, r, a.begin[r], a.end[r]);
    return;
  }
  Piece ahead[kChunkTiles / kRun] = {};
  for (int run = begin / kRunKeys; run <= (end - 1) / kRunKeys; ++run) ahead[run] = all_ahead.take();
  for (int r = row; r < row + R; ++r) value_pair_row(a, r, a.begin[r], begin);
  value_pair_rows<R>(a, ahead, row, begin, end);
  for (int r = row; r < row + R; ++r) value_pair_row(a, r, end, a.end[r]);
}

void attend_pairs(const AttendArgs& a) {
  Ahead ahead(a, 2 * count_runs(a));
  for_key_runs(a, [&]<int R>(int row, int begin, int end) { score_pair_rows<R>(a, ahead.take(), row, begin, end); });
  for (int r = 0; r < a.rows; ++r) soften_pairs(a, r);
  clear_rows(a);
  for_row_blocks(a.rows, [&]<int R>(int row) { weigh_pair_rows<R>(a, ahead, row); });
}

constexpr Kernels with_pairs(Kernels table) {
  table.kv[1].query_bytes = 2;
  table.kv[1].load_query = load_query_pairs;
  table.kv[1].attend = attend_pairs;
  return table;
}

}  // namespace

extern const Kernels kernels_avx512bf16;
const Kernels kernels_avx512bf16 = with_pairs(kTable);

}  // namespace homenode
