// Attention: keys and values into the KV memory, then the work items of attention.h.
#pragma once
#include <memory>

#include "kernels/attention.h"
#include "kernels/operation.h"

namespace homenode {

// Queries or keys, and the norm and rotation of each head that are left to whoever loads it.
struct HeadRows {
  explicit HeadRows(const Tensor& made) : x(made) {}
  // Takes over the operations that made x.
  void take_over(int head_dim);
  NormRope transform() const;
  // What a phase reads that loads heads.
  void add_to(std::vector<Memory*>& touched) const;

  Tensor x, norm, angles;  // norm, angles: empty where there is none
  float eps = 0;
};

class AttentionOperation : public Operation {
 public:
  AttentionOperation(const Tensor& query, const Tensor& key, Tensor value, std::shared_ptr<KvCache> memory, int of_layer, float softmax_scale, int sees,
                     float cap, Tensor to)
      : q(query), k(key), v(std::move(value)), cache(std::move(memory)), layer(of_layer), scale(softmax_scale), window(sees), softcap(cap), out(std::move(to)) {}

  // Norms and rotations of heads are done where heads are loaded.
  void take_over() override;
  // Keys and values are written by the work items where each is read by one alone, else in a phase before.
  void lower(Lowering&) override;

  HeadRows q, k;
  Tensor v;
  std::shared_ptr<KvCache> cache;
  int layer;
  float scale;
  int window;
  float softcap;
  Tensor out;
  bool sampled_only = false;  // the reader of the result selects the rows of sampled tokens

 private:
  KvWrite write() const;
};

}  // namespace homenode
