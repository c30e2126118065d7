// Tiles of the block formats of three and four tokens, where products of bytes are summed to 16 bits. See
// linear/tiles.h for the values.
//
// Sixteen registers hold the integer sums of two tokens and 32 rows, or of four tokens and 16 rows. The second is
// better from three tokens on: codes are taken apart once for all of them, and that costs as much as half the products
// of a token.
#pragma once
#include "kernels/avx2/half_groups.h"
#include "kernels/avx2/panel.h"

namespace homenode {
namespace {

constexpr int kMostHalfCoded = 4;

template <int M>
using HalfSums = Ints[M][kHalfVectors];

// The integer sums of half `H` of a part (or the whole) for the 16 rows whose lines begin at `lines`.
template <Coding C, int M, int H, int Step = 0>
HOMENODE_INLINE void sum_half_lines(const uint8_t* lines, const uint8_t* x, size_t stride, HalfSums<M>& run,
                                    HalfSums<M>& sums) {
  constexpr int kRun = kRunLines<C>;
  constexpr int line = halves_of(C) == 2 ? 4 * H + Step : C.low_bits == 4 ? Step / 2 + 4 * (Step % 2) : Step;
  Ints w[kHalfVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kHalfVectors; ++v) {
    const uint8_t* high = lines + v * kVectorBytes;
    w[v] = in_register(line_codes<C, line>(high, high + Packed<C>::high));
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Ints row = in_register(broadcast_bytes4(x + m * stride + 4 * line));
#pragma GCC unroll 2
    for (int v = 0; v < kHalfVectors; ++v) {
      const Ints products = _mm256_maddubs_epi16(w[v], row);
      run[m][v] = Step % kRun == 0 ? products : in_register(_mm256_add_epi16(run[m][v], products));
      if constexpr ((Step + 1) % kRun == 0) {
        const Ints widened = _mm256_madd_epi16(run[m][v], _mm256_set1_epi16(1));
        sums[m][v] = Step < kRun ? widened : in_register(add_ints(sums[m][v], widened));
      }
    }
  }
  if constexpr (Step + 1 < kSumLines<C>) sum_half_lines<C, M, H, Step + 1>(lines, x, stride, run, sums);
}

// Adds one sum of a part for 16 rows to those at `total`; `scale`: of the same half (or the whole) and rows.
template <Coding C, int M, int H>
HOMENODE_INLINE void add_half_sum(const uint8_t* lines, const Floats (&scale)[kHalfVectors], const uint8_t* x,
                                  size_t stride, float* total) {
  HalfSums<M> run, sums;
  sum_half_lines<C, M, H>(lines, x, stride, run, sums);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
    const Floats row = broadcast_float(&part->scale);
#pragma GCC unroll 2
    for (int v = 0; v < kHalfVectors; ++v) {
      Ints sum = sums[m][v];
      if constexpr (C.zero != 0)
        sum = add_ints(sum, shift_left32<__builtin_ctz(C.zero)>(broadcast_int(minus_sum<halves_of(C), H>(part))));
      float* to = total + kGroupRows * m + kLanes * v;
      store_floats(to, add_product<C>(sum, row, scale[v], load_floats(to)));
    }
  }
}

template <Coding C, int M, int H>
HOMENODE_INLINE void add_half_minimum(const Floats (&minimum)[kHalfVectors], const uint8_t* x, size_t stride,
                                      float* total) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Floats row = minus_total<halves_of(C), H>(reinterpret_cast<const EncodedPart*>(x + m * stride));
#pragma GCC unroll 2
    for (int v = 0; v < kHalfVectors; ++v) {
      float* to = total + kGroupRows * m + kLanes * v;
      store_floats(to, fma(minimum[v], row, load_floats(to)));
    }
  }
}

// What one part adds to the 16 rows of vectors First, First + 1.
template <Coding C, int M, int First>
HOMENODE_INLINE void add_half_part(const BlockScale (&block)[kVectors], const uint8_t* at, const uint8_t* x,
                                   size_t stride, float* total) {
  const uint8_t* lines = at + Packed<C>::scale + Packed<C>::minimum + kVectorBytes * First;
  const auto scale = [&](int h, Floats (&to)[kHalfVectors]) {
    for (int v = 0; v < kHalfVectors; ++v) to[v] = part_scale<C>(block[First + v], at, h, First + v);
  };
  const auto minimum = [&](int h, Floats (&to)[kHalfVectors]) {
    for (int v = 0; v < kHalfVectors; ++v) to[v] = part_minimum<C>(block[First + v], at, h, First + v);
  };
  Floats factor[kHalfVectors];
  scale(0, factor);
  add_half_sum<C, M, 0>(lines, factor, x, stride, total + kLanes * First);
  if constexpr (halves_of(C) == 2) {
    scale(1, factor);
    add_half_sum<C, M, 1>(lines, factor, x, stride, total + kLanes * First);
  }
  if constexpr (C.minimum == Minimum::none) return;
  minimum(0, factor);
  add_half_minimum<C, M, 0>(factor, x, stride, total + kLanes * First);
  if constexpr (halves_of(C) == 2) {
    minimum(1, factor);
    add_half_minimum<C, M, 1>(factor, x, stride, total + kLanes * First);
  }
}

template <Coding C, int M>
void tile_half_coded(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* total,
                     SpreadPrefetch prefetch) {
  using At = Packed<C>;
  const int lines = lines_of_share<C>(prefetch, 2);
  for (; columns > 0; columns -= At::columns, packed += At::bytes) {
    BlockScale block[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) block[v] = block_scale<C>(packed, v);
    for (const uint8_t* at = packed + At::head; at < packed + At::bytes;
         at += At::part, x += sizeof(EncodedPart), prefetch.from += prefetch.advance) {
      Prefetch share{prefetch.from, lines};
      prefetch_lines(share);
      add_half_part<C, M, 0>(block, at, x, stride, total);
      prefetch_lines(share);
      add_half_part<C, M, kHalfVectors>(block, at, x, stride, total);
    }
  }
}

template <Coding C, int M = kCodedTokens + 1>
constexpr void fill_half_tiles(CodedTiles& tiles) {
  tiles.tile[M - 1] = tile_half_coded<C, M>;
  tiles.max_tokens = tiles.tokens_of_many = M;
  if constexpr (M < kMostHalfCoded) fill_half_tiles<C, M + 1>(tiles);
}

template <int N = 0>
constexpr void fill_half_coded(LinearTable& table) {
  if constexpr (!is_wide(kCodings[N])) fill_half_tiles<kCodings[N]>(table.coded[N]);
  if constexpr (N + 1 < kCodingCount) fill_half_coded<N + 1>(table);
}

}  // namespace
}  // namespace homenode
