#include "kernels/operation_mixture.h"

#include <cmath>

#include "kernels/operation_linear.h"

namespace homenode {

namespace {

// The product for some tokens only.
LinearArgs of_tokens(LinearArgs a, int64_t begin, int64_t end) {
  a.x += begin * a.x_stride;
  a.out += begin * a.out_stride;
  if (a.residual) a.residual += begin * a.residual_stride;
  a.tokens = end - begin;
  return a;
}

}  // namespace

void MixtureOperation::take_over() {
  router_ = maker_of<LinearOperation>(inputs_.logits);
  if (router_) router_->taken_over = true;
}

void MixtureOperation::lower(Lowering& to) {
  if (router_ && !router_->multiplies_as_is(to.level())) {
    router_->lower(to);
    router_ = nullptr;
  }
  plan_ = std::make_unique<MixturePlan>(experts_, chosen_, normalise_, to.most_rows(RowKind::tokens), to.level());
  Memory* shared = to.scratch(plan_->shared_bytes);
  Memory* own = to.scratch(plan_->own_bytes * static_cast<size_t>(to.threads()));
  const auto arguments = [=, plan = plan_.get(), x = View(inputs_.x), logits = View(inputs_.logits), residual = View(inputs_.residual),
                          y = View(out_)](const Step& step) {
    return MixtureArgs{plan,         step.tokens,       x.row(0), x.stride(), logits.row(0), logits.stride(), residual.row(0), residual.stride(), y.row(0),
                       y.stride(), shared->data, own->data};
  };
  const auto add = [&](const char* name, void (*work)(const MixtureArgs&, int, int), bool many, std::vector<Memory*> touched) {
    touched.insert(touched.end(), {shared, own});
    to.phase({name, [=](const Step& step, int thread, int threads) { work(arguments(step), thread, threads); }, false,
              [=](const Step& step) { return many ? !mixture_is_few(step.tokens) : step.tokens > 0; }},
             touched);
  };
  Memory *x = memory_of(inputs_.x), *logits = memory_of(inputs_.logits);
  // In front of the phase that few tokens need: so it follows the norm of its own rows without a barrier.
  to.phase({"experts_route", [=, router = router_](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(step.tokens, thread, threads);
              if (router && rows.begin < rows.end) linear_multiply(of_tokens(router->arguments(step, nullptr), rows.begin, rows.end), 0, 1);
              mixture_route(arguments(step), thread, threads);
            }, true, [](const Step& step) { return !mixture_is_few(step.tokens); }},
           {router_ ? memory_of(router_->x) : x, x, logits, shared, own});
  if (router_) {
    to.phase({"router", [router = router_](const Step& step, int thread, int threads) { linear_multiply(router->arguments(step, nullptr), thread, threads); },
              false, [](const Step& step) { return step.tokens > 0 && mixture_is_few(step.tokens); }},
             {memory_of(router_->x), logits});
  }
  add("experts_gather", mixture_gather, true, {x});
  add("experts_gate_up", mixture_gate_up, false, {x, logits});
  add("experts_down", mixture_down, false, {memory_of(inputs_.residual), memory_of(out_)});
}

void AddGatedOperation::lower(Lowering& to) {
  to.phase({"add_gated", [x = View(x), y = View(y), gate = View(gate), sum = View(out), kind = out.rows](const Step& step, int thread, int threads) {
              const RowRange rows = rows_of(rows_in(kind, step), thread, threads);
              for (int r = rows.begin; r < rows.end; ++r) {
                const float scale = 1.0f / (1.0f + std::exp(-gate.row(r)[0]));
                for (int64_t c = 0; c < x.columns(); ++c) sum.row(r)[c] = x.row(r)[c] + scale * y.row(r)[c];
              }
            }, true},
           {memory_of(x), memory_of(y), memory_of(gate), memory_of(out)});
}

}  // namespace homenode
