// The choice of the tokens that attention is over: see homenode.compute.ops.Ops.choose_tokens.
#pragma once
#include <memory>

#include "kernels/attention_chosen.h"
#include "kernels/operation.h"

namespace homenode {

// Steps of few tokens are scored chunk by chunk, so that all threads take part; of others each thread has whole tokens.
// Where every token chooses all, nothing but the keys is written.
class ChooseOperation : public Operation {
 public:
  ChooseOperation(Tensor query, Tensor weight, Tensor key, std::shared_ptr<KvCache> memory, int in_layer, int most,
                  Tensor to)
      : q(std::move(query)),
        weights(std::move(weight)),
        k(std::move(key)),
        cache(std::move(memory)),
        layer(in_layer),
        count(most),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor q, weights, k;
  std::shared_ptr<KvCache> cache;
  int layer, count;
  Tensor out;

 private:
  ScoreCall call() const;
};

}  // namespace homenode
