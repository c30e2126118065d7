// The recurrence of Mamba 2, and what stands around it: a norm over groups of columns with a weight for each column,
// and the product of two rows.
#pragma once
#include <memory>

#include "graph/operation.h"
#include "operations/state_memory.h"

namespace homenode {

struct Kernels;

// How heads find what they have in common: head h of those here reads group (first + h) / per_group.
struct ScanParams {
  int layer;  // of the state memory
  int per_group;  // heads that have a group in common
  int first;  // heads of the first group here that are elsewhere
};

// The recurrence: see homenode.compute.ops.Ops.selective_scan. A thread has the same panels of all sequences, whose
// state it touched first.
class ScanOperation : public Operation {
 public:
  ScanOperation(Tensor values_inputs_outputs, Tensor steps, Tensor decay_weights, Tensor decay_biases, Tensor skips,
                const ScanParams& how, std::shared_ptr<StateMemory> state, Tensor to)
      : xbc(std::move(values_inputs_outputs)),
        dt(std::move(steps)),
        decay_weight(std::move(decay_weights)),
        decay_bias(std::move(decay_biases)),
        skip(std::move(skips)),
        params(how),
        memory(std::move(state)),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor xbc, dt, decay_weight, decay_bias, skip;
  ScanParams params;
  std::shared_ptr<StateMemory> memory;
  Tensor out;

 private:
  static constexpr int kChunk = 64;  // tokens whose decays are made at once
  const StateShape& shape() const { return memory->layers()[static_cast<size_t>(params.layer)]; }
  void compute_head(const Step&, size_t sequence, int64_t head, int64_t first_panel, int64_t past_panel,
                    const Kernels&) const;
};

}  // namespace homenode
