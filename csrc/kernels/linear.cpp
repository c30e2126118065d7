#include "kernels/linear.h"

#include <algorithm>

#include "base/isa.h"
#include "kernels/linear_rounded.h"
#include "kernels/linear_table.h"
#include "quant/block.h"
#include "quant/pack.h"

namespace homenode {
namespace {

// None of these sizes changes a result: the sums of a tile go on where they stopped.
// Activations that stay in the second-level cache while all the groups of a piece pass.
constexpr int64_t kBlockBytes = 512 << 10;
// Bytes of weights that stay in the first-level cache while all the tokens at hand pass, and how many tokens these are.
constexpr int64_t kSliceBytes = 32 << 10;
constexpr int64_t kTokensAtOnce = 96;

const LinearTable& table_of(Level level) {
#ifdef HOMENODE_HAVE_AVX512BF16
  if (level == Level::avx512bf16) return linear_table_avx512bf16();
#endif
#ifdef HOMENODE_HAVE_AVX512
  if (level >= Level::avx512) return linear_table_avx512();
#endif
#ifdef HOMENODE_HAVE_AVX2
  if (level >= Level::avx2) return linear_table_avx2();
#endif
  (void)level;
  return linear_table_scalar();
}

const Tiles& tiles_of(const LinearTable& table, Format format) {
  switch (format) {
    case Format::f32: return table.floats[0];
    case Format::f16: return table.floats[1];
    case Format::bf16: return table.floats[2];
    default: return table.coded[coding_of(format) - kCodings];
  }
}

int64_t parts_of(int64_t columns) { return (columns + kPartColumns - 1) / kPartColumns; }

bool is_coded(const Weight& w) { return coding_of(w.format) != nullptr; }

bool any_coded(const Weight* const* weights, int count) {
  return std::any_of(weights, weights + count, [](const Weight* w) { return is_coded(*w); });
}

// The scratch memory holds the encoded rows, if a weight wants them, then the rounded rows.
size_t encoded_bytes(int64_t tokens, int64_t columns, const Weight* const* weights, int count) {
  return any_coded(weights, count) ? (size_t(tokens) * size_t(parts_of(columns)) * sizeof(EncodedPart) + 63) / 64 * 64 : 0;
}

uint8_t* rounded_rows(const LinearArgs& a) { return a.scratch + encoded_bytes(a.tokens, a.weights[0]->columns, a.weights, a.count); }

// Activation rows as one weight's kernel wants them.
struct Rows {
  const uint8_t* data;
  size_t stride;
  int64_t part_bytes;  // of 32 columns
  int64_t columns;     // padded to whole parts when encoded
};

Rows rows_for(const LinearArgs& a, const Weight& w, const LinearTable& table) {
  constexpr int64_t kFloat = sizeof(float);
  if (takes_rounded(table, w)) return {rounded_rows(a), rounded_row_bytes(w.columns), kPartColumns * sizeof(uint16_t), w.columns};
  if (!is_coded(w)) return {reinterpret_cast<const uint8_t*>(a.x), size_t(a.x_stride * kFloat), kPartColumns * kFloat, w.columns};
  const int64_t parts = parts_of(w.columns);
  return {a.scratch, size_t(parts) * sizeof(EncodedPart), sizeof(EncodedPart), parts * kPartColumns};
}

int64_t ceiling_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns multiplied with all the tokens at hand before the next: about equal slices of whole steps and whole parts.
int64_t slice_columns(PackedStep step, int64_t columns) {
  const int64_t unit = std::max<int64_t>(step.columns, kPartColumns), units = ceiling_of(columns, unit);
  const int64_t slices = ceiling_of(ceiling_of(columns, step.columns) * step.bytes, kSliceBytes);
  return ceiling_of(units, slices) * unit;
}

// Tokens whose activations make a block, about equal blocks.
int64_t block_tokens(int64_t tokens, int64_t row_bytes) {
  const int64_t most = std::max(kBlockBytes / row_bytes, kTokensAtOnce / 2);
  return ceiling_of(tokens, ceiling_of(tokens, most));
}

// The product of one weight with some of the tokens, as one thread computes it.
struct Product {
  const LinearTable& table;
  const Tiles& tiles;
  PackedStep step;
  Rows rows;
  Outputs to;     // of the group at hand and token 0
  float* sums;    // [kTokensAtOnce][32], 0 between groups

  // Asks for the lines of the outputs early: they lie a row apart, and the stores would wait for them.
  void expect_outputs(int64_t first, int64_t n) const {
    for (int64_t t = first; t < first + n; ++t) {
      const float* out = to.out + t * to.out_stride;
      __builtin_prefetch(out, 1);
      __builtin_prefetch(out + to.rows - 1, 1);
    }
  }

  void store(int64_t first, int64_t n, float* from) const {
    Outputs at = to;
    at.out += first * to.out_stride;
    if (at.residual) at.residual += first * to.residual_stride;
    table.store(from, n, at);
  }

