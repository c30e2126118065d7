// The weight that a row itself has among its experts: see homenode.compute.row_ops.RowOps.identity_weight.
#pragma once
#include <string>
#include <vector>

#include "graph/row_fields.h"
#include "moe/moe.h"

namespace homenode {

struct IdentityWeight {
  static constexpr const char *kName = "identity_weight", *kPhase = "identity weight";
  Tensor logits;
  Vector bias;
  int first = 0, chosen = 1;
  float scale = 1;
  static constexpr auto fields() {
    using Op = IdentityWeight;
    return std::tuple(Field("logits", &Op::logits), Field("bias", &Op::bias), Field("first", &Op::first),
                      Field("chosen", &Op::chosen), Field("scale", &Op::scale));
  }

  int64_t columns() const { return 1; }
  std::string problem() const {
    if (bias.columns() == logits.columns && chosen >= 1 && chosen <= logits.columns && first >= 0) return "";
    return std::to_string(chosen) + " of " + std::to_string(logits.columns) + " experts with a bias of " +
           std::to_string(bias.columns());
  }
  void compute(const RowPiece& p) const {
    const int experts = static_cast<int>(logits.columns);
    Routing how{.chosen = chosen, .normalise = false, .scale = scale};
    how.bias = bias.data();
    thread_local std::vector<int32_t> indices;
    thread_local std::vector<float> floats;
    indices.resize(static_cast<size_t>(chosen));
    floats.resize(static_cast<size_t>(chosen + choice_floats(how, experts)));
    choose_experts(row_of(logits, p.row), experts, how, indices.data(), floats.data(), floats.data() + chosen);
    float sum = 0;
    for (int i = 0; i < chosen; ++i)
      sum += indices[static_cast<size_t>(i)] >= first ? floats[static_cast<size_t>(i)] : 0;
    p.out[0] = sum;
  }
};

}  // namespace homenode
