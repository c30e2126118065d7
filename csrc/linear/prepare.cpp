// Activation rows on their way into a product: picked, normalised, and in the forms the weights want.
#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "linear/rows.h"
#include "quant/half.h"

namespace homenode {

int64_t parts_of(int64_t columns) { return (columns + kPartColumns - 1) / kPartColumns; }

bool takes_rounded(const LinearTable& table, const Weight& w) { return table.round && w.format == Format::bf16; }

namespace {

constexpr int64_t kChunkColumns = 512;  // normalised at once, on the stack

// An odd number of cache lines, so that the rows of a tile never compete for the same few places of the nearest cache.
int64_t rounded_stride(int64_t columns) { return (parts_of(columns) | 1) * kPartColumns; }
int64_t encoded_stride(int64_t columns) { return parts_of(columns) | 1; }
int64_t float_stride(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

size_t encoded_bytes(int64_t tokens, int64_t columns) {
  return size_t((tokens + kSpareRows) * encoded_stride(columns)) * sizeof(EncodedPart);
}
size_t rounded_bytes(int64_t tokens, int64_t columns) {
  return size_t(tokens * rounded_stride(columns)) * sizeof(uint16_t);
}
size_t float_bytes(int64_t tokens, int64_t columns) { return size_t(tokens * float_stride(columns)) * sizeof(float); }

void prepare_row(const LinearArgs& a, const LinearTable& table, const Kernels& kernels, const PreparedRows& to,
                 int64_t token) {
  const float* x = a.x + (a.picked ? a.picked[token] : token) * a.x_stride;
  const int64_t columns = a.weights[0]->columns;
  if (!a.norm) return store_columns(to, table, token, 0, x, columns);
  const float scale = kernels.rms_scale(x, columns, a.eps);
  alignas(64) float normed[kChunkColumns];
  for (int64_t column = 0; column < columns; column += kChunkColumns) {
    const int64_t count = std::min(kChunkColumns, columns - column);
    kernels.scale_row(x + column, scale, a.norm + column, normed, count);
    store_columns(to, table, token, column, normed, count);
  }
}

// The last part of a row may lack columns: those are zeros.
void encode_columns(const LinearTable& table, const float* x, int64_t columns, EncodedPart* out) {
  const int64_t whole = columns / kPartColumns, rest = columns % kPartColumns;
  table.encode(x, 1, whole, out, 0);
  if (!rest) return;
  float last[kPartColumns] = {};
  std::copy_n(x + whole * kPartColumns, rest, last);
  table.encode(last, 1, 1, out + whole, 0);
}

// Rounds some columns, and what that leaves of them.
void round_in_two(const LinearTable& table, const float* x, int64_t columns, uint16_t* out, uint16_t* rest) {
  alignas(64) float left[kChunkColumns];
  for (int64_t column = 0; column < columns; column += kChunkColumns) {
    const int64_t count = std::min(kChunkColumns, columns - column);
    table.round(x + column, count, out + column);
    for (int64_t i = 0; i < count; ++i) left[i] = x[column + i] - bf16_to_float(out[column + i]);
    table.round(left, count, rest + column);
  }
}

}  // namespace

RowForms forms_of(const LinearArgs& a, const LinearTable& table) {
  RowForms forms;
  for (int i = 0; i < a.count; ++i) {
    const Weight& w = *a.weights[i];
    const bool encoded = is_coded(w), rounded = takes_rounded(table, w);
    forms.encoded |= encoded, forms.rounded |= rounded, forms.floats |= !encoded && !rounded;
  }
  return forms;
}

PreparedRows prepared_rows(const LinearArgs& a, const LinearTable& table) {
  const RowForms forms = forms_of(a, table);
  const int64_t columns = a.weights[0]->columns;
  uint8_t* at = a.scratch;
  PreparedRows rows;
  if (forms.encoded) {
    rows.encoded = reinterpret_cast<EncodedPart*>(at), rows.encoded_stride = encoded_stride(columns);
    at += encoded_bytes(a.tokens, columns);
  }
  if (forms.rounded) {
    rows.rounded = reinterpret_cast<uint16_t*>(at), rows.rounded_stride = rounded_stride(columns);
    at += rounded_bytes(a.tokens, columns);
    if (a.precision == Precision::fine) {
      rows.rest = reinterpret_cast<uint16_t*>(at);
      at += rounded_bytes(a.tokens, columns);
    }
  }
  if (forms.floats && a.transformed())
    rows.floats = reinterpret_cast<float*>(at), rows.float_stride = float_stride(columns);
  return rows;
}

void store_columns(const PreparedRows& to, const LinearTable& table, int64_t token, int64_t column, const float* values,
                   int64_t count) {
  if (to.encoded) encode_columns(table, values, count, to.encoded + token * to.encoded_stride + column / kPartColumns);
  if (to.rounded) {
    const int64_t place = token * to.rounded_stride + column;
    if (to.rest) round_in_two(table, values, count, to.rounded + place, to.rest + place);
    else table.round(values, count, to.rounded + place);
  }
  if (to.floats) std::memcpy(to.floats + token * to.float_stride + column, values, size_t(count) * sizeof(float));
}

void store_parts(const PreparedRows& to, const LinearTable& table, int64_t first, int64_t n, int64_t column,
                 const float* values, int64_t count) {
  const int64_t together = to.encoded && !to.rounded && !to.floats ? count / kPartColumns : 0;
  if (together)
    table.encode(values, n, together, to.encoded + first * to.encoded_stride + column / kPartColumns,
                 to.encoded_stride);
  values += together * n * kPartColumns;
  for (int64_t at = together * kPartColumns; at < count; at += kPartColumns) {
    const int64_t now = std::min<int64_t>(kPartColumns, count - at);
    for (int64_t i = 0; i < n; ++i, values += kPartColumns)
      store_columns(to, table, first + i, column + at, values, now);
  }
}

ActivationRows rows_for(const LinearArgs& a, const Weight& w, const LinearTable& table) {
  constexpr int64_t kFloat = sizeof(float);
  const PreparedRows rows = prepared_rows(a, table);
  const auto bytes = [](const auto* p) { return reinterpret_cast<const uint8_t*>(p); };
  if (is_coded(w)) {
    const size_t stride = size_t(rows.encoded_stride) * sizeof(EncodedPart);
    return {bytes(rows.encoded), stride, sizeof(EncodedPart), parts_of(w.columns) * kPartColumns,
            a.tokens + kSpareRows};
  }
  if (takes_rounded(table, w))
    return {bytes(rows.rounded),
            size_t(rows.rounded_stride) * sizeof(uint16_t),
            kPartColumns * sizeof(uint16_t),
            w.columns,
            a.tokens,
            rows.rest ? (rows.rest - rows.rounded) * int64_t(sizeof(uint16_t)) : 0};
  if (rows.floats)
    return {bytes(rows.floats), size_t(rows.float_stride * kFloat), kPartColumns * kFloat, w.columns, a.tokens};
  return {bytes(a.x), size_t(a.x_stride * kFloat), kPartColumns * kFloat, w.columns, a.tokens};
}

size_t linear_scratch_bytes(int64_t max_tokens, int64_t columns, const Weight* const* weights, int count,
                            bool transformed, Precision precision) {
  const auto any = [&](auto wants) {
    return std::any_of(weights, weights + count, [&](const Weight* w) { return wants(*w); });
  };
  size_t bytes = any(is_coded) ? encoded_bytes(max_tokens, columns) : 0;
  if (any([](const Weight& w) { return w.format == Format::bf16; }))
    bytes += rounded_bytes(max_tokens, columns) * (precision == Precision::fine ? 2 : 1);
  if (transformed && any([](const Weight& w) { return !is_coded(w); })) bytes += float_bytes(max_tokens, columns);
  return bytes;
}

bool linear_needs_prepare(const LinearArgs& a) {
  if (a.filled) return false;
  const RowForms forms = forms_of(a, linear_table(current_level()));
  return forms.encoded || forms.rounded || a.transformed();
}

void linear_prepare(const LinearArgs& a, int thread, int threads) {
  if (!linear_needs_prepare(a)) return;
  const LinearTable& table = linear_table(current_level());
  const Kernels& row_kernels = kernels(current_level());
  const PreparedRows to = prepared_rows(a, table);
  const int64_t end = a.tokens * (thread + 1) / threads;
  for (int64_t token = a.tokens * thread / threads; token < end; ++token) prepare_row(a, table, row_kernels, to, token);
}

}  // namespace homenode
