// What one instruction set level offers for matrix products: pointers filled in by kernels/<level>/linear.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/coding.h"

namespace homenode {

// 32 activations as small integers: x ~ scale * code, |code| <= 127. The scale is the least q/8 * 2^e (q = 8 .. 15)
// that is at least largest |x| / 127: with so few significant bits, every product of a scale with an integer sum is
// exact (see linear/tiles.h). A part holding a NaN or a magnitude above 1e33 has codes 0 and scale NaN, so that every
// product with it is NaN.
// A part is one cache line: whoever writes it takes no other's line away.
struct alignas(64) EncodedPart {
  int8_t codes[kPartColumns];
  float scale;
  int32_t minus_sum;          // of the codes, negated
  int32_t minus_half_sum[2];  // of the first and the last sixteen
  float minus_total;          // scale * minus_sum
  float anchor;               // 1.5 * 2^23 * 2^e: an integer n added to its bits makes it anchor + n * 2^e
  int32_t factor;             // where in a panel's row of factors those times q/8 begin, in bytes
};
static_assert(sizeof(EncodedPart) == 64);
constexpr int kEighths = 8;  // values of q

// What a tile prefetches of the weights that will be wanted later: `lines` cache lines with each part (of float formats
// Tiles::prefetch_columns) that it multiplies. The addresses may lie past the end of the weights: prefetching those
// does nothing.
struct Prefetch {
  const uint8_t* from;
  int lines;
  bool into_l2 = false;  // into the second-level cache, not the nearest
};
constexpr int kCacheLine = 64;

// Adds to sums[token][32] the products of `tokens` activation rows with `columns` columns of one packed group. `rows`
// is the first of these columns in the first row, `stride` the bytes from row to row: EncodedPart for block formats,
// bfloat16 for BF16 where the level has `round`, else float. Every level may take up to kMaxTileTokens.
using TileFunction = void (*)(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums,
                              Prefetch prefetch);

// Prefetch spread evenly over the products of a part: many prefetches at once would delay the reads that are due.
struct SpreadPrefetch {
  const uint8_t* from;
  int steps;  // with each of so many of the 8 lines of a part an eighth of a part's weights is prefetched
  int64_t advance;  // bytes a part
  bool into_l2 = false;
};

// A TileFunction of a block format.
using CodedFunction = void (*)(const uint8_t* packed, int64_t columns, const uint8_t* rows, size_t stride, float* sums,
                               SpreadPrefetch prefetch);

// Where the sums of a tile go: `rows` outputs (at most 32) of each token, plus what is added to them.
struct Outputs {
  float* out;
  int64_t out_stride;
  const float* residual;  // or null; may be `out`
  int64_t residual_stride;
  const float* bias;  // of these rows, or null
  int64_t rows;
};

constexpr int kMaxTileTokens = 32;
// By which a tile may take more rows than there are tokens: encoded rows and sums have room for them
constexpr int kSpareRows = 2;
constexpr int kFloatFormats = 3;  // rows of `floats` below: F32, F16, BF16

struct Tiles {
  int max_tokens = 0;
  // A single tile of tokens >= this prefetches; of fewer, the hardware prefetcher suffices
  int prefetch_from_tokens = 1;
  int prefetch_columns = 2;  // with which a tile prefetches Prefetch::lines
  // Where the activations of all the tokens at hand have more bytes than LinearTable::block_bytes, several groups pass
  // so many bytes of them before the next columns; 0: each group passes all.
  int64_t depth_bytes = 0;
  TileFunction tile[kMaxTileTokens] = {};  // [tokens - 1]
};

struct CodedTiles {
  int max_tokens = 0;
  int tokens_of_many = 0;  // of a tile, where there are several: where a token costs least
  int prefetch_from_tokens = 1;  // as in Tiles
  // Tokens of the smallest tile that prefetches, <= prefetch_from_tokens + kSpareRows: a smaller one would be done
  // before its lines arrive, and wait longer than the products of the spare rows take, whose results are dropped.
  int min_prefetch_tile = 1;
  CodedFunction tile[kMaxTileTokens] = {};
};

// Some parts of one packed group, unpacked for many tokens. Factors of a part: for the whole or each half of its
// columns, q/8 times the scale of each of the 32 rows, for q = 8 .. 15; then, where a format has them, the minimums,
// likewise, with the sign that makes them a product to add. The level amx has panels of its own (amx/panel.h): codes
// are less their zero, and a part's factors are the scales of its rows alone. Only the level that unpacks reads them.
struct Panel {
  const uint8_t* codes;  // 8 lines of a part, one byte a code; or those of the packed group
  size_t codes_stride;  // bytes from part to part
  const uint8_t* factors;
};

constexpr int kPanelParts = 16;  // of a panel at most; half as many where a part has two scales
constexpr int kPanelPartCodes = 8 * kLineBytes;
constexpr int kPanelFloats = kGroupRows * sizeof(float);
constexpr int kPanelPartFactors = (kEighths + 1) * kPanelFloats;  // for one scale, at most

// The memory a panel is unpacked to; whoever multiplies has one.
struct alignas(64) PanelSpace {
  uint8_t codes[kPanelParts * kPanelPartCodes];
  uint8_t factors[kPanelParts * kPanelPartFactors];
};

// Like a TileFunction, the weights being `parts` parts of a panel. `first`: of these sums, which are not read then but
// begin with 0.
using PanelFunction = void (*)(const Panel&, int64_t parts, const uint8_t* rows, size_t stride, float* sums, bool first,
                               Prefetch prefetch);

struct PanelTiles {
  // Unpacks `parts` parts (whole blocks) of a group.
  Panel (*unpack)(const uint8_t* packed, int64_t parts, PanelSpace&) = nullptr;
  int least_tokens = 20;  // from here on unpacking costs less than it saves
  int max_parts = 0, max_tokens = 0;
  PanelFunction tile[kMaxTileTokens] = {};  // [tokens - 1]
};

struct LinearTable {
  // Activations that stay in the second-level cache while the weights of a piece pass, beside what passes and the sums.
  // Processors with AVX-512 VNNI have 1 MiB of it and more.
  int64_t block_bytes = 512 << 10;
  // Bytes of weights that all the tokens at hand pass before the next. In the first-level cache they are a third, those
  // that follow them another, and the activations the last.
  int64_t slice_bytes = 16 << 10;
  int64_t float_slice_bytes = 16 << 10;
  // Prefetch distance of a single tile: of fewer than four tokens, and of four or more, which take longer per byte.
  int64_t prefetch_bytes = 8 << 10;
  int64_t prefetch_bytes_of_four = 8 << 10;
  bool prefetch_into_l2 = false;  // of all weights but those of panels
  Tiles floats[kFloatFormats];
  CodedTiles coded[kCodingCount];  // in the order of kCodings
  PanelTiles panels[kCodingCount];  // the same values, faster for many tokens; `unpack` is null where a level has none
  // x[part][token][32] to out[token * stride + part].
  void (*encode)(const float* x, int64_t tokens, int64_t parts, EncodedPart* out, int64_t stride);
  // Activations as bfloat16, to nearest, ties to even, with zeros up to whole parts; null where BF16 matrices are
  // multiplied with float32.
  void (*round)(const float* x, int64_t columns, uint16_t* out);
  // out[token][row] = (sums[token][row] + bias[row]) + residual[token][row]
  void (*store)(const float* sums, int64_t tokens, const Outputs& to);
  // What a thread does after its last product of a step, or null. Calling it earlier, or not at all, costs time and
  // nothing else.
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
