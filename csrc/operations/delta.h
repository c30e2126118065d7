// Operations with state memory: the short convolution and the gated delta rule; and the gates around them.
#pragma once
#include <memory>
#include <vector>

#include "graph/operation.h"
#include "operations/state_memory.h"

namespace homenode {

struct Kernels;

// Each channel by itself: see homenode.compute.ops.Ops.short_convolution. A thread has the same channels of all
// sequences.
class ConvolutionOperation : public Operation {
 public:
  // by: [taps + 1, channels] weights, those of the oldest input first; plus: [channels] biases, or none.
  ConvolutionOperation(Tensor from, std::vector<float> by, std::vector<float> plus, bool with_silu,
                       std::shared_ptr<StateMemory> state, int in_layer, Tensor to)
      : x(std::move(from)),
        weights(std::move(by)),
        biases(std::move(plus)),
        silu(with_silu),
        memory(std::move(state)),
        layer(in_layer),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor x;
  std::vector<float> weights, biases;
  bool silu;
  std::shared_ptr<StateMemory> memory;
  int layer;
  Tensor out;

 private:
  void convolve_sequence(const Step&, int sequence, const Kernels&, int64_t first, int64_t count) const;
};

// How value heads find their key head, and the constants of their gates.
struct DeltaParams {
  int layer;         // of the state memory
  int key_heads;
  bool interleaved;  // value head h reads key head h % key_heads; else key head h / (value heads / key_heads)
  float gain;        // of the share of a token's value that enters the state
};

// The gated delta rule: see homenode.compute.ops.Ops.delta_rule. A thread has the same panels of all sequences, whose
// state it touched first.
class DeltaOperation : public Operation {
 public:
  DeltaOperation(Tensor queries_keys_values, Tensor betas, Tensor decays, Tensor decay_weights, Tensor decay_biases,
                 const DeltaParams& how, std::shared_ptr<StateMemory> state, Tensor to)
      : qkv(std::move(queries_keys_values)),
        beta(std::move(betas)),
        decay(std::move(decays)),
        decay_weight(std::move(decay_weights)),
        decay_bias(std::move(decay_biases)),
        params(how),
        memory(std::move(state)),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor qkv, beta, decay, decay_weight, decay_bias;
  DeltaParams params;
  std::shared_ptr<StateMemory> memory;
  Tensor out;

 private:
  // Tokens whose queries and keys are made at once.
  static constexpr int kChunk = 32;
  struct Chunk {
    float *q, *k, *decay, *beta;
    int first, tokens;  // rows of the step
  };
  const StateShape& shape() const { return memory->layers()[static_cast<size_t>(params.layer)]; }
  bool by_row() const { return decay.columns != shape().heads; }
  // Of a head and token.
  size_t decays() const { return by_row() ? static_cast<size_t>(shape().key_width) : 1; }
  void compute_head(const Step&, size_t sequence, int64_t head, int64_t first_panel, int64_t past_panel, const Kernels&,
                    float* scratch) const;
  void load(const Chunk&, int64_t head, const Kernels&) const;
  void compute_panel(const Step&, size_t sequence, const Chunk&, int64_t panel, const Kernels&) const;
};

}  // namespace homenode
