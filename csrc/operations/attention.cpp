#include "operations/attention.h"

#include "operations/linear.h"

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
  const View keys(k.x);
  KvWrite write{keys.row(0), keys.stride(), nullptr, 0, cache.get(), params.layer, k.transform()};
  if (!v.value) return write;
  const View values(v);
  write.values = values.row(0), write.value_stride = values.stride();
  return write;
}

std::vector<float> RelativeBias::by_distance(int64_t heads_here) const {
  std::vector<float> found;
  if (!values.value) return found;
  const float* of = View(values).row(0);
  for (int64_t head = first; head < first + heads_here; ++head) {
    for (const int bucket : buckets) found.push_back(of[int64_t(bucket) * heads + head] * kLog2E);
  }
  return found;
}

void AttentionOperation::lower(Lowering& to) {
  const KvShape& shape = cache->shape();
  const int head_dim = shape.head_dim, kv_heads = shape.kv_heads;
  const AttentionShape key{kv_heads,
                           static_cast<int>(q.x.columns / (int64_t(kv_heads) * head_dim)),
                           head_dim,
                           params.window,
                           cache->head_groups(),
                           sampled_only,
                           params.value_columns,
                           params.window_kind,
                           cache->block_homes(),
                           params.causal,
                           params.spans};
  const int value_dim = key.value_dim();
  AttentionPlan* plan = to.plan(key, shape.block_size);
  RunClaims* claims = to.claims();
  // Whether attention is over all that a context has.
  const auto over_all = [chooses = params.chosen.value != nullptr, most = choice().most()](const Step& step) {
    return !chooses || chooses_all(step, most);
  };
  Memory* own = to.own_scratch(AttentionScratch::thread_bytes(key));
  Memory* partials = to.scratch(static_cast<size_t>(plan->partial_bytes()));
  const Kernels* table = &kernels(to.level());
  std::vector<Memory*> touched;
  if (stores()) {
    if (v.value) touched.push_back(memory_of(v));
    k.add_to(touched);
    to.phase({"kv",
              [=, this](const Step& step, int thread, int threads) {
                const RowRange rows = tokens_to_write(*cache, step, thread, threads);
                write_keys_values(write(), step, *table, rows.begin, rows.end, 0, kv_heads);
              },
              true, [=](const Step& step) { return !plan->writes_alone(step) || !over_all(step); }},
             touched);
  }
  q.add_to(touched);
  touched.insert(touched.end(), {memory_of(out), own, partials});
  const float* sinks = params.sinks.value ? View(params.sinks).row(0) : nullptr;
  const float* slopes = params.slopes.value ? View(params.slopes).row(0) : nullptr;
  const auto biases = std::make_shared<const std::vector<float>>(params.bias.by_distance(q.x.columns / head_dim));
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
                                       slopes,
                                       biases->empty() ? nullptr : biases->data(),
                                       params.bias.reach(),
                                       stores() && plan->writes_alone(step) ? &fresh : nullptr};
              attend(call, step, *plan, AttentionScratch(own->data, own->own_bytes, partials->data, value_dim), *table,
                     claims, thread);
            },
            false, params.chosen.value ? Needed(over_all) : Needed()},
           touched);
  if (params.chosen.value) lower_chosen(to, key, std::move(touched));
}

void AttentionOperation::lower_chosen(Lowering& to, const AttentionShape& shape, std::vector<Memory*> touched) {
  const size_t gathered_bytes = ChosenScratch::gathered_bytes(*cache, choice(), to.limits());
  const int threads = to.threads();
  Memory* own = to.own_scratch(ChosenScratch::own_bytes(shape, *cache));
  Memory* gathered = to.scratch(gathered_bytes);
  Memory* partials = to.scratch(ChosenScratch::partial_bytes(shape, *cache, choice(), to.limits(), threads));
  const Kernels* table = &kernels(to.level());
  touched.insert(touched.end(), {own, gathered, partials, memory_of(params.chosen)});
  const auto call = [=, this, y = View(out)] {
    const View queries(q.x);
    return AttentionCall{queries.row(0), queries.stride(), y.row(0),       y.stride(),   cache.get(),
                         params.layer,   params.scale,     params.softcap, q.transform()};
  };
  const auto chosen = [this] {
    const View positions(params.chosen);
    return ChosenTokens{positions.row(0), positions.stride(), choice()};
  };
  const auto choose = [most = choice().most()](const Step& step) { return !chooses_all(step, most); };
  const auto gathers = [=](const Step& step) {
    return gathered_bytes && threads > 1 && step.tokens <= kFewTokens && choose(step);
  };
  to.phase({"attention",  // keys that are brought together
            [=](const Step& step, int thread, int all) {
              gather_chosen(call(), chosen(), step, shape, gathered->data, thread, all);
            },
            false, gathers},
           touched);
  to.phase({"attention",
            [=](const Step& step, int thread, int all) {
              const ChosenScratch scratch{own->data + own->own_bytes * static_cast<size_t>(thread),
                                          gathers(step) ? gathered->data : nullptr,
                                          threads > 1 ? reinterpret_cast<float*>(partials->data) : nullptr};
              attend_chosen(call(), chosen(), step, shape, *table, scratch, thread, all);
            },
            false, choose},
           touched);
  to.phase({"attention",
            [=](const Step& step, int thread, int all) {
              merge_chosen(call(), chosen(), step, shape, *table, reinterpret_cast<float*>(partials->data), thread,
                           all);
            },
            false, [=](const Step& step) { return choose(step) && divides_chunks(step, shape, threads); }},
           touched);
}

}  // namespace homenode
