// Products and copies head by head: what latent attention does to queries before the cache is read, and to outputs
// after.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "graph/operation.h"
#include "linear/linear.h"

namespace homenode {

// The columns of each head of x times the weight of the head: see homenode.compute.ops.Ops.linear_heads.
class LinearHeadsOperation : public Operation {
 public:
  LinearHeadsOperation(Tensor from, std::vector<std::shared_ptr<const Weight>> with, Tensor to);
  void lower(Lowering&) override;

  Tensor x, out;

 private:
  LinearArgs arguments(const Step&, size_t head, Memory* scratch) const;

  std::vector<std::shared_ptr<const Weight>> owned_;
  std::vector<const Weight*> weights_;
  size_t head_bytes_ = 0;  // of the scratch memory
};

}  // namespace homenode
