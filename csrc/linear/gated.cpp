#include "linear/gated.h"

#include <algorithm>

namespace homenode {

GatedGroups::GatedGroups(const GroupProduct& gates, const GroupProduct* ups, const PreparedRows& to,
                         GateKernel gate_mul, const LinearTable& table, const float* const* biases)
    : gates_(gates), ups_(ups), to_(to), gate_mul_(gate_mul), table_(table), biases_(biases) {}

void GatedGroups::multiply(const Piece& piece, int64_t begin, int64_t end, int64_t first, int64_t past) {
  // As many groups at once as there is room for: a change from gates to ups costs about a microsecond, until reading is
  // at full speed again, and sixteen parts are encoded in the time of one.
  const int64_t n = std::min(kTokensAtOnce, past - first),
                at_once = std::max(kTokensAtOnce / n, gates_.groups_at_once(n));
  for (int64_t group = begin; group < end; group += at_once) {
    for (int64_t token = first; token < past; token += kTokensAtOnce) {
      multiply_some(piece, group, std::min(at_once, end - group), token, std::min(kTokensAtOnce, past - token));
    }
  }
}

void GatedGroups::multiply_some(const Piece& piece, int64_t group, int64_t groups, int64_t first, int64_t n) {
  const int64_t sums = n * kGroupRows, row = piece.row_begin + group * kGroupRows,
                rows = std::min(groups * kGroupRows, piece.row_end - row);
  gates_.multiply(piece.gates + group * gates_.group_bytes(), groups, first, n, gate_);
  if (ups_)
    ups_->multiply(piece.ups + group * ups_->group_bytes(), groups, first, n, up_, destination(first, row, groups));
  if (biases_) add_biases(row, rows, n);
  gate_mul_(gate_, ups_ ? up_ : nullptr, gate_, groups * sums);
  store_parts(to_, table_, first, n, row, gate_, rows);
}

void GatedGroups::add_biases(int64_t row, int64_t rows, int64_t n) {
  float* const sums[2] = {gate_, up_};
  for (int i = 0; i < 2; ++i) {
    if (!biases_[i] || (i && !ups_)) continue;
    for (int64_t r = 0; r < rows; ++r) {
      float* const of_row = sums[i] + r / kGroupRows * n * kGroupRows + r % kGroupRows;
      for (int64_t t = 0; t < n; ++t) of_row[t * kGroupRows] += biases_[i][row + r];
    }
  }
}

// Where the encoded parts of 32 outputs a group go.
Destination GatedGroups::destination(int64_t first, int64_t row, int64_t groups) const {
  if (!to_.encoded) return {};
  return {to_.encoded + first * to_.encoded_stride + row / kPartColumns,
          size_t(to_.encoded_stride) * sizeof(EncodedPart), size_t(groups) * sizeof(EncodedPart), sizeof(EncodedPart)};
}

}  // namespace homenode
