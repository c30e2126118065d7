// BF16 matrices by tiles. The packed layout is what the products want: 16 lines of 32 rows x 2 columns are the weights
// of two tiles.
//
// For every number of tokens by the same instruction, whose order of summation is not that of vdpbf16ps. See
// linear/tiles.h.
#pragma once
#include "kernels/amx/shapes.h"
#include "linear/block.h"

namespace homenode {
namespace {

constexpr int kPairLine = 4 * kGroupRows;        // bytes of two columns of a group
constexpr int kStepBytes = 16 * kPairLine;       // of 32 columns
constexpr int kMostPairTokens = 2 * kTileTokens;

inline void add_step(const uint8_t* packed, const uint8_t* rows, size_t stride, bool two) {
  load_tile<6>(packed, kPairLine);
  load_tile<7>(packed + kPairLine / 2, kPairLine);
  load_tile<4>(rows, stride);
  add_pair_products<0, 4, 6>();
  add_pair_products<1, 4, 7>();
  if (!two) return;
  load_tile<5>(rows + kTileTokens * stride, stride);
  add_pair_products<2, 5, 6>();
  add_pair_products<3, 5, 7>();
}

// The last columns of a row may be fewer than 32: activations go on with zeros, and so must the weights.
inline void add_last_step(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, bool two) {
  alignas(64) uint8_t padded[kStepBytes] = {};
  __builtin_memcpy(padded, packed, size_t(columns + 1) / 2 * kPairLine);
  add_step(padded, rows, stride, two);
}

void multiply_pairs(int tokens, const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums,
                    Prefetch prefetch) {
  use_shape(Factors::pairs, tokens);
  const bool two = tokens > kTileTokens;
  float* second = sums + kTileTokens * kGroupRows;
  load_tile<0>(sums, kSumStride);
  load_tile<1>(sums + kTileRows, kSumStride);
  if (two) {
    load_tile<2>(second, kSumStride);
    load_tile<3>(second + kTileRows, kSumStride);
  }
  for (; columns >= kPartColumns;
       columns -= kPartColumns, packed += kStepBytes, rows += kPartColumns * sizeof(uint16_t)) {
    prefetch_lines(prefetch);
    add_step(packed, rows, stride, two);
  }
  if (columns > 0) add_last_step(packed, columns, rows, stride, two);
  store_tile_rows<0>(sums, kSumStride);
  store_tile_rows<1>(sums + kTileRows, kSumStride);
  if (two) {
    store_tile_rows<2>(second, kSumStride);
    store_tile_rows<3>(second + kTileRows, kSumStride);
  }
}

template <int M>
void tile_pairs(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums,
                Prefetch prefetch) {
  multiply_pairs(M, packed, columns, rows, stride, sums, prefetch);
}

template <int M = 1>
constexpr void fill_pairs(Tiles& tiles) {
  tiles.tile[M - 1] = tile_pairs<M>;
  tiles.max_tokens = M;
  tiles.prefetch_columns = kPartColumns;
  tiles.depth_bytes = 256 << 10;
  if constexpr (M < kMostPairTokens) fill_pairs<M + 1>(tiles);
}

}  // namespace
}  // namespace homenode
