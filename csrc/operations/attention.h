// Attention: keys and values into the KV memory, then the work items of attention/attention.h.
#pragma once
#include <memory>
#include <vector>

#include "attention/chosen.h"
#include "graph/operation.h"

namespace homenode {

// Queries or keys, and the norm and rotation of each head that are left to whoever loads it.
struct HeadRows {
  explicit HeadRows(const Tensor& made) : x(made) {}
  // Computes the operations that made x where a head is loaded, instead of as phases of their own.
  void fuse_producers(int head_dim);
  NormRope transform() const;
  // What a phase reads that loads heads.
  void add_to(std::vector<Memory*>& touched) const;

  Tensor x, norm, angles;  // norm, angles: empty where there is none
  float eps = 0;
};

// What is added to scores by how far keys are from queries: see homenode.compute.ops.RelativeBias.
struct RelativeBias {
  Tensor values;             // [buckets * heads]; empty: nothing is added
  std::vector<int> buckets;  // of distances -reach .. reach
  int heads = 0, first = 0;  // of the whole model, and which of them is the first here

  int reach() const { return static_cast<int>(buckets.size()) / 2; }
  // [heads_here, 2 * reach + 1] in base 2, once the values are there.
  std::vector<float> by_distance(int64_t heads_here) const;
};

// How a query's scores are made: see homenode.compute.ops.Ops.attention.
struct AttentionParams {
  int layer;         // of the KV memory
  float scale;
  int window = 0;    // keys that a query sees, its own among them; 0: all
  float softcap = 0; // 0: none
  Tensor sinks = {}; // a score for each query head; may be empty
  int value_columns = 0;  // values are the first so many elements of keys; 0: they are beside them
  Tensor chosen = {};     // of each token the blocks it attends to, for each KV head; may be empty
  int chosen_block = 1;   // positions of each
  Tensor slopes = {};     // of each query head; may be empty
  WindowKind window_kind = WindowKind::sliding;
  bool causal = true;     // a query sees keys up to its own; else all of its sequence
  bool spans = false;     // a query sees the step's span of its token besides
  RelativeBias bias = {};
};

class AttentionOperation : public Operation {
 public:
  AttentionOperation(const Tensor& query, const Tensor& key, Tensor value, std::shared_ptr<KvCache> memory,
                     const AttentionParams& how, Tensor to)
      : q(query), k(key), v(std::move(value)), cache(std::move(memory)), params(how), out(std::move(to)) {}

  // Whether it has keys, and values that are beside them, to write; without, k and v are empty handles.
  bool stores() const { return k.x.value != nullptr; }
  // Norms and rotations of heads are done where heads are loaded.
  void fuse_producers() override;
  // Keys and values are written by the work items where each is read by one alone, else in a phase before.
  void lower(Lowering&) override;

  HeadRows q, k;
  Tensor v;
  std::shared_ptr<KvCache> cache;
  AttentionParams params;
  Tensor out;
  bool sampled_only = false;  // the reader of the result selects the rows of sampled tokens

 private:
  KvWrite write() const;
  Choice choice() const {
    return {static_cast<int>(params.chosen.columns) / cache->shape().kv_heads, params.chosen_block};
  }
  // Where not all positions are chosen.
  void lower_chosen(Lowering&, const AttentionShape&, std::vector<Memory*> touched);
};

}  // namespace homenode
