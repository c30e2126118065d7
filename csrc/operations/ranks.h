// What a part of a model exchanges with the others: rows of the stage before, sums and gathers over the ranks of its
// own.
//
// None of them takes another operation over or is taken over: what is folded into a product or a norm stays on its side
// of a sum.
#pragma once
#include <memory>
#include <vector>

#include "graph/operation.h"

namespace homenode {

class RankGroup;

// Rows that a step brings with it. They stay where the caller has them: no phase.
class ReceivedOperation : public Operation {
 public:
  void lower(Lowering&) override {}
};

class SumOperation : public Operation {
 public:
  SumOperation(std::shared_ptr<RankGroup> over, Tensor from, Tensor to)
      : group(std::move(over)), x(std::move(from)), out(std::move(to)) {}
  void lower(Lowering&) override;

  std::shared_ptr<RankGroup> group;
  Tensor x, out;
};

class GatherOperation : public Operation {
 public:
  GatherOperation(std::shared_ptr<RankGroup> over, Tensor from, std::vector<int64_t> of, Tensor to)
      : group(std::move(over)), x(std::move(from)), widths(std::move(of)), out(std::move(to)) {}
  void lower(Lowering&) override;

  std::shared_ptr<RankGroup> group;
  Tensor x;
  std::vector<int64_t> widths;  // of every rank
  Tensor out;
};

}  // namespace homenode
