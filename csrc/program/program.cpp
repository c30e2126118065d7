#include "program/program.h"

#include <algorithm>
#include <cstring>

#include "host/rank_group.h"
#include "host/thread_pool.h"
#include "linear/linear.h"
#include "operations/moe.h"

namespace homenode {

void Program::run_phases(int thread, int threads) {
  const LevelScope scope(level_);
  PhaseClock* clock = thread == 0 ? clock_.get() : nullptr;
  bool work_done = false, barrier = false;
  int exchanged = -1;  // the last phase that others took part in
  for (size_t i = 0; i < phases_.size(); ++i) {
    const Phase& phase = phases_[i];
    barrier |= phase.barrier_before;  // a phase that follows one left out needs the barrier before that one
    if (phase.needed && !phase.needed(step_)) continue;
    if (work_done && barrier) {
      if (clock) clock->end_work();
      pool_->barrier(thread);
      if (exchanged >= 0 && group_->failed(exchanged)) break;  // all threads see the same here
      exchanged = -1;
    }
    if (clock) clock->begin(static_cast<int>(i));
    phase.work(step_, thread, threads);
    work_done = true, barrier = false;
    if (phase.exchanges) exchanged = static_cast<int>(i);
  }
  if (clock) clock->end_work();
  linear_finish();
}

std::optional<Error> Program::compute() {
  std::unique_lock<std::mutex> turn;
  if (group_) {
    turn = group_->turn();
    if (auto error = group_->error()) return error;
  }
  if (clock_) clock_->begin_step();
  pool_->compute([this](int thread) { run_phases(thread, pool_->size()); });
  if (clock_) clock_->begin(-1);
  return group_ && group_->failed() ? group_->error() : std::nullopt;
}

std::vector<Arena::Range> Program::own_ranges() const {
  std::vector<Arena::Range> found;
  for (const OwnParts& parts : own_) {
    for (int thread = 0; thread < pool_->size(); ++thread) {
      found.push_back({{parts.data + parts.bytes * static_cast<size_t>(thread), parts.bytes},
                       homes_->of_thread[static_cast<size_t>(thread)]});
    }
  }
  return found;
}

// Every thread touches its parts first. Values have no owner: rows or columns of them are written by whoever computes
// them, on the page's first use.
void Program::settle_own() {
  for (const Arena::Range& range : own_ranges()) {
    if (homes_->nodes.empty()) break;
    const Pages part{nullptr, const_cast<std::byte*>(range.memory.data), range.memory.bytes};
    // Where that is refused the first touch decides
    prefer_nodes(part, {homes_->nodes[static_cast<size_t>(range.home)]});
  }
  if (own_.empty()) return;
  pool_->run([this](int thread) {
    for (const OwnParts& parts : own_)
      std::memset(parts.data + parts.bytes * static_cast<size_t>(thread), 0, parts.bytes);
  });
}

Result<Output> Program::run(const StepInput& input) {
  const std::lock_guard<std::mutex> turn(one_run_);
  std::vector<KvCache::Reading> reading;
  for (const KvCache* cache : caches_) reading.emplace_back(*cache);
  const auto attached = [this](int64_t block) {
    return std::all_of(caches_.begin(), caches_.end(), [block](const KvCache* cache) { return cache->holds(block); });
  };
  if (auto error = step_.assign(input, bounds_, attached)) return *error;
  for (auto& plan : plans_) plan->divide(step_);
  // Only read
  if (received_) received_->memory.data = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(input.hidden));
  if (auto error = compute()) return *error;
  const Value& value = *output_.value;
  const int64_t rows = value.rows == RowKind::fixed ? value.fixed_rows : rows_in(value.rows, step_);
  return Output{value.data() + output_.begin, rows, output_.columns, value.stride};
}

int Program::barriers(int tokens, int sequences) const {
  Step step;
  step.tokens = tokens, step.sequences = step.sampled = sequences;
  int count = 0;
  bool work_done = false, barrier = false;
  for (const Phase& phase : phases_) {
    barrier |= phase.barrier_before;
    if (phase.needed && !phase.needed(step)) continue;
    count += (work_done && barrier) + phase.exchanges;
    work_done = true, barrier = false;
  }
  return count;
}

std::vector<std::vector<uint64_t>> Program::expert_usage() const {
  std::vector<std::vector<uint64_t>> uses;
  for (const auto& operation : operations_) {
    if (const auto* moe = dynamic_cast<const MoeOperation*>(operation.get())) uses.push_back(moe->uses());
  }
  return uses;
}

void Program::measure_phases(bool on) {
  const std::lock_guard<std::mutex> turn(one_run_);
  clock_ = on ? std::make_unique<PhaseClock>(phases_.size()) : nullptr;
}

std::vector<PhaseTime> Program::phase_times() {
  const std::lock_guard<std::mutex> turn(one_run_);
  std::vector<PhaseTime> times;
  for (size_t i = 0; clock_ && i < phases_.size(); ++i) {
    const PhaseClock::Sum& sum = clock_->phases()[i];
    auto line = std::find_if(times.begin(), times.end(), [&](const PhaseTime& t) { return t.name == phases_[i].name; });
    if (line == times.end()) line = times.insert(line, PhaseTime{phases_[i].name});
    line->runs += sum.runs;
    line->seconds += 1e-9 * static_cast<double>(sum.ns);
    line->waited += 1e-9 * static_cast<double>(sum.waited_ns);
  }
  return times;
}

}  // namespace homenode
