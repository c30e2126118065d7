// The product of activation rows with weights, and what is done to the rows on their way into it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "linear/linear.h"
#include "operations/common.h"

namespace homenode {

class LinearOperation : public Operation {
 public:
  LinearOperation(Tensor from, std::vector<std::shared_ptr<const Weight>> with, const std::vector<Tensor>& plus,
                  const Tensor* residual, Tensor to, Precision);

  // A norm or a selection of rows is done by each thread on the way, or, for many rows, by one phase that leaves
  // prepared rows; a gate writes them. A selection of the residual's rows is done where they are added.
  void fuse_producers() override;
  void lower(Lowering&) override;

  // The weight, if it is one without a residual, and its bias, or null; and are x's own rows multiplied with it at this
  // level, without preparing them?
  const Weight* only_weight() const;
  const float* only_bias() const { return biases_[0]; }
  bool multiplies_as_is(Level) const;
  bool has_residual() const { return has_residual_; }
  // Is this gate and up, so that gated(gate) * up can be made where the sums are?
  bool can_gate() const;
  // Into `out`, or into the prepared rows of `reader`.
  void lower_gated(Lowering&, Activation, const Tensor& out, LinearOperation* reader);
  // The activation of what it makes, into `out`.
  void lower_activated(Lowering&, Activation, const Tensor& out);

  // The arguments of a step, the rows to be found in `scratch`.
  LinearArgs arguments(const Step&, Memory* scratch) const;
  // The scratch memory that all threads share; made at first call.
  Memory* shared(Lowering&);

  std::string name = "linear";  // of its phases: what a decoder uses them for, as far as that shows
  Tensor x, out;

 private:
  using Multiply = std::function<void(const LinearArgs&, const Step&, int thread, int threads)>;
  void lower_as(Lowering&, Multiply, std::vector<Memory*> touched);
  size_t scratch_bytes(int64_t rows) const;

  std::vector<std::shared_ptr<const Weight>> owned_;
  std::vector<Tensor> parameters_;
  std::vector<const Weight*> weights_;
  std::vector<const float*> biases_;
  bool has_residual_;
  Tensor residual_;
  Precision precision_;

  Tensor source_;  // x, or what it is made of
  RmsNormOperation* norm_ = nullptr;
  bool selected_ = false, residual_selected_ = false;  // the step's rows are picked, of source_ and of the residual
  bool filled_ = false;
  Memory* shared_ = nullptr;
  RunClaims* claims_ = nullptr;
  GateKernel activation_ = nullptr;
};

}  // namespace homenode
