#include "kernels/program.h"

#include "host/team.h"

namespace homenode {

void Program::run_phases(int thread, int threads) {
  const LevelScope scope(level_);
  bool work_done = false;
  for (const Phase& phase : phases_) {
    if (phase.needed && !phase.needed(step_)) continue;
    if (work_done && phase.barrier_before) team_->barrier(thread);
    phase.work(step_, thread, threads);
    work_done = true;
  }
}

Result<Output> Program::run(const StepInput& input) {
  const std::lock_guard<std::mutex> turn(one_run_);
  if (auto error = step_.assign(input, bounds_)) return *error;
  for (auto& plan : plans_) plan->divide(step_);
  for (auto& counter : counters_) counter->store(0, std::memory_order_relaxed);
  team_->compute([this](int thread) { run_phases(thread, team_->size()); });
  const int64_t rows = output_.rows == RowKind::sampled ? step_.sampled : output_.rows == RowKind::tokens ? step_.tokens : output_.fixed_rows;
  return Output{output_.data, rows, output_.columns, output_.stride};
}

size_t Program::bytes() const { return pool_->bytes() + scratch_.bytes; }

int Program::barriers() const {
  int count = 0;
  for (size_t i = 1; i < phases_.size(); ++i) count += phases_[i].barrier_before;
  return count;
}

}  // namespace homenode
