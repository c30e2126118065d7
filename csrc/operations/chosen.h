// The choice of the tokens that attention is over: see homenode.compute.ops.Ops.choose_tokens and choose_blocks.
#pragma once
#include <memory>

#include "attention/token_scores.h"
#include "graph/operation.h"

namespace homenode {

// Steps of few tokens are scored chunk by chunk, so that all threads take part; of others each thread has whole tokens.
// Where every token chooses all, nothing but the keys is written.
class ChooseOperation : public Operation {
 public:
  // An empty handle for the weights: each head chooses blocks by itself, the last `local_blocks` in any case.
  ChooseOperation(Tensor query, Tensor weight, Tensor key, std::shared_ptr<KvCache> memory, int in_layer, Choice how,
                  int local_blocks, Tensor to)
      : q(std::move(query)),
        weights(std::move(weight)),
        k(std::move(key)),
        cache(std::move(memory)),
        layer(in_layer),
        choice(how),
        local(local_blocks),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor q, weights, k;
  std::shared_ptr<KvCache> cache;
  int layer;
  Choice choice;
  int local;
  Tensor out;
  WindowRows windows{};  // with a ratio of the choice above 1: what its positions are of

 private:
  const WindowRows* of_windows() const { return choice.ratio > 1 ? &windows : nullptr; }
  ScoreCall call() const;
  // Of chunks first .. past - 1 of a token into scores [rows_of_scores(), longest].
  void score(const Step&, const Kernels&, const TokenChunks&, float* scores, int64_t longest, std::byte* scratch) const;
  int heads() const { return static_cast<int>(q.columns / k.columns); }
  int rows_of_scores() const { return weights.value ? 1 : heads(); }
};

}  // namespace homenode
