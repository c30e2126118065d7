#include "kernels/linear_group.h"

#include <algorithm>

#include "quant/block.h"

namespace homenode {
namespace {

// None of these sizes changes a result: the sums of a tile go on where they stopped.
constexpr int64_t kBlockBytes = 512 << 10;
// Bytes of weights that stay in the first-level cache while all the tokens at hand pass.
constexpr int64_t kSliceBytes = 32 << 10;
constexpr int64_t kCacheLine = 64;

int64_t ceiling_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns multiplied with all the tokens at hand before the next: about equal slices of whole steps and whole parts.
int64_t slice_columns(PackedStep step, int64_t columns) {
  const int64_t unit = std::max<int64_t>(step.columns, kPartColumns), units = ceiling_of(columns, unit);
  const int64_t slices = ceiling_of(ceiling_of(columns, step.columns) * step.bytes, kSliceBytes);
  return ceiling_of(units, slices) * unit;
}

const PanelTiles* panels_of(const LinearTable& table, Format format) {
  const Coding* coding = coding_of(format);
  const PanelTiles* panels = coding ? &table.panels[coding - kCodings] : nullptr;
  return panels && panels->unpack ? panels : nullptr;
}

// About equal tiles of at most `most` of n tokens: the size of the next one.
int64_t next_tile(int64_t left, int64_t most) { return ceiling_of(left, ceiling_of(left, most)); }

}  // namespace

int64_t block_tokens(int64_t tokens, int64_t row_bytes) {
  const int64_t most = std::max(kBlockBytes / row_bytes, kTokensAtOnce / 2);
  return ceiling_of(tokens, ceiling_of(tokens, most));
}

GroupProduct::GroupProduct(const Weight& w, const ActivationRows& rows, const LinearTable& table)
    : tiles_(tiles_of(table, w.format)), panels_(panels_of(table, w.format)), step_(packed_step(w.format)), rows_(rows), group_bytes_(packed_group_bytes(w.format, w.columns)) {}

void GroupProduct::multiply(const uint8_t* packed, int64_t first, int64_t n, float* sums) const {
  if (panels_ && n >= panels_->least_tokens) return multiply_panels(packed, first, n, sums);
  const int64_t at_once = n <= tiles_.max_tokens ? rows_.columns : slice_columns(step_, rows_.columns);
  for (int64_t column = 0; column < rows_.columns; column += at_once) {
    const int64_t columns = std::min(at_once, rows_.columns - column);
    const uint8_t* weights = packed + column / step_.columns * step_.bytes;
    const uint8_t* row = rows_.data + size_t(first) * rows_.stride + column / kPartColumns * rows_.part_bytes;
    for (int64_t token = 0; token < n;) {
      const int64_t now = next_tile(n - token, tiles_.max_tokens);
      tiles_.tile[now - 1](weights, columns, row + size_t(token) * rows_.stride, rows_.stride, sums + token * kGroupRows);
      token += now;
    }
  }
}

void GroupProduct::multiply_panels(const uint8_t* packed, int64_t first, int64_t n, float* sums) const {
  PanelSpace space;
  const int64_t all = rows_.columns / kPartColumns, unit = std::max<int64_t>(step_.columns / kPartColumns, 1);
  const int64_t at_once = ceiling_of(ceiling_of(all, unit), ceiling_of(all, kPanelParts)) * unit;  // about equal panels of whole blocks
  for (int64_t part = 0; part < all; part += at_once) {
    const int64_t parts = std::min(at_once, all - part);
    Panel panel = panels_->unpack(packed + part / unit * step_.bytes, parts, space);
    const int64_t tiles = ceiling_of(n, panels_->max_tokens);
    panel.ahead_lines = int(ceiling_of(ceiling_of(parts / unit * step_.bytes, kCacheLine), tiles * parts));
    const uint8_t* row = rows_.data + size_t(first) * rows_.stride + part * rows_.part_bytes;
    for (int64_t token = 0; token < n;) {
      const int64_t now = next_tile(n - token, panels_->max_tokens);
      panels_->tile[now - 1](panel, parts, row + size_t(token) * rows_.stride, rows_.stride, sums + token * kGroupRows);
      panel.ahead += parts * panel.ahead_lines * kCacheLine;
      token += now;
    }
  }
}

}  // namespace homenode
