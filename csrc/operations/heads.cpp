#include "operations/heads.h"

#include <cstring>

namespace homenode {

namespace {

constexpr size_t kLineBytes = 64;  // at a multiple of which scratch memory begins

}  // namespace

LinearHeadsOperation::LinearHeadsOperation(Tensor from, std::vector<std::shared_ptr<const Weight>> with, Tensor to)
    : x(std::move(from)), out(std::move(to)), owned_(std::move(with)) {
  for (const auto& weight : owned_) weights_.push_back(weight.get());
}

LinearArgs LinearHeadsOperation::arguments(const Step& step, size_t head, Memory* scratch) const {
  const View from(x), to(out);
  const Weight& weight = *weights_[head];
  return {from.row(0) + static_cast<int64_t>(head) * weight.columns,
          from.stride(),
          rows_in(out.rows, step),
          &weights_[head],
          1,
          nullptr,
          nullptr,
          0,
          to.row(0) + static_cast<int64_t>(head) * weight.rows,
          to.stride(),
          scratch ? reinterpret_cast<uint8_t*>(scratch->data) + head * head_bytes_ : nullptr};
}

// Each thread multiplies its rows of every head's weight: heads follow each other without a barrier.
void LinearHeadsOperation::lower(Lowering& to) {
  const LevelScope scope(to.level());
  const size_t heads = weights_.size();
  Step any;
  any.sample_rows.resize(1);
  Memory* rows = nullptr;
  std::vector<Memory*> touched{memory_of(x), memory_of(out)};
  if (linear_needs_prepare(arguments(any, 0, nullptr))) {
    const size_t bytes = linear_scratch_bytes(to.most_rows(out.rows), weights_[0]->columns, weights_.data(), 1);
    head_bytes_ = (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    rows = to.scratch(heads * head_bytes_);
    touched.push_back(rows);
    to.phase({"heads rows",
              [=, this](const Step& step, int thread, int threads) {
                for (size_t h = static_cast<size_t>(thread); h < heads; h += static_cast<size_t>(threads))
                  linear_prepare(arguments(step, h, rows), 0, 1);
              }},
             {memory_of(x), rows});
  }
  to.phase({"heads",
            [=, this](const Step& step, int thread, int threads) {
              for (size_t h = 0; h < heads; ++h) linear_multiply(arguments(step, h, rows), thread, threads);
            }},
           touched);
}

}  // namespace homenode
