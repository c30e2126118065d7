// Windows of tokens that are pooled to one row each, and attention to these beside tokens: see Ops.pool_windows and
// PooledKeys in homenode.compute.ops.
#pragma once
#include <memory>
#include <vector>

#include "attention/pooled.h"
#include "operations/attention.h"
#include "operations/state_memory.h"

namespace homenode {

// A thread has the same columns of all sequences. What is kept of the token at position p is tap p % taps of its slot.
class PoolOperation : public Operation {
 public:
  struct Windows {
    int ratio;
    std::vector<int64_t> widths;
    bool overlap;
  };
  PoolOperation(Tensor from, std::vector<Tensor> plus, Windows of, std::shared_ptr<StateMemory> state, int in_layer,
                Tensor to)
      : x(std::move(from)),
        biases(std::move(plus)),
        windows(std::move(of)),
        memory(std::move(state)),
        layer(in_layer),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor x;
  std::vector<Tensor> biases;
  Windows windows;
  std::shared_ptr<StateMemory> memory;
  int layer;
  Tensor out;

 private:
  // Columns first .. first + count - 1 of one of the widths: values begin at `from` in x, the result at `to`.
  struct Columns {
    int64_t first, count, width, from, to;
    const float* bias;
  };
  void pool_sequence(const Step&, int sequence, const Columns&) const;
  // One column of the window whose last token is row `row` of x, at this position.
  float pooled(const Step&, size_t sequence, const Columns&, int64_t column, int token, int position) const;
};

class PooledAttentionOperation : public Operation {
 public:
  // params: layer, scale, window, sinks, value columns and what is chosen.
  // kept, in_memory: the rows of windows, and the memory they are kept in.
  PooledAttentionOperation(Tensor query, Tensor key, Tensor of_windows, std::shared_ptr<KvCache> of_tokens,
                           const AttentionParams& how, std::shared_ptr<KvCache> in_memory, const WindowRows& kept,
                           Tensor to)
      : q(std::move(query)),
        k(std::move(key)),
        pooled(std::move(of_windows)),
        cache(std::move(of_tokens)),
        window_cache(std::move(in_memory)),
        params(how),
        windows(kept),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor q, k, pooled;
  std::shared_ptr<KvCache> cache, window_cache;
  AttentionParams params;
  WindowRows windows;
  Tensor out;
};

}  // namespace homenode
