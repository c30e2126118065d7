// BF16 matrices by products of bfloat16 tiles and pairs.
//
// bfmmla multiplies two rows of weights with two tokens, four columns of each, twice the operations of bfdot, which
// multiplies four rows with one token, two columns of each. The architecture defines the first as the second done
// twice, columns ascending, so that a token has the same bits in a pair of tokens and alone. Both want activations as
// bfloat16, rounded once before a product (round_columns). See linear/tiles.h for the arithmetic.
#pragma once
#include "kernels/neon/vectors.h"
#include "linear/table.h"

namespace homenode {
namespace {

constexpr int kPairVectors =
    4;             // of four rows each: half a group at a time, so that six tokens find room in 32 registers
constexpr int kPairLine = 4 * kGroupRows;   // bytes of two columns of a group
constexpr int kMostPairTokens = 6;

inline bfloat16x8_t load_pairs(const uint8_t* p) { return vreinterpretq_bf16_u8(vld1q_u8(p)); }
inline bfloat16x8_t zip_low(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u32(vzip1q_u32(vreinterpretq_u32_bf16(a), vreinterpretq_u32_bf16(b)));
}
inline bfloat16x8_t zip_high(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u32(vzip2q_u32(vreinterpretq_u32_bf16(a), vreinterpretq_u32_bf16(b)));
}
inline bfloat16x8_t broadcast_pair(const uint8_t* p) { return vreinterpretq_bf16_s32(broadcast_bytes4(p)); }
// Four columns of two tokens.
inline bfloat16x8_t two_tokens(const uint8_t* first, const uint8_t* second) {
  return vreinterpretq_bf16_u8(vcombine_u8(vld1_u8(first), vld1_u8(second)));
}

// The sums of half a group: tokens two by two as bfmmla has them, {row 0, row 0, row 1, row 1} of tokens {first,
// second, first, second}, and the odd one as it is.
template <int M>
struct HalfSums {
  static constexpr int kTwos = M / 2;
  Floats two[kTwos + 1][kPairVectors][2], one[kPairVectors];

  void load(const float* sums) {
#pragma GCC unroll 4
    for (int v = 0; v < kPairVectors; ++v) {
#pragma GCC unroll 4
      for (int t = 0; t < kTwos; ++t) {
        const Floats first = load_floats(sums + 2 * t * kGroupRows + 4 * v),
                     second = load_floats(sums + (2 * t + 1) * kGroupRows + 4 * v);
        two[t][v][0] = vzip1q_f32(first, second);
        two[t][v][1] = vzip2q_f32(first, second);
      }
      if constexpr (M % 2) one[v] = load_floats(sums + (M - 1) * kGroupRows + 4 * v);
    }
  }
  void store(float* sums) const {
#pragma GCC unroll 4
    for (int v = 0; v < kPairVectors; ++v) {
#pragma GCC unroll 4
      for (int t = 0; t < kTwos; ++t) {
        store_floats(sums + 2 * t * kGroupRows + 4 * v, vuzp1q_f32(two[t][v][0], two[t][v][1]));
        store_floats(sums + (2 * t + 1) * kGroupRows + 4 * v, vuzp2q_f32(two[t][v][0], two[t][v][1]));
      }
      if constexpr (M % 2) store_floats(sums + (M - 1) * kGroupRows + 4 * v, one[v]);
    }
  }

  // Four columns: the weights' pairs `low` and `high`, and the activations at x.
  void add(const bfloat16x8_t (&low)[kPairVectors], const bfloat16x8_t (&high)[kPairVectors], const uint8_t* x,
           size_t stride) {
#pragma GCC unroll 4
    for (int v = 0; v < kPairVectors; ++v) {
      const bfloat16x8_t upper = zip_low(low[v], high[v]), lower = zip_high(low[v], high[v]);
#pragma GCC unroll 4
      for (int t = 0; t < kTwos; ++t) {
        const bfloat16x8_t tokens = two_tokens(x + 2 * t * stride, x + (2 * t + 1) * stride);
        two[t][v][0] = vbfmmlaq_f32(two[t][v][0], upper, tokens);
        two[t][v][1] = vbfmmlaq_f32(two[t][v][1], lower, tokens);
      }
      if constexpr (M % 2) {
        const uint8_t* last = x + (M - 1) * stride;
        one[v] = vbfdotq_f32(one[v], low[v], broadcast_pair(last));
        one[v] = vbfdotq_f32(one[v], high[v], broadcast_pair(last + 4));
      }
    }
  }
};

template <int M>
void half_tile(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums) {
  HalfSums<M> f;
  f.load(sums);
  for (; columns > 0; columns -= 4, packed += 2 * kPairLine, x += 8) {
    bfloat16x8_t low[kPairVectors], high[kPairVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kPairVectors; ++v) {
      low[v] = load_pairs(packed + 16 * v);
      // Where the columns end inside the four the weights do as well; activations go on with zeros.
      high[v] = columns > 2 ? load_pairs(packed + kPairLine + 16 * v) : vreinterpretq_bf16_u8(vdupq_n_u8(0));
    }
    f.add(low, high, x, stride);
  }
  f.store(sums);
}

template <int M>
void tile_pairs(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums, Prefetch) {
  half_tile<M>(packed, columns, rows, stride, sums);
  half_tile<M>(packed + kPairLine / 2, columns, rows, stride, sums + kGroupRows / 2);
}

// 32 columns at a time; those beyond the last are zeros.
void round_columns(const float* x, int64_t columns, uint16_t* out) {
  for (; columns > 0; columns -= kPartColumns, x += kPartColumns, out += kPartColumns) {
    float rest[kPartColumns] = {};
    const float* from = x;
    if (columns < kPartColumns) {
      for (int i = 0; i < columns; ++i) rest[i] = x[i];
      from = rest;
    }
    for (int i = 0; i < kPartColumns; i += 8) {
      const bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(from + i));
      vst1q_u16(out + i, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(from + i + 4))));
    }
  }
}

template <int M = 1>
constexpr void fill_rounded(Tiles& tiles) {
  tiles.tile[M - 1] = tile_pairs<M>;
  tiles.max_tokens = M;
  if constexpr (M < kMostPairTokens) fill_rounded<M + 1>(tiles);
}

}  // namespace
}  // namespace homenode
