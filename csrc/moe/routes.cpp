#include "moe/routes.h"

#include <algorithm>
#include <cstring>

#include "graph/tensor.h"
#include "kernels/kernels.h"

namespace homenode {
namespace {

// Hands out pieces of memory that start on cache lines; without a base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(size_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// Routes of at most so many tokens and their activations.
void carve_routed(Carver& from, const MoePlan& plan, int64_t tokens, MoeMemory& m) {
  const auto routes = static_cast<size_t>(tokens * plan.routing.chosen);
  const Weight* inputs[] = {plan.experts.gate[0], plan.experts.up[0], plan.source.router};
  m.indices = from.take<int32_t>(routes);
  m.weights = from.take<float>(routes);
  m.prepared = from.take<uint8_t>(
      linear_scratch_bytes(tokens, plan.experts.columns(), inputs, plan.source.router ? 3 : 2, plan.source.norm));
  m.gathered = m.gathered_up = from.take<uint8_t>(routes * plan.gate_row);
  if (plan.up_row) m.gathered_up = from.take<uint8_t>(routes * plan.up_row);
}

size_t carve_shared(std::byte* base, const MoePlan& plan, MoeMemory& m) {
  Carver from(base);
  m.inner = from.take<uint8_t>(linear_scratch_bytes(plan.max_tokens * plan.routing.chosen, plan.experts.inner(),
                                                    plan.experts.down.data(), 1, true));
  carve_routed(from, plan, plan.max_tokens, m);
  return from.used();
}

// With room for the routes of few tokens, which are then not the shared ones.
size_t carve_own(std::byte* base, const MoePlan& plan, bool few, MoeMemory& m) {
  Carver from(base);
  m.list = RouteList(from.take<int32_t>(RouteList::length(plan.experts.count(), plan.max_tokens * plan.routing.chosen)),
                     plan.experts.count());
  m.choice = from.take<float>(static_cast<size_t>(choice_floats(plan.routing, plan.experts.total())));
  if (few) carve_routed(from, plan, std::min(kMoeFew, plan.max_tokens), m);
  return from.used();
}

struct RowBytes {
  size_t used, stride;
};

// Of a row of x as a weight's kernel wants it: how many bytes there are, and from row to row when rows are gathered.
RowBytes bytes_of(const ActivationRows& rows, const float* x) {
  if (rows.data != reinterpret_cast<const uint8_t*>(x)) return {rows.stride, rows.stride};
  return {static_cast<size_t>(rows.columns) * sizeof(float),
          static_cast<size_t>(row_stride(rows.columns)) * sizeof(float)};
}

// The same for a weight at a level, learnt from one row.
size_t gathered_bytes(const Weight& w, const MoeSource& source, Level level) {
  const Weight* weights[] = {&w};
  const float x = 0;
  std::vector<uint8_t> scratch(linear_scratch_bytes(1, w.columns, weights, 1, source.norm));
  LinearArgs probe{&x, row_stride(w.columns), 1, weights, 1, nullptr, nullptr, 0, nullptr, 0, scratch.data()};
  probe.norm = source.norm;
  return bytes_of(rows_for(probe, w, linear_table(level)), &x).stride;
}

}  // namespace

MoePlan::MoePlan(Experts all, MoeSource from, const Routing& how, int64_t most, Level level)
    : experts(std::move(all)),
      source(from),
      routing(how),
      max_tokens(most),
      used(std::make_unique<std::atomic<uint64_t>[]>(experts.gate.size())) {
  const Weight &gate = *experts.gate[0], &up = *experts.up[0];
  gate_row = gathered_bytes(gate, source, level);
  up_row = gate.format == up.format ? 0 : gathered_bytes(up, source, level);
  MoeMemory unused{nullptr, nullptr, nullptr, nullptr, nullptr, {nullptr, 0}, nullptr, nullptr};
  shared_bytes = carve_shared(nullptr, *this, unused);
  own_bytes = (carve_own(nullptr, *this, true, unused) + 127) / 128 * 128;  // lines are fetched in pairs
}

MoeMemory memory_of(const MoeArgs& a, int thread) {
  MoeMemory m{nullptr, nullptr, nullptr, nullptr, nullptr, {nullptr, 0}, nullptr, nullptr};
  carve_shared(a.shared, *a.plan, m);
  carve_own(a.own + static_cast<size_t>(thread) * a.plan->own_bytes, *a.plan, moe_is_few(a.tokens), m);
  return m;
}

void RouteList::sort(const int32_t* indices, int64_t routes) {
  std::fill(ends_, ends_ + experts_ + 1, 0);
  for (int64_t r = 0; r < routes; ++r) ++ends_[indices[r]];
  // Now where each expert's next route goes; at last where its routes end
  for (int32_t e = 0, begin = 0; e <= experts_; ++e) {
    const int32_t count = ends_[e];
    ends_[e] = begin;
    begin += count;
  }
  for (int64_t r = 0; r < routes; ++r) routes_[ends_[indices[r]]++] = static_cast<int32_t>(r);
}

void choose_all(const MoeArgs& a, const MoeMemory& m, int64_t begin, int64_t end) {
  const MoePlan& plan = *a.plan;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = t * plan.routing.chosen;
    choose_experts(a.logits + t * a.logits_stride, plan.experts.total(), plan.routing, m.indices + first,
                   m.weights + first, m.choice, a.told ? a.told + t * a.told_stride : nullptr);
    if (plan.experts.here.empty()) continue;
    for (int64_t r = first; r < first + plan.routing.chosen; ++r)
      m.indices[r] = plan.experts.here[static_cast<size_t>(m.indices[r])];
  }
}

