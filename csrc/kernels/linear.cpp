#include "kernels/linear.h"

#include <algorithm>

#include "base/isa.h"
#include "kernels/linear_rounded.h"
#include "kernels/linear_table.h"
#include "quant/block.h"
#include "quant/pack.h"

namespace homenode {
namespace {

// Tokens whose sums are kept at hand while one group's weights are multiplied, and bytes of weights that are used for all of them before
// the next: both chosen to stay in the nearest cache. Neither changes a result, for the sums go on where they stopped.
constexpr int64_t kTokensAtOnce = 96;
constexpr int64_t kBytesAtOnce = 32 << 10;

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

// Columns multiplied with all the tokens at hand before the next: whole steps and whole parts.
int64_t columns_at_once(PackedStep step) {
  const int64_t columns = kBytesAtOnce / step.bytes * step.columns;
  return std::max<int64_t>(columns / kPartColumns * kPartColumns, std::max(step.columns, kPartColumns));
}

// sums[n][32] = rows first .. first + n - 1 times one group.
void multiply_group(const Tiles& tiles, PackedStep step, const uint8_t* group, const Rows& rows, int64_t first, int64_t n, float* sums) {
  std::fill_n(sums, n * kGroupRows, 0.0f);
  const int64_t at_once = n <= tiles.max_tokens ? rows.columns : columns_at_once(step);
  for (int64_t column = 0; column < rows.columns; column += at_once) {
    const int64_t columns = std::min(at_once, rows.columns - column);
    const uint8_t* packed = group + column / step.columns * step.bytes;
    const uint8_t* row = rows.data + size_t(first) * rows.stride + column / kPartColumns * rows.part_bytes;
    for (int64_t token = 0, left = n; left > 0;) {
      const int64_t calls = (left + tiles.max_tokens - 1) / tiles.max_tokens, now = (left + calls - 1) / calls;  // about equal tiles
      tiles.tile[now - 1](packed, columns, row + size_t(token) * rows.stride, rows.stride, sums + token * kGroupRows);
      token += now;
      left -= now;
    }
  }
}

struct Target {
  const float* bias;  // of the group's first row, or null
  int64_t column;     // in `out` and `residual`
  int64_t rows;       // of the group that exist
};

void store_group(const LinearArgs& a, const Target& to, const float* sums, int64_t first, int64_t n) {
  for (int64_t t = 0; t < n; ++t) {
    const float* sum = sums + t * kGroupRows;
    float* out = a.out + (first + t) * a.out_stride + to.column;
    const float* residual = a.residual ? a.residual + (first + t) * a.residual_stride + to.column : nullptr;
    for (int64_t i = 0; i < to.rows; ++i) {
      float value = sum[i];
      if (to.bias) value += to.bias[i];
      if (residual) value += residual[i];
      out[i] = value;
    }
  }
}

void multiply_piece(const LinearArgs& a, const Weight& w, const Weight::Piece& piece, const float* bias, int64_t column, const LinearTable& table) {
  alignas(64) float sums[kTokensAtOnce * kGroupRows];
  const Tiles& tiles = tiles_of(table, w.format);
  const Rows rows = rows_for(a, w, table);
  const PackedStep step = packed_step(w.format);
  const int64_t group_bytes = packed_group_bytes(w.format, w.columns);
  const uint8_t* group = piece.data;
  for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += group_bytes) {
    const Target to{bias ? bias + row : nullptr, column + row, std::min<int64_t>(kGroupRows, piece.row_end - row)};
    for (int64_t first = 0; first < a.tokens; first += kTokensAtOnce) {
      const int64_t n = std::min(kTokensAtOnce, a.tokens - first);
      multiply_group(tiles, step, group, rows, first, n, sums);
      store_group(a, to, sums, first, n);
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
