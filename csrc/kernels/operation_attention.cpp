#include "kernels/operation_attention.h"

#include "kernels/operation_linear.h"

namespace homenode {

void AttentionOperation::take_over() {
  for (const Tensor* x : {&q, &k, &v}) {
    if (auto* product = dynamic_cast<LinearOperation*>(x->value->made_by)) product->name = "qkv";
  }
}

void AttentionOperation::lower(Lowering& to) {
  const KvShape& shape = cache->shape();
  const int head_dim = shape.head_dim, kv_heads = shape.kv_heads;
  const AttentionShape key{kv_heads, static_cast<int>(q.columns / (int64_t(kv_heads) * head_dim)), head_dim, window};
  AttentionPlan* plan = to.plan(key, shape.block_size);
  std::atomic<int>* next = to.counter();
  Memory* scratch = to.scratch(AttentionScratch::bytes(to.threads(), plan->partials(), head_dim));
  to.phase({"kv", [=, this, k = View(k), v = View(v)](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.tokens, thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                const auto i = static_cast<size_t>(r);
                for (int h = 0; h < kv_heads; ++h) {
                  cache->put(layer, step.token_block[i], step.token_slot[i], h, k.row(r) + h * head_dim, v.row(r) + h * head_dim);
                }
              }
            }, true},
           {memory_of(k), memory_of(v)});
  to.phase({"attention", [=, this, q = View(q), y = View(out), table = &kernels(to.level())](const Step& step, int thread, int threads) {
              const AttentionCall call{q.row(0), q.stride(), y.row(0), y.stride(), cache.get(), layer, scale};
              attend(call, step, *plan, AttentionScratch(scratch->data, threads, head_dim), *table, *next, thread);
            }},
           {memory_of(q), memory_of(out), scratch});
}

}  // namespace homenode
