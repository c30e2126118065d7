// What one instruction set level offers for matrix products: pointers filled in by kernels/<level>/linear.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/coding.h"

namespace homenode {

// 32 activations as small integers: x ~ scale * code, |code| <= 127, scale = largest |x| / 127. A part holding a NaN or an infinity has
// codes 0 and scale NaN, so that every product with it is NaN.
struct EncodedPart {
  int8_t codes[kPartColumns];
  float scale;
  int32_t minus_sum;          // of the codes, negated
  int32_t minus_half_sum[2];  // of the first and the last sixteen
};

// Adds to sums[token][32] the products of `tokens` activation rows with `columns` columns of one packed group.
// `rows` is the first of these columns in the first row, `stride` the bytes from row to row: EncodedPart for block formats, bfloat16 for BF16
// where the level has `round`, else float. Every level may take up to kMaxTileTokens.
using TileFunction = void (*)(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums);

// Where the sums of a tile go: `rows` outputs (at most 32) of each token, plus what is added to them.
struct Outputs {
  float* out;
  int64_t out_stride;
  const float* residual;  // or null; may be `out`
  int64_t residual_stride;
  const float* bias;      // of these rows, or null
  int64_t rows;
};

constexpr int kMaxTileTokens = 32;
constexpr int kFloatFormats = 3;  // rows of `floats` below: F32, F16, BF16

struct Tiles {
  int max_tokens = 0;
  TileFunction tile[kMaxTileTokens] = {};  // [tokens - 1]
};

struct LinearTable {
  Tiles floats[kFloatFormats];
  Tiles coded[kCodingCount];  // in the order of kCodings
  void (*encode)(const float* x, int64_t columns, EncodedPart* out);
  // Activations as bfloat16, to nearest, ties to even, with zeros up to whole parts; null where BF16 matrices are multiplied with float32.
  void (*round)(const float* x, int64_t columns, uint16_t* out);
  // out[token][row] = (sums[token][row] + bias[row]) + residual[token][row]; the sums become 0, ready for the next tile.
  void (*store)(float* sums, int64_t tokens, const Outputs& to);
  // What a thread does after its last product of a step, or null. Calling it earlier, or not at all, costs time and nothing else.
  void (*finish)() = nullptr;
};

const LinearTable& linear_table_scalar();
const LinearTable& linear_table_avx2();
const LinearTable& linear_table_avx2vnni();
const LinearTable& linear_table_avx512();
const LinearTable& linear_table_avx512bf16();
const LinearTable& linear_table_amx();
const LinearTable& linear_table_neon();
const LinearTable& linear_table_dotprod();
const LinearTable& linear_table_i8mm();

}  // namespace homenode
