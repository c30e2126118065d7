#include "kernels/operation_attention.h"

#include "kernels/operation_linear.h"

namespace homenode {

void HeadRows::fuse_producers(int head_dim) {
  if (auto* rope = maker_of<RopeOperation>(x); rope && rope->head_dim == head_dim && !rope->adjacent) {
    rope->fused = true;
    angles = rope->angles;
    x = rope->x;
  }
  if (auto* rms_norm = maker_of<RmsNormOperation>(x); rms_norm && rms_norm->weight.columns == head_dim) {
    rms_norm->fused = true;
    norm = rms_norm->weight, eps = rms_norm->eps;
    x = rms_norm->x;
  }
}

NormRope HeadRows::transform() const {
  NormRope how;
  if (norm.value) how.norm_weight = View(norm).row(0), how.eps = eps;
  if (angles.value)
    how.angles = View(angles).row(0), how.angles_stride = angles.value->stride, how.half = angles.columns / 2;
  return how;
}

void HeadRows::add_to(std::vector<Memory*>& touched) const {
  touched.push_back(memory_of(x));
  if (angles.value) touched.push_back(memory_of(angles));
}

void AttentionOperation::fuse_producers() {
  q.fuse_producers(cache->shape().head_dim);
  if (stores()) k.fuse_producers(cache->shape().head_dim);
  for (const Tensor* x : {&q.x, &k.x, &v}) {
    if (!x->value) continue;
    if (auto* product = dynamic_cast<LinearOperation*>(x->value->made_by)) product->name = "qkv";
  }
}

KvWrite AttentionOperation::write() const {
  const View keys(k.x), values(v);
  return {keys.row(0), keys.stride(), values.row(0), values.stride(), cache.get(), params.layer, k.transform()};
}

void AttentionOperation::lower(Lowering& to) {
  const KvShape& shape = cache->shape();
  const int head_dim = shape.head_dim, kv_heads = shape.kv_heads;
  const AttentionShape key{kv_heads,
                           static_cast<int>(q.x.columns / (int64_t(kv_heads) * head_dim)),
                           head_dim,
                           params.window,
                           cache->head_groups(),
                           sampled_only};
  AttentionPlan* plan = to.plan(key, shape.block_size);
  RunClaims* claims = to.claims();
  Memory* own = to.own_scratch(AttentionScratch::thread_bytes(head_dim));
  Memory* partials = to.scratch(static_cast<size_t>(plan->partial_bytes()));
  const Kernels* table = &kernels(to.level());
  std::vector<Memory*> touched;
  if (stores()) {
    touched.push_back(memory_of(v));
    k.add_to(touched);
    to.phase({"kv",
              [=, this](const Step& step, int thread, int threads) {
                const RowRange rows = rows_of(step.tokens, thread, threads);
                write_keys_values(write(), step, *table, rows.begin, rows.end, 0, kv_heads);
              },
              true, [=](const Step& step) { return !plan->writes_alone(step); }},
             touched);
  }
  q.add_to(touched);
  touched.insert(touched.end(), {memory_of(out), own, partials});
  const float* sinks = params.sinks.value ? View(params.sinks).row(0) : nullptr;
  to.phase({"attention",
            [=, this, y = View(out)](const Step& step, int thread, int) {
              const KvWrite fresh = stores() ? write() : KvWrite{};
              const View queries(q.x);
              const AttentionCall call{queries.row(0),
                                       queries.stride(),
                                       y.row(0),
                                       y.stride(),
                                       cache.get(),
                                       params.layer,
                                       params.scale,
                                       params.softcap,
                                       q.transform(),
                                       sinks,
                                       stores() && plan->writes_alone(step) ? &fresh : nullptr};
              attend(call, step, *plan, AttentionScratch(own->data, own->own_bytes, partials->data, head_dim), *table,
                     claims, thread);
            }},
           touched);
}

}  // namespace homenode
