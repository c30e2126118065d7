#include "kernels/linear_group.h"

#include <algorithm>

namespace homenode {
namespace {

// None of these sizes changes a result: the sums of a tile go on where they stopped.
constexpr int64_t kBlockBytes = 512 << 10;
// Bytes of weights that stay in the first-level cache while all the tokens at hand pass.
constexpr int64_t kSliceBytes = 32 << 10;

int64_t ceiling_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns multiplied with all the tokens at hand before the next: about equal slices of whole steps and whole parts.
int64_t slice_columns(PackedStep step, int64_t columns) {
  const int64_t unit = std::max<int64_t>(step.columns, kPartColumns), units = ceiling_of(columns, unit);
  const int64_t slices = ceiling_of(ceiling_of(columns, step.columns) * step.bytes, kSliceBytes);
  return ceiling_of(units, slices) * unit;
}

}  // namespace

int64_t block_tokens(int64_t tokens, int64_t row_bytes) {
  const int64_t most = std::max(kBlockBytes / row_bytes, kTokensAtOnce / 2);
  return ceiling_of(tokens, ceiling_of(tokens, most));
}

GroupProduct::GroupProduct(const Weight& w, const ActivationRows& rows, const LinearTable& table)
    : tiles_(tiles_of(table, w.format)), step_(packed_step(w.format)), rows_(rows), group_bytes_(packed_group_bytes(w.format, w.columns)) {}

void GroupProduct::multiply(const uint8_t* packed, int64_t first, int64_t n, float* sums) const {
  const int64_t at_once = n <= tiles_.max_tokens ? rows_.columns : slice_columns(step_, rows_.columns);
  for (int64_t column = 0; column < rows_.columns; column += at_once) {
    const int64_t columns = std::min(at_once, rows_.columns - column);
    const uint8_t* weights = packed + column / step_.columns * step_.bytes;
    const uint8_t* row = rows_.data + size_t(first) * rows_.stride + column / kPartColumns * rows_.part_bytes;
    for (int64_t token = 0; token < n;) {
      const int64_t left = n - token, now = ceiling_of(left, ceiling_of(left, tiles_.max_tokens));  // about equal tiles
      tiles_.tile[now - 1](weights, columns, row + size_t(token) * rows_.stride, rows_.stride, sums + token * kGroupRows);
      token += now;
    }
  }
}

}  // namespace homenode