  // Tokens first .. first + n - 1 (at most kTokensAtOnce) times one group.
  void multiply_group(const uint8_t* group, int64_t first, int64_t n) const {
    const int64_t at_once = n <= tiles.max_tokens ? rows.columns : slice_columns(step, rows.columns);
    for (int64_t column = 0; column < rows.columns; column += at_once) {
      const int64_t columns = std::min(at_once, rows.columns - column);
      const bool last = column + columns == rows.columns;
      const uint8_t* packed = group + column / step.columns * step.bytes;
      const uint8_t* row = rows.data + size_t(first) * rows.stride + column / kPartColumns * rows.part_bytes;
      for (int64_t token = 0; token < n;) {
        const int64_t left = n - token, now = ceiling_of(left, ceiling_of(left, tiles.max_tokens));  // about equal tiles
        float* mine = sums + token * kGroupRows;
        if (last) expect_outputs(first + token, now);
        tiles.tile[now - 1](packed, columns, row + size_t(token) * rows.stride, rows.stride, mine);
        if (last) store(first + token, now, mine);
        token += now;
      }
    }
  }
};

void multiply_piece(const LinearArgs& a, const Weight& w, const Weight::Piece& piece, const float* bias, int64_t column, const LinearTable& table) {
  alignas(64) float sums[kTokensAtOnce * kGroupRows] = {};
  Product product{table, tiles_of(table, w.format), packed_step(w.format), rows_for(a, w, table), {}, sums};
  const int64_t group_bytes = packed_group_bytes(w.format, w.columns);
  const int64_t block = block_tokens(a.tokens, int64_t(product.rows.stride));
  for (int64_t begin = 0; begin < a.tokens; begin += block) {
    const int64_t end = std::min(begin + block, a.tokens);
    const uint8_t* group = piece.data;
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += group_bytes) {
      product.to = {a.out + column + row, a.out_stride, a.residual ? a.residual + column + row : nullptr, a.residual_stride,
                    bias ? bias + row : nullptr, std::min<int64_t>(kGroupRows, piece.row_end - row)};
      for (int64_t first = begin; first < end; first += kTokensAtOnce) product.multiply_group(group, first, std::min(kTokensAtOnce, end - first));
    }
  }
}

}  // namespace

bool has_kernel(Format format) { return packed_step(format).columns > 0; }
bool can_decode(Format format) { return file_block(format).bytes > 0; }

size_t linear_scratch_bytes(int64_t max_tokens, int64_t columns, const Weight* const* weights, int count) {
  return encoded_bytes(max_tokens, columns, weights, count) + rounded_bytes(max_tokens, columns, weights, count);
}

bool linear_needs_prepare(const LinearArgs& a) {
  return any_coded(a.weights, a.count) || any_takes_rounded(table_of(current_level()), a);
}

void linear_prepare(const LinearArgs& a, int thread, int threads) {
  const LinearTable& table = table_of(current_level());
  if (any_takes_rounded(table, a)) round_share(a, table, rounded_rows(a), thread, threads);
  if (!any_coded(a.weights, a.count)) return;
  const auto encode = table.encode;
  const int64_t columns = a.weights[0]->columns, parts = parts_of(columns), all = a.tokens * parts;
  auto* out = reinterpret_cast<EncodedPart*>(a.scratch);
  const int64_t end = all * (thread + 1) / threads;
  for (int64_t i = all * thread / threads; i < end;) {
    const int64_t token = i / parts, part = i % parts, now = std::min(parts - part, end - i);
    const int64_t column = part * kPartColumns;
    encode(a.x + token * a.x_stride + column, std::min(now * kPartColumns, columns - column), out + i);
    i += now;
  }
}

void linear_multiply(const LinearArgs& a, int thread, int threads) {
  if (a.tokens < 1) return;
  const LinearTable& table = table_of(current_level());
  int64_t column = 0;
  for (int i = 0; i < a.count; ++i) {
    const Weight& w = *a.weights[i];
    for (size_t p = size_t(thread); p < w.pieces.size(); p += size_t(threads)) {
      multiply_piece(a, w, w.pieces[p], a.biases ? a.biases[i] : nullptr, column, table);
    }
    column += w.rows;
  }
}

void unpack_row(const Weight& w, int64_t row, float* out) {
  const auto piece = std::find_if(w.pieces.begin(), w.pieces.end(), [row](const Weight::Piece& p) { return row < p.row_end; });
  const int64_t inside = row - piece->row_begin;
  const uint8_t* group = piece->data + inside / kGroupRows * packed_group_bytes(w.format, w.columns);
  unpack_group_row(w.format, group, w.columns, int(inside % kGroupRows), out);
}

void embedding_rows(const Weight& table, const int32_t* ids, int64_t tokens, float* out, int64_t out_stride, int thread, int threads) {
  const int64_t end = tokens * (thread + 1) / threads;
  for (int64_t i = tokens * thread / threads; i < end; ++i) unpack_row(table, ids[i], out + i * out_stride);
}

}  // namespace homenode
