// A mixture of experts, and the sum that a shared expert is added by.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "graph/operation.h"
#include "moe/moe.h"

namespace homenode {

// The matrices of an MoE layer's experts, and what else belongs to them: see Experts and Routing. `ids`: which of the
// experts that have logits these are, ascending; empty: all. Biases: a parameter for each expert, or none at all;
// scales: may be empty.
struct ExpertWeights {
  std::vector<std::shared_ptr<const Weight>> gate, up, down;
  std::vector<int32_t> ids = {};
  std::vector<Tensor> gate_bias = {}, up_bias = {}, down_bias = {};
  Tensor scales = {};
  Activation activation = Activation::silu;
};

class LinearOperation;
class RmsNormOperation;

class MoeOperation : public Operation {
 public:
  struct Inputs {
    Tensor x, logits, residual, choice_bias, chosen;  // the last three may be empty
  };
  MoeOperation(Inputs from, ExpertWeights with, Experts experts, const Routing& how, Tensor to)
      : inputs_(std::move(from)),
        owned_(std::move(with)),
        experts_(std::move(experts)),
        routing_(how),
        out_(std::move(to)) {}
  // The router's product, and the norm of the rows both take.
  void fuse_producers() override;
  void lower(Lowering&) override;
  // For each expert of the layer how many tokens it was computed for so far; 0 for those that are elsewhere. For any
  // thread, at any time.
  std::vector<uint64_t> uses() const;

 private:
  Inputs inputs_;
  void check_router(Lowering&);

  LinearOperation* router_ = nullptr;
  RmsNormOperation* norm_ = nullptr;
  ExpertWeights owned_;
  Experts experts_;
  Routing routing_;
  Tensor out_;
  std::unique_ptr<MoePlan> plan_;
};

}  // namespace homenode
