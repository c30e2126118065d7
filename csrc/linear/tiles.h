// Matrix products of a few activation rows with one packed group of 32 weight rows: the one source of all levels.
//
// A level's unit defines, in the anonymous namespace, vectors of kLanes 32-bit lanes (Floats, Ints) and the functions
// on them that are used in the files below, then includes this file and fills its LinearTable. All is in the anonymous
// namespace and uses nothing of the standard library: no function compiled for one level can be linked into another.
//
// The value of an output, the same at every level (but for the one exception below) and for every number of tokens:
//   F32, F16, BF16   one fused multiply-add for each column, ascending, starting from 0
//   block formats    for each 32 columns, or each 16 where these have a scale of their own: the exact integer sum of
//                    products; then fma(float(sum) * d_row, d_weight, value), d_weight being the scale of a simple
//                    block or float(s) * d of a super-block's part; with minimums, after the sums of the 32 columns,
//                    fma(minimum, d_row * float(-sum of row codes), value), the minimum being the simple block's,
//                    negated where it is added, or float(m) * dmin
// A row's scale d_row is q/8 * 2^e (see EncodedPart), so that float(sum) * d_row is exact, and so is its product with
// 2^e alone or q/8 * d_weight: whoever multiplies the three factors in another order gets the same bits (linear/panel.h
// does). The level avx512bf16 has BF16 tiles of its own (avx512bf16/linear.cpp), for twice the operations of a fused
// multiply-add an instruction:
//   BF16             activations are rounded to bfloat16 first, to nearest, ties to even, magnitudes below 2^-126 to
//                    zero; then for each two columns fma(second weight, second activation, value), then fma(first ...),
//                    magnitudes below 2^-126 taken and left as zero
// The level amx has tiles (amx/pairs.h), of the same rounded activations:
//   BF16             for each 32 columns a chain of fused multiply-adds from 0 over the even columns and one over the
//                    odd ones; then value + (even + odd)
// The level i8mm has tiles and dot products of pairs (i8mm/pairs.h), activations rounded likewise but small ones kept:
//   BF16             for each two columns value + (first product + second product), each operation rounded to odd,
//                    small results taken as zero
// The products of two bfloat16 numbers are exact in float32, so what differs from the other levels is the rounding of
// activations: at most 2^-9 of each product, 1.7e-3 of the outputs' root mean square for normally distributed numbers
// (tests/native/test_linear.py).
#pragma once
#include "linear/coded.h"
#include "linear/encode.h"
#include "linear/floats.h"
#include "linear/store.h"

namespace homenode {
namespace {

template <Coding C, int M = 1>
constexpr void fill_coded(CodedTiles& tiles) {
  tiles.max_tokens = tiles.tokens_of_many = kCodedTokens;
  tiles.tile[M - 1] = tile_coded<C, M>;
  if constexpr (M < kCodedTokens) fill_coded<C, M + 1>(tiles);
}

template <int N = 0>
constexpr void fill_codings(LinearTable& table) {
  fill_coded<kCodings[N]>(table.coded[N]);
  if constexpr (N + 1 < kCodingCount) fill_codings<N + 1>(table);
}

constexpr LinearTable make_table() {
  LinearTable table{};
  fill_tiles<F32Columns, kFloatTokens>(table.floats[0]);
  fill_tiles<F16Columns, kFloatTokens>(table.floats[1]);
  fill_tiles<Bf16Columns, kPairTokens>(table.floats[2]);
  fill_codings(table);
  table.encode = encode_parts;
  table.store = store_tile;
  return table;
}

}  // namespace
}  // namespace homenode
