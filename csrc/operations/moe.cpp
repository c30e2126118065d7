#include "operations/moe.h"

#include <cmath>

#include "operations/linear.h"

namespace homenode {

void MoeOperation::fuse_producers() {
  auto* router = maker_of<LinearOperation>(inputs_.logits);
  if (!router || !router->only_weight() || router->x.value != inputs_.x.value || !inputs_.x.whole()) return;
  router->fused = true;
  router_ = router;
  // The norm, if nobody reads its rows but the router and the experts.
  auto* norm = dynamic_cast<RmsNormOperation*>(inputs_.x.value->made_by);
  if (!norm || inputs_.x.value->uses != 2 || norm->weight.columns != inputs_.x.columns) return;
  norm->fused = true;
  norm_ = norm;
}

// Gives back what cannot be done on the way at this level.
void MoeOperation::check_router(Lowering& to) {
  if (!router_ || router_->multiplies_as_is(to.level())) return;
  if (norm_) norm_->lower(to);
  router_->lower(to);
  norm_ = nullptr, router_ = nullptr;
}

void MoeOperation::lower(Lowering& to) {
  check_router(to);
  MoeSource source;
  if (router_) source.router = router_->only_weight(), source.router_bias = router_->only_bias();
  if (norm_) source.norm = View(norm_->weight).row(0), source.eps = norm_->eps;
  const RowKind kind = out_.rows;
  plan_ = std::make_unique<MoePlan>(experts_, source, routing_, to.most_rows(kind), to.level());
  Memory* shared = to.scratch(plan_->shared_bytes);
  Memory* own = to.own_scratch(plan_->own_bytes);
  plan_->own_bytes = own->own_bytes;
  const Tensor& rows = norm_ ? norm_->x : inputs_.x;
  const auto arguments = [=, plan = plan_.get(), x = View(rows), logits = View(inputs_.logits),
                          residual = View(inputs_.residual), told = View(inputs_.chosen),
                          y = View(out_)](const Step& step) {
    const bool adds = residual.exists(), tells = told.exists();
    return MoeArgs{plan,
                   rows_in(kind, step),
                   x.row(0),
                   x.stride(),
                   logits.row(0),
                   logits.stride(),
                   adds ? residual.row(0) : nullptr,
                   adds ? residual.stride() : 0,
                   y.row(0),
                   y.stride(),
                   shared->data,
                   own->data,
                   tells ? told.row(0) : nullptr,
                   tells ? told.stride() : 0};
  };
  enum class When { many, few, always };
  const auto add = [&](const char* name, void (*work)(const MoeArgs&, int, int), When when, bool by_rows,
                       std::vector<Memory*> touched) {
    touched.insert(touched.end(), {shared, own});
    to.phase({name, [=](const Step& step, int thread, int threads) { work(arguments(step), thread, threads); }, by_rows,
              [=](const Step& step) {
                const int count = rows_in(kind, step);
                return count > 0 && (when == When::always || moe_is_few(count) == (when == When::few));
              }},
             touched);
  };
  Memory *x = memory_of(rows), *logits = memory_of(inputs_.logits);
  std::vector<Memory*> read = {x, logits};
  if (inputs_.chosen.value) read.push_back(memory_of(inputs_.chosen));
  // By rows and first, so that it follows what makes its own rows without a barrier.
  add("experts_route", moe_route, When::many, true, read);
  if (router_) add("router", moe_logits, When::few, false, {x, logits});
  add("experts_gather", moe_gather, When::many, false, {x});
  add("experts_gate_up", moe_gate_up, When::always, false, read);
  std::vector<Memory*> rows_of_sum = {memory_of(out_)};
  if (inputs_.residual.value) rows_of_sum.insert(rows_of_sum.begin(), memory_of(inputs_.residual));
  add("experts_down", moe_down, When::always, false, rows_of_sum);
}

std::vector<uint64_t> MoeOperation::uses() const {
  std::vector<uint64_t> counts(static_cast<size_t>(experts_.total()));
  for (size_t e = 0; e < counts.size(); ++e) {
    const size_t place = experts_.here.empty() ? e : static_cast<size_t>(experts_.here[e]);
    if (plan_ && place < experts_.gate.size()) counts[e] = plan_->used[place].load(std::memory_order_relaxed);
  }
  return counts;
}

}  // namespace homenode
