// Mixtures of experts: each token is multiplied with the matrices of the few experts a router chose for it.
//
// Routes are sorted by expert, so that an expert's matrices are read once for all its tokens, and matrices of experts
// without tokens not at all. Every thread multiplies its own rows of each expert's matrices: one token is work for the
// whole pool. A token's experts are added to its output in ascending order, each as one row of a product; so its value
// does not depend on the tokens beside it.
//
// Phases, a barrier between each two; every thread calls those that a step needs:
//   many tokens (more than kMoeFew)
//     moe_route    row by row: activations normalised and as the matrices want them, logits, the experts of each token
//     moe_gather   the activations of an expert's tokens beside each other
//   few tokens
//     moe_logits   every thread prepares all activations for itself and multiplies its rows of the router
//   moe_gate_up    activation(gate, up) of each token and expert
//   moe_down       the weighted sum
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/isa.h"
#include "base/status.h"
#include "linear/linear.h"

namespace homenode {

constexpr int64_t kMoeFew = 8;

// One MLP for each expert. `check_experts` says whether they fit together.
struct Experts {
  std::vector<const Weight*> gate, up, down;  // [inner, columns], [inner, columns], [columns, inner]
  // For each expert that has logits its place in these lists, or their length where it is elsewhere; empty: as they are
  std::vector<int32_t> here;
  // For each expert a vector as long as its matrix has rows; empty: none has one.
  std::vector<const float*> gate_bias = {}, up_bias = {}, down_bias = {};
  Activation activation = Activation::silu;
  bool gated = true;  // else what goes into down is the activation of up(x) alone, and gate has up's matrices
  int count() const { return static_cast<int>(gate.size()); }
  int total() const { return here.empty() ? count() : static_cast<int>(here.size()); }
  int64_t columns() const { return gate[0]->columns; }
  int64_t inner() const { return gate[0]->rows; }
};
std::optional<Error> check_experts(const Experts&);

enum class ExpertScore { softmax, sigmoid, chosen_softmax, sparsemixer, sqrt_softplus };

// How a token's experts are chosen and weighted: see homenode.compute.ops.Routing. `bias`, `scales`: a value for each
// expert that has logits, or null.
struct Routing {
  int chosen;
  ExpertScore score = ExpertScore::softmax;
  bool normalise = true;
  float epsilon = 0, scale = 1;
  int groups = 1, groups_chosen = 1;
  bool best_two = true;  // of a group's experts count, else its best one
  float jitter = 0;  // of sparsemixer
  const float* bias = nullptr;
  const float* scales = nullptr;
  // Is the order of the logits that of the choice?
  bool by_logits() const {
    return !bias && score != ExpertScore::sigmoid && score != ExpertScore::sqrt_softplus && (groups == 1 || !best_two);
  }
};

// What comes before the choice, where the MoE layer does it.
struct MoeSource {
  const Weight* router = nullptr;  // makes the logits; its matrix takes rows of float32. Null: they are there
  const float* router_bias = nullptr;  // of it, or null
  const float* norm = nullptr;  // the rows are rms_norm of x with this weight and eps; only with a router
  float eps = 0;
};

// A MoE layer and how much memory steps of at most `max_tokens` tokens need for it at a level.
struct MoePlan {
  MoePlan(Experts, MoeSource, const Routing&, int64_t max_tokens, Level);

  Experts experts;
  MoeSource source;
  Routing routing;  // `check_routing` says whether it fits
  int64_t max_tokens;
  size_t gate_row, up_row;  // bytes of a gathered row; up_row is 0 where gate and up take the same rows
  size_t shared_bytes;  // of the memory all threads share, on a 64-byte boundary
  size_t own_bytes;  // of that of one thread, a multiple of 128
  std::unique_ptr<std::atomic<uint64_t>[]> used;  // for each expert here, how many tokens it was computed for so far

  // Only one thread of a step does this; others may read at any time.
  void count(int expert, int64_t tokens) const {
    std::atomic<uint64_t>& sum = used[static_cast<size_t>(expert)];
    sum.store(sum.load(std::memory_order_relaxed) + static_cast<uint64_t>(tokens), std::memory_order_relaxed);
  }
};

struct MoeArgs {
  const MoePlan* plan;
  int64_t tokens;
  const float* x;
  int64_t x_stride;  // [tokens, columns]
  float* logits;
  int64_t logits_stride;  // [tokens, experts]
  const float* residual;
  int64_t residual_stride;  // [tokens, columns], or null for zeros
  float* out;
  int64_t out_stride;  // [tokens, columns], not the residual
  std::byte* shared;  // as the phase before left it, like `own`
  std::byte* own;  // [threads] own_bytes
  // The experts that are chosen, whatever the logits are: [tokens, chosen]; null: by the logits.
  const float* told = nullptr;
  int64_t told_stride = 0;
  int64_t routes() const { return tokens * plan->routing.chosen; }
};

inline bool moe_is_few(int64_t tokens) { return tokens <= kMoeFew; }
void moe_route(const MoeArgs&, int thread, int threads);
void moe_logits(const MoeArgs&, int thread, int threads);  // only with a router
void moe_gather(const MoeArgs&, int thread, int threads);
void moe_gate_up(const MoeArgs&, int thread, int threads);
void moe_down(const MoeArgs&, int thread, int threads);

std::optional<Error> check_routing(const Routing&, int experts);
// Floats of scratch memory that a choice takes.
inline int64_t choice_floats(const Routing& how, int experts) {
  return how.by_logits() ? how.groups : 2 * experts + how.groups;
}
// The experts of a row, in any order, and their weights. Whatever the logits are, NaN or infinite, the indices are
// different ones below `experts`. scratch: [choice_floats]. told: the experts that are chosen, perhaps one more than
// once, or null; weights are NaN where a number is none of an expert.
void choose_experts(const float* logits, int experts, const Routing&, int32_t* indices, float* weights, float* scratch,
                    const float* told = nullptr);

}  // namespace homenode
