// Block formats by products of tiles of bytes, from unpacked panels. See linear/panel.h for the values.
//
// usmmla multiplies two rows of weights with two tokens, eight columns of each. Two lines of a panel, zipped, are four
// such pairs of rows.
#pragma once
#include "linear/panel.h"

namespace homenode {
namespace {

// Of four rows each: half a group at a time, so that four tokens find room in 32 registers
constexpr int kHalfVectors = 4;

inline uint8x16_t zip_low(Ints a, Ints b) { return vreinterpretq_u8_s32(vzip1q_s32(a, b)); }
inline uint8x16_t zip_high(Ints a, Ints b) { return vreinterpretq_u8_s32(vzip2q_s32(a, b)); }

// Integer sums of 16 rows and two tokens: {row 0, row 0, row 1, row 1} of tokens {first, second, first, second}, and so
// on.
using TwoSums = Ints[kHalfVectors][2];

template <PanelKind K, int T>
HOMENODE_INLINE void add_two_lines(const uint8_t* codes, int line, int v_begin, const uint8_t* const (&tokens)[T][2],
                                   int column, TwoSums (&sums)[T]) {
  int8x16_t x[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    x[t] = vreinterpretq_s8_u8(vcombine_u8(vld1_u8(tokens[t][0] + column), vld1_u8(tokens[t][1] + column)));
  }
#pragma GCC unroll 4
  for (int v = 0; v < kHalfVectors; ++v) {
    const Ints first = panel_codes<K>(codes, line, v_begin + v), second = panel_codes<K>(codes, line + 1, v_begin + v);
    const uint8x16_t upper = zip_low(first, second), lower = zip_high(first, second);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      sums[t][v][0] = vusmmlaq_s32(sums[t][v][0], upper, x[t]);
      sums[t][v][1] = vusmmlaq_s32(sums[t][v][1], lower, x[t]);
    }
  }
}

template <PanelKind K, int H>
HOMENODE_INLINE Ints sum_start(const uint8_t* x) {
  const auto* part = reinterpret_cast<const EncodedPart*>(x);
  const Ints anchor = as_ints(broadcast_float(&part->anchor));
  if constexpr (!K.zero) return anchor;
  return add_ints(anchor, shift_left32<__builtin_ctz(K.zero | 256)>(broadcast_int(minus_sum<K.halves, H>(part))));
}

// Adds the finished sums of one token's 16 rows to its totals.
template <int H>
HOMENODE_INLINE void add_token(const Ints (&sums)[kHalfVectors], const uint8_t* factors, const uint8_t* x,
                               float* total) {
  const auto* part = reinterpret_cast<const EncodedPart*>(x);
  const Floats anchor = broadcast_float(&part->anchor);
  const auto* factor = reinterpret_cast<const float*>(factors + kEighths * H * kPanelFloats + part->factor);
#pragma GCC unroll 4
  for (int v = 0; v < kHalfVectors; ++v) {
    store_floats(total + 4 * v,
                 fma(subtract(as_floats(sums[v]), anchor), load_floats(factor + 4 * v), load_floats(total + 4 * v)));
  }
}

// One sum of a part, for M tokens; an odd last one is multiplied twice.
template <PanelKind K, int M, int H>
HOMENODE_INLINE void add_half_sum(const uint8_t* codes, int v_begin, const uint8_t* factors, const uint8_t* x,
                                  size_t stride, float* total) {
  constexpr int kLines = 8 / K.halves, kFirst = H * kLines, T = (M + 1) / 2;
  const uint8_t* tokens[T][2];
  TwoSums sums[T];
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    tokens[t][0] = x + 2 * t * stride;
    tokens[t][1] = 2 * t + 1 < M ? tokens[t][0] + stride : tokens[t][0];
    const Ints start = vzip1q_s32(sum_start<K, H>(tokens[t][0]), sum_start<K, H>(tokens[t][1]));
#pragma GCC unroll 4
    for (int v = 0; v < kHalfVectors; ++v) sums[t][v][0] = sums[t][v][1] = start;
  }
#pragma GCC unroll 4
  for (int line = kFirst; line < kFirst + kLines; line += 2)
    add_two_lines<K>(codes, line, v_begin, tokens, 4 * line, sums);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    Ints first[kHalfVectors], second[kHalfVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kHalfVectors; ++v) {
      first[v] = vuzp1q_s32(sums[t][v][0], sums[t][v][1]);
      second[v] = vuzp2q_s32(sums[t][v][0], sums[t][v][1]);
    }
    add_token<H>(first, factors, tokens[t][0], total + 2 * t * kGroupRows);
    if (2 * t + 1 < M) add_token<H>(second, factors, tokens[t][1], total + (2 * t + 1) * kGroupRows);
  }
}

template <PanelKind K, int M, int H>
HOMENODE_INLINE void add_half_minimum(const uint8_t* factors, const uint8_t* x, size_t stride, float* total) {
  const auto* minimum = reinterpret_cast<const float*>(factors + (kEighths * K.halves + H) * kPanelFloats);
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    const Floats row = minus_total<K.halves, H>(reinterpret_cast<const EncodedPart*>(x + m * stride));
    float* at = total + m * kGroupRows;
#pragma GCC unroll 4
    for (int v = 0; v < kHalfVectors; ++v)
      store_floats(at + 4 * v, fma(load_floats(minimum + 4 * v), row, load_floats(at + 4 * v)));
  }
}

template <PanelKind K, int M>
void tile_paired(const Panel& panel, int64_t parts, const uint8_t* x, size_t stride, float* total, bool first,
                 Prefetch prefetch) {
  const uint8_t *codes = panel.codes, *factors = panel.factors;
  for (int i = 0; first && i < M * kGroupRows; i += kLanes) store_floats(total + i, zero_floats());
  for (; parts > 0; --parts, codes += panel.codes_stride, factors += K.factors(), x += sizeof(EncodedPart)) {
    prefetch_lines(prefetch);
    for (int half = 0; half < 2; ++half) {
      const uint8_t* own_factors = factors + kVectorBytes * kHalfVectors * half;
      float* own = total + kGroupRows / 2 * half;
      add_half_sum<K, M, 0>(codes, kHalfVectors * half, own_factors, x, stride, own);
      if constexpr (K.halves == 2) add_half_sum<K, M, 1>(codes, kHalfVectors * half, own_factors, x, stride, own);
      if constexpr (K.minimum) add_half_minimum<K, M, 0>(own_factors, x, stride, own);
      if constexpr (K.minimum && K.halves == 2) add_half_minimum<K, M, 1>(own_factors, x, stride, own);
    }
    if constexpr (K.gap > 0) codes += parts % 8 == 1 ? K.gap : 0;
  }
}

template <PanelKind K, int M = 1>
constexpr void fill_paired_tiles(PanelTiles& tiles) {
  tiles.tile[M - 1] = tile_paired<K, M>;
  tiles.max_tokens = M;
  if constexpr (M < kPanelTokens) fill_paired_tiles<K, M + 1>(tiles);
}

template <int N = 0>
constexpr void fill_paired_panels(LinearTable& table) {
  table.panels[N].unpack = unpack_panel<kCodings[N]>;
  table.panels[N].max_parts = kPanelParts / halves_of(kCodings[N]);
  fill_paired_tiles<panel_kind<kCodings[N]>()>(table.panels[N]);
  if constexpr (N + 1 < kCodingCount) fill_paired_panels<N + 1>(table);
}

}  // namespace
}  // namespace homenode