MoeInput::MoeInput(const MoeArgs& a, const MoeMemory& m)
    : call_(a),
      memory_(m),
      weights_{a.plan->experts.gate[0], a.plan->experts.up[0], a.plan->source.router},
      args_{a.x, a.x_stride, a.tokens, weights_,  a.plan->source.router ? 3 : 2, nullptr, nullptr,
            0,   nullptr,    0,        m.prepared},
      table_(linear_table(current_level())) {
  args_.norm = a.plan->source.norm;
  args_.eps = a.plan->source.eps;
}

void MoeInput::multiply_router(int64_t begin, int64_t end, int thread, int threads) const {
  const ActivationRows rows = rows_for(args_, *weights_[2], table_);
  const auto* first = reinterpret_cast<const float*>(rows.data + static_cast<size_t>(begin) * rows.stride);
  const float* const bias = call_.plan->source.router_bias;
  linear_multiply({first, static_cast<int64_t>(rows.stride / sizeof(float)), end - begin, &weights_[2], 1, &bias,
                   nullptr, 0, call_.logits + begin * call_.logits_stride, call_.logits_stride, nullptr},
                  thread, threads);
}

void MoeInput::gather(int64_t begin, int64_t end) const {
  gather_for(0, begin, end, memory_.gathered);
  if (memory_.gathered_up != memory_.gathered) gather_for(1, begin, end, memory_.gathered_up);
}

void MoeInput::gather_for(int which, int64_t begin, int64_t end, uint8_t* to) const {
  const ActivationRows rows = rows_for(args_, *weights_[which], table_);
  const RowBytes bytes = bytes_of(rows, call_.x);
  for (int64_t slot = begin; slot < end; ++slot) {
    const int64_t token = memory_.list.route(slot) / call_.plan->routing.chosen;
    std::memcpy(to + static_cast<size_t>(slot) * bytes.stride, rows.data + static_cast<size_t>(token) * rows.stride,
                bytes.used);
  }
}

ActivationRows MoeInput::by_slot(int which, const uint8_t* gathered) const {
  ActivationRows rows = rows_for(args_, *weights_[which], table_);
  rows.stride = call_.tokens == 1 ? 0 : bytes_of(rows, call_.x).stride;
  if (call_.tokens > 1) rows.data = gathered;
  rows.readable = call_.tokens > 1 ? call_.routes() : 1;
  return rows;
}

LinearArgs inner_product(const MoeArgs& a, const MoeMemory& m) {
  LinearArgs args{nullptr, 0, a.routes(), a.plan->experts.down.data(), 1, nullptr, nullptr, 0, nullptr, 0, m.inner};
  args.filled = true;
  return args;
}

}  // namespace homenode
