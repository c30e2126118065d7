// Appends operations to a program. The calls mirror homenode.compute.ops.Ops; every Error is a mistake of the caller.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "linear/linear.h"
#include "operations/attention.h"
#include "operations/delta.h"
#include "operations/moe.h"
#include "operations/scan.h"
#include "program/program.h"
#include "weights/stored_table.h"

namespace homenode {

class Recorder {
 public:
  // fuse: let operations take over others (see graph/operation.h). The values are the same without.
  // group: the ranks that sums and gathers are over; null: this one alone. homes: of the pool's threads; null: they
  // have the same.
  Recorder(std::shared_ptr<ThreadPool>, Level, const StepLimits&, bool fuse = true,
           std::shared_ptr<RankGroup> group = nullptr, std::shared_ptr<const Homes> homes = nullptr);

  // Rows of x are replaced by those that a step brings; the result is x itself.
  Result<Tensor> place_rows(const Tensor& x, int64_t first = 0, int64_t of_columns = 0, bool adds = false);
  // The table holds rows `first` on, of `vocabulary` in all (0: it holds all); ids elsewhere give zeros.
  Result<Tensor> embedding(std::shared_ptr<const Weight> table, int64_t first = 0, int64_t vocabulary = 0);
  Result<Tensor> position_rows(std::shared_ptr<const Weight> table, int64_t first);
  Result<Tensor> type_rows(std::shared_ptr<const Weight> table);
  // otherwise: the row of ids past the table; none: they are refused.
  Result<Tensor> stored_rows(std::shared_ptr<const StoredTable> table, std::optional<int> otherwise);
  Result<Tensor> received(int64_t columns);
  // A row operation: see recorder/row_operations.h.
  template <class Named>
  Result<Tensor> rows(Named operation);
  Result<Tensor> sum(const Tensor& x);
  Result<Tensor> gather(const Tensor& x, std::vector<int64_t> widths);
  Result<Tensor> rms_norm(const Tensor& x, const Tensor& weight, float eps);
  // biases: one for each weight (empty handles for none), or none at all.
  Result<Tensor> linear(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights,
                        const std::vector<Tensor>& biases, const Tensor* residual, Precision = Precision::usual);
  // Of a head's columns of x with the weight of the head.
  Result<Tensor> linear_heads(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights);
  // The adapter of each token's sequence: a handle for an index.
  Tensor adapter_index();
  // weights: null where no row is multiplied. residual: null, or rows whose columns from `first` on get the products.
  Result<Tensor> linear_indexed(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights,
                                const Tensor& index, const Tensor* residual, int64_t first);
  Result<std::vector<Tensor>> split(const Tensor& x, std::span<const int64_t> widths);
  Result<Tensor> rope_angles(std::vector<float> inverse_frequencies, float scale, int behind = 0,
                             std::vector<int> axes = {});
  Result<Tensor> rope(const Tensor& x, const Tensor& angles, int head_dim, bool adjacent = false);
  // k and v: empty handles where nothing is stored; v also where the values are columns of k.
  Result<Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, std::shared_ptr<KvCache> cache,
                           const AttentionParams&);
  // A handle for AttentionParams::chosen.
  Result<Tensor> choose_tokens(const Tensor& q, const Tensor& weights, const Tensor& k, std::shared_ptr<KvCache> cache,
                               int layer, int count, int ratio = 1);
  // Attention to a window and to rows of pooled windows of `ratio` tokens, which are stored in a layer of their memory.
  Result<Tensor> attention_pooled(const Tensor& q, const Tensor& k, std::shared_ptr<KvCache> cache,
                                  const AttentionParams&, const Tensor& rows, std::shared_ptr<KvCache> window_cache,
                                  int layer, int ratio);
  Result<Tensor> choose_blocks(const Tensor& q, const Tensor& k, std::shared_ptr<KvCache> cache, int layer,
                               const Choice&, int local);
  // up: an empty handle where gate_up has both halves. form: gelu or gelu_erf.
  Result<Tensor> silu_mul(const Tensor& gate_up, const Tensor& up = {}) { return gated(gate_up, up, Activation::silu); }
  Result<Tensor> gelu_mul(const Tensor& gate_up, const Tensor& up = {}, Activation form = Activation::gelu) {
    return gated(gate_up, up, form);
  }
  Result<Tensor> activate(const Tensor& x, Activation);
  Result<Tensor> add(const Tensor& x, const Tensor& y);
  // residual, choice_bias, chosen: may be null. Pointers in the routing come from choice_bias and the weights.
  Result<Tensor> moe(const Tensor& x, const Tensor& logits, ExpertWeights, Routing, const Tensor* residual,
                     const Tensor* choice_bias = nullptr, const Tensor* chosen = nullptr);
  // biases: empty for none.
  Result<Tensor> short_convolution(const Tensor& x, const std::vector<Tensor>& weights,
                                   const std::vector<Tensor>& biases, std::shared_ptr<StateMemory>, int layer,
                                   bool silu);
  Result<Tensor> pool_windows(const Tensor& x, const std::vector<Tensor>& biases, std::shared_ptr<StateMemory>,
                              int layer, int ratio, std::vector<int64_t> widths, bool overlap);
  Result<Tensor> delta_rule(const Tensor& qkv, const Tensor& beta, const Tensor& decay, const Tensor& decay_weight,
                            const Tensor& decay_bias, std::shared_ptr<StateMemory>, const DeltaParams&);
  Result<Tensor> selective_scan(const Tensor& xbc, const Tensor& dt, const Tensor& decay_weight,
                                const Tensor& decay_bias, const Tensor& skip, std::shared_ptr<StateMemory>,
                                const ScanParams&);
  Result<Tensor> select(const Tensor& x);

  // The finished program; nothing can be recorded after.
  Result<std::shared_ptr<Program>> finish(const Tensor& output);

 private:
  Tensor make(int64_t columns, RowKind rows) const;
  void name_head();
  // Appends an operation that makes `out` of these.
  Tensor append(std::unique_ptr<Operation>, const Tensor& out, std::span<const Tensor> inputs);
  Result<Tensor> gated(const Tensor& gate_up, const Tensor& up, Activation);
  std::optional<Error> check_input(const Tensor& x, const char* operation);
  std::optional<Error> check_linear(const Tensor& x, const std::vector<std::shared_ptr<const Weight>>& weights,
                                    const std::vector<Tensor>& biases);
  std::optional<Error> check_indexed(const Tensor& x, const std::vector<std::shared_ptr<const Weight>>& weights,
                                     const Tensor& index);
  std::optional<Error> check_state(const StateMemory*, int layer, const char* operation);
  std::optional<Error> check_cache(const KvCache&, int layer);
  std::optional<Error> check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const KvCache& cache,
                                       const AttentionParams&);

  std::shared_ptr<Program> program_;
  std::shared_ptr<const void> home_;
  bool fuse_;
};

inline Error misuse(std::string message) { return Error{Fault::user, 0, std::move(message)}; }

// What becomes of a constant's rows in a step: it stands for the step's tokens.
inline RowKind rows_made_of(const Tensor& x) { return x.rows == RowKind::fixed ? RowKind::tokens : x.rows; }

}  // namespace homenode
