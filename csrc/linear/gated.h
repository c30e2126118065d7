// gated(gate) * up of the same groups of two weights, put where the product that comes next reads its rows.
#pragma once
#include "linear/group.h"

namespace homenode {

class GatedGroups {
 public:
  // `ups`: null for the activation of what `gates` make alone. `biases`: of gate and up, or null.
  GatedGroups(const GroupProduct& gates, const GroupProduct* ups, const PreparedRows& to, GateKernel,
              const LinearTable&, const float* const* biases = nullptr);

  // A piece of both weights: where its groups lie, and its rows.
  struct Piece {
    const uint8_t *gates, *ups;
    int64_t row_begin, row_end;
  };
  // Groups begin .. end - 1 of a piece, tokens first .. past - 1.
  void multiply(const Piece&, int64_t begin, int64_t end, int64_t first, int64_t past);

 private:
  void multiply_some(const Piece&, int64_t group, int64_t groups, int64_t first, int64_t n);
  void add_biases(int64_t row, int64_t rows, int64_t n);
  Destination destination(int64_t first, int64_t row, int64_t groups) const;

  const GroupProduct& gates_;
  const GroupProduct* ups_;
  const PreparedRows& to_;
  const GateKernel gate_mul_;
  const LinearTable& table_;
  const float* const* biases_;
  // [group][token][32]; a group's products may overwrite the first sums of the next, which come after them
  alignas(64) float gate_[(kGroupsAtOnce * kTokensAtOnce + kSpareRows) * kGroupRows];
  alignas(64) float up_[(kGroupsAtOnce * kTokensAtOnce + kSpareRows) * kGroupRows];
};

}  // namespace homenode
