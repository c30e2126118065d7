// Mixtures of experts: each token is multiplied with the matrices of the few experts a router chose for it.
//
// Routes are sorted by expert, so that an expert's matrices are read once for all its tokens, and matrices of experts without tokens not at all.
// Every thread multiplies its own rows of each expert's matrices: one token is work for the whole team. A token's experts are added to its output
// in ascending order, each as one row of a product; so its value does not depend on the tokens beside it.
//
// Phases, a barrier between each two; every thread calls all that are needed:
//   mixture_route      the experts of each token; activations as the matrices want them (see linear_prepare)
//   mixture_gather     the activations of an expert's tokens beside each other; not needed for one token
//   mixture_gate_up    silu(gate) * up of each token and expert
//   mixture_prepare    these as the matrices want them; not needed where that is float32
//   mixture_down       the weighted sum
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/isa.h"
#include "base/status.h"
#include "kernels/linear.h"

namespace homenode {

// One gated MLP for each expert. `check_experts` says whether they fit together.
struct Experts {
  std::vector<const Weight*> gate, up, down;  // [inner, columns], [inner, columns], [columns, inner]
  int count() const { return static_cast<int>(gate.size()); }
  int64_t columns() const { return gate[0]->columns; }
  int64_t inner() const { return gate[0]->rows; }
};
std::optional<Error> check_experts(const Experts&);

// What the phases hand on to each other besides the scratch memory. Route r is choice r % chosen of token r / chosen.
struct MixtureMemory {
  int32_t* indices;      // [routes] experts
  float* weights;        // [routes]
  int32_t* lists;        // [threads, list_length], see RouteList in moe_routes.h
  uint8_t* gathered;     // [routes] activations for gate and up
  uint8_t* gathered_up;  // the same for up where it wants others, else equal to `gathered`
  float* inner;          // [routes, inner_stride]
  int64_t list_length, inner_stride;
  size_t bytes;
};
// Its parts for steps of at most `max_tokens` tokens, laid out from `base` on, which is 64-byte aligned, or null to learn how many bytes it takes.
MixtureMemory mixture_memory(std::byte* base, const Experts&, int chosen, int64_t max_tokens, int threads, Level);

struct MixtureArgs {
  const Experts* experts;
  int chosen;                              // experts of a token, at most as many as there are
  bool normalise;                          // their weights add up to 1
  int64_t tokens;
  const float* x; int64_t x_stride;        // [tokens, columns]
  const float* logits; int64_t logits_stride;      // [tokens, experts]
  const float* residual; int64_t residual_stride;  // [tokens, columns]
  float* out; int64_t out_stride;          // [tokens, columns], not the residual
  const MixtureMemory* memory;             // like the scratch memory as the phase before left it
  uint8_t* scratch;                        // mixture_scratch_bytes(...), 64-byte aligned
  int64_t routes() const { return tokens * chosen; }
};

size_t mixture_scratch_bytes(const Experts&, int chosen, int64_t max_tokens);

void mixture_route(const MixtureArgs&, int thread, int threads);
inline bool mixture_needs_gather(const MixtureArgs& a) { return a.tokens > 1; }
void mixture_gather(const MixtureArgs&, int thread, int threads);
void mixture_gate_up(const MixtureArgs&, int thread, int threads);
bool mixture_needs_prepare(const MixtureArgs&);
void mixture_prepare(const MixtureArgs&, int thread, int threads);
void mixture_down(const MixtureArgs&, int thread, int threads);

// The `chosen` largest of a row's logits, of equal ones the lowest index first, and their weights: softmax over all, or over the chosen ones.
// Whatever the logits are, NaN or infinite, the indices are different ones below `experts`.
void choose_experts(const float* logits, int experts, int chosen, bool normalise, int32_t* indices, float* weights);

}  // namespace homenode
