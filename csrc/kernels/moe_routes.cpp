#include "kernels/moe_routes.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/tensor.h"

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

// How `w` wants its activations at this level, learnt from one row.
GatheredRow row_of(const Weight& w, Level level) {
  const Weight* weights[] = {&w};
  const float x = 0;
  std::vector<uint8_t> scratch(linear_scratch_bytes(1, w.columns, weights, 1));
  const LinearArgs probe{&x, row_stride(w.columns), 1, weights, 1, nullptr, nullptr, 0, nullptr, 0, scratch.data()};
  return gathered_row(rows_for(probe, w, linear_table(level)), &x);
}

}  // namespace

GatheredRow gathered_row(const ActivationRows& rows, const float* x) {
  if (rows.data != reinterpret_cast<const uint8_t*>(x)) return {rows.stride, rows.stride};
  return {static_cast<size_t>(rows.columns) * sizeof(float), static_cast<size_t>(row_stride(rows.columns)) * sizeof(float)};
}

MixtureMemory mixture_memory(std::byte* base, const Experts& experts, int chosen, int64_t max_tokens, int threads, Level level) {
  const int64_t most = max_tokens * chosen;
  const auto routes = static_cast<size_t>(most);
  MixtureMemory m{};
  m.list_length = (experts.count() + most + 15) / 16 * 16;  // no cache line has two writers
  m.inner_stride = row_stride(experts.inner());
  Carver carver(base);
  m.indices = carver.take<int32_t>(routes);
  m.weights = carver.take<float>(routes);
  m.lists = carver.take<int32_t>(static_cast<size_t>(threads) * static_cast<size_t>(m.list_length));
  m.inner = carver.take<float>(routes * static_cast<size_t>(m.inner_stride));
  m.gathered = m.gathered_up = carver.take<uint8_t>(routes * row_of(*experts.gate[0], level).stride);
  if (experts.up[0]->format != experts.gate[0]->format) m.gathered_up = carver.take<uint8_t>(routes * row_of(*experts.up[0], level).stride);
  m.bytes = carver.used();
  return m;
}

RouteList::RouteList(const MixtureMemory& m, int thread, int experts)
    : ends_(m.lists + thread * m.list_length), routes_(ends_ + experts), experts_(experts) {}

void RouteList::sort(const int32_t* indices, int64_t routes) {
  std::fill(ends_, ends_ + experts_, 0);
  for (int64_t r = 0; r < routes; ++r) ++ends_[indices[r]];
  for (int32_t e = 0, begin = 0; e < experts_; ++e) {  // now where each expert's next route goes; at last where its routes end
    const int32_t count = ends_[e];
    ends_[e] = begin;
    begin += count;
  }
  for (int64_t r = 0; r < routes; ++r) routes_[ends_[indices[r]]++] = static_cast<int32_t>(r);
}

void choose_experts(const float* logits, int experts, int chosen, bool normalise, int32_t* indices, float* weights) {
  int found = 0;
  for (int e = 0; e < experts; ++e) {
    int place = found < chosen ? found++ : chosen;
    for (; place > 0 && logits[e] > weights[place - 1]; --place) {
      if (place == chosen) continue;
      weights[place] = weights[place - 1];
      indices[place] = indices[place - 1];
    }
    if (place == chosen) continue;
    weights[place] = logits[e];
    indices[place] = e;
  }
  const Kernels& level = kernels(current_level());
  const float largest = weights[0];
  level.exponentials(weights, weights, chosen, largest, 1);
  double total = 0;
  if (normalise) {
    for (int i = 0; i < chosen; ++i) total += weights[i];
  } else {
    total = level.sum_exponentials(logits, experts, largest, 1);
  }
  for (int i = 0; i < chosen; ++i) weights[i] = static_cast<float>(weights[i] / total);
}

}  // namespace homenode
