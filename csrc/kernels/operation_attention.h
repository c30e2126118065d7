// Attention: keys and values into the KV memory, then the work items of attention.h.
#pragma once
#include <memory>

#include "kernels/attention.h"
#include "kernels/operation.h"

namespace homenode {

class AttentionOperation : public Operation {
 public:
  AttentionOperation(Tensor query, Tensor key, Tensor value, std::shared_ptr<KvCache> memory, int of_layer, float softmax_scale, int sees, Tensor to)
      : q(std::move(query)), k(std::move(key)), v(std::move(value)), cache(std::move(memory)), layer(of_layer), scale(softmax_scale), window(sees),
        out(std::move(to)) {}
  void take_over() override;
  void lower(Lowering&) override;

  Tensor q, k, v;
  std::shared_ptr<KvCache> cache;
  int layer;
  float scale;
  int window;
  Tensor out;
};

}  // namespace homenode
