#include "kernels/linear.h"

#include <algorithm>

#include "base/isa.h"
#include "kernels/linear_rounded.h"
#include "kernels/linear_rows.h"
#include "quant/block.h"
#include "quant/pack.h"

namespace homenode {

const LinearTable& linear_table(Level level) {
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

bool is_coded(const Weight& w) { return coding_of(w.format) != nullptr; }

int64_t parts_of(int64_t columns) { return (columns + kPartColumns - 1) / kPartColumns; }

namespace {

bool any_coded(const Weight* const* weights, int count) {
  return std::any_of(weights, weights + count, [](const Weight* w) { return is_coded(*w); });
}

// The scratch memory holds the encoded rows, if a weight wants them, then the rounded rows.
size_t encoded_bytes(int64_t tokens, int64_t columns, const Weight* const* weights, int count) {
  return any_coded(weights, count) ? (size_t(tokens) * size_t(parts_of(columns)) * sizeof(EncodedPart) + 63) / 64 * 64 : 0;
}

uint8_t* rounded_rows(const LinearArgs& a) { return a.scratch + encoded_bytes(a.tokens, a.weights[0]->columns, a.weights, a.count); }

}  // namespace

ActivationRows rows_for(const LinearArgs& a, const Weight& w, const LinearTable& table) {
  constexpr int64_t kFloat = sizeof(float);
  if (takes_rounded(table, w)) return {rounded_rows(a), rounded_row_bytes(w.columns), kPartColumns * sizeof(uint16_t), w.columns};
  if (!is_coded(w)) return {reinterpret_cast<const uint8_t*>(a.x), size_t(a.x_stride * kFloat), kPartColumns * kFloat, w.columns};
  const int64_t parts = parts_of(w.columns);
  return {a.scratch, size_t(parts) * sizeof(EncodedPart), sizeof(EncodedPart), parts * kPartColumns};
}

bool has_kernel(Format format) { return packed_step(format).columns > 0; }
bool can_decode(Format format) { return file_block(format).bytes > 0; }

size_t linear_scratch_bytes(int64_t max_tokens, int64_t columns, const Weight* const* weights, int count) {
  return encoded_bytes(max_tokens, columns, weights, count) + rounded_bytes(max_tokens, columns, weights, count);
}

bool linear_needs_prepare(const LinearArgs& a) {
  return any_coded(a.weights, a.count) || any_takes_rounded(linear_table(current_level()), a);
}

void linear_prepare(const LinearArgs& a, int thread, int threads) {
  const LinearTable& table = linear_table(current_level());
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
