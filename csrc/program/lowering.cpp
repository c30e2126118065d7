#include "graph/operation.h"

#include <algorithm>

#include "graph/memory_plan.h"
#include "host/thread_pool.h"
#include "program/program.h"

namespace homenode {
namespace {

constexpr size_t kLineBytes = 128;  // lines are fetched in pairs

}  // namespace

Level Lowering::level() const { return program_.level_; }
int Lowering::threads() const { return program_.pool_->size(); }
ThreadPool* Lowering::pool() const { return program_.pool_.get(); }
const StepLimits& Lowering::limits() const { return program_.bounds_.limits; }

int Lowering::most_rows(RowKind kind) const { return homenode::most_rows(kind, limits()); }

Memory* Lowering::scratch(size_t bytes) {
  Memory* memory = program_.scratch_.emplace_back(std::make_unique<Memory>()).get();
  memory->bytes = bytes;
  return memory;
}

int Lowering::next_phase() const { return static_cast<int>(program_.phases_.size()); }

Memory* Lowering::own_scratch(size_t bytes) {
  const size_t unit = program_.homes_ ? kSmallPage : kLineBytes, part = (bytes + unit - 1) / unit * unit;
  Memory* memory = scratch(part * static_cast<size_t>(threads()));
  memory->own_bytes = part;
  return memory;
}

void Lowering::phase(Phase phase, const std::vector<Memory*>& touched) {
  const int number = static_cast<int>(program_.phases_.size());
  phase.barrier_before = !(phase.by_rows && number > 0 && program_.phases_.back().by_rows);
  groups_.push_back(number == 0 ? 0 : groups_.back() + phase.barrier_before);
  program_.phases_.push_back(std::move(phase));
  for (Memory* memory : touched) {
    if (memory->data || memory->given) continue;  // a constant, or the caller's
    if (memory->first < 0) {
      memory->first = number;
      memories_.push_back(memory);
    }
    memory->last = number;
  }
}

std::optional<Error> Lowering::place_memory(const Tensor& output) {
  Memory& result = output.value->memory;
  result.first = std::min(result.first, 0), result.last = std::max(result.last, static_cast<int>(groups_.size()) - 1);
  auto placed = place(memories_, groups_, program_.homes_ != nullptr);
  if (!placed) return placed.error();
  program_.memory_ = std::move(placed.value().pages);
  program_.own_ = std::move(placed.value().own);
  program_.settle_own();
  return {};
}

AttentionPlan* Lowering::plan(const AttentionShape& shape, int block_size) {
  for (auto& plan : program_.plans_) {
    if (plan->shape() == shape) return plan.get();
  }
  return program_.plans_.emplace_back(std::make_unique<AttentionPlan>(shape, limits(), block_size, threads())).get();
}

RunClaims* Lowering::claims() {
  if (!program_.claims_ && threads() > 1) program_.claims_ = std::make_unique<RunClaims>(pool()->groups());
  return program_.claims_.get();
}

}  // namespace homenode
