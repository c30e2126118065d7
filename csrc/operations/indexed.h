// Products in which each row names its matrix: see homenode.compute.ops.Ops.linear_indexed.
//
// Rows are sorted by their matrix, as those of a mixture are by their expert (moe/routes.h), so that a matrix is read
// once for all its rows. Each row's sums are those of a product of its own, whatever is beside it.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "graph/operation.h"
#include "linear/linear.h"
#include "moe/routes.h"

namespace homenode {

// The number of the adapter of each token's sequence, -1 where it has none. Steps without adapters leave it out.
class AdapterIndexOperation : public Operation {
 public:
  explicit AdapterIndexOperation(Tensor to) : out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor out;
};

// `adds`: the products are added to what `out` holds; else `out` is theirs, and zeros where a row has no matrix.
class LinearIndexedOperation : public Operation {
 public:
  // `with`: null where no row is multiplied; not all of them.
  LinearIndexedOperation(Tensor from, std::vector<std::shared_ptr<const Weight>> with, Tensor by, Tensor to, bool adds);
  void lower(Lowering&) override;

  Tensor x, index, out;

 private:
  // What one thread has for itself in a step.
  struct Own {
    int32_t* matrices;  // [rows] their number for a row without one
    RouteList list;
    uint8_t* prepared;  // scratch memory of few rows
  };
  Own own_of(const Memory& own, int thread) const;
  LinearArgs arguments(const Own&, uint8_t* prepared) const;
  bool names_any(const Step& step) const { return !of_step_ || !step.adapters.empty(); }
  void sort(const Step&, const Own&) const;
  void clear(const Step&, const Own&, int thread, int threads) const;
  void multiply(const LinearArgs&, const Own&, int thread, int threads) const;

  std::vector<std::shared_ptr<const Weight>> weights_;
  const Weight* any_ = nullptr;  // all have one shape and format
  bool adds_, of_step_ = false;  // of_step_: the index is that of the step's adapters
  int most_rows_ = 0;
};

}  // namespace homenode
