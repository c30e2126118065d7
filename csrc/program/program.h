// A forward function recorded once and replayed each step in a single run of the pool.
//
// A program is a list of phases; a phase is divided among the threads. A barrier stands between two phases, except
// where both work row by row with the same division of rows. A phase that a step does not need is left out, and with it
// the barrier before it.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/isa.h"
#include "graph/memory_plan.h"
#include "graph/operation.h"
#include "graph/step.h"
#include "graph/tensor.h"
#include "host/arena.h"
#include "host/memory.h"
#include "linear/share.h"
#include "program/phase_times.h"

namespace homenode {

class RankGroup;
class ThreadPool;

class Program {
 public:
  // Blocks until the step is done; callers take turns. The input is copied first, but for hidden, and refused with an
  // Error if it breaks the bounds. An Error ECONNABORTED: the group of ranks failed, as it will in every later run.
  Result<Output> run(const StepInput&);

  size_t bytes() const { return memory_.bytes; }
  // What each thread has for itself, and its home; nothing where all have the same.
  std::vector<Arena::Range> own_ranges() const;
  // Times the threads wait for each other in a step of so many tokens and sequences (one sampled row each), the end not
  // counted.
  int barriers(int tokens, int sequences) const;

  // For each MoE layer, in the order they were recorded, how many tokens each of its experts was computed for so far;
  // waits for no run.
  std::vector<std::vector<uint64_t>> expert_usage() const;

  // From the next run on, adds up the time each phase takes; `on` false forgets the times.
  void measure_phases(bool on);
  // So far: one line for each name, in order of first appearance.
  std::vector<PhaseTime> phase_times();

 private:
  friend class Recorder;
  friend class Lowering;
  void run_phases(int thread, int threads);
  std::optional<Error> compute();
  void settle_own();

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<RankGroup> group_;  // or null
  Level level_ = Level::scalar;
  StepBounds bounds_;
  std::vector<const KvCache*> caches_;  // in order of address; they may have memory of others attached
  std::mutex one_run_;
  Step step_;
  std::vector<Phase> phases_;
  std::unique_ptr<PhaseClock> clock_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<std::shared_ptr<Value>> values_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::unique_ptr<RunClaims> claims_;              // of products and attentions
  std::vector<std::unique_ptr<Memory>> scratch_;   // what phases need besides values
  Pages memory_;                                   // where values and scratch lie
  std::vector<OwnParts> own_;                      // of it, what threads have for themselves
  std::shared_ptr<const Homes> homes_;             // of the threads; null: all have the same
  std::vector<std::shared_ptr<const void>> kept_;  // weights, parameters and KV memory the phases point to
  Tensor output_;
  std::shared_ptr<Value> received_;                // or null: what lies where the caller says
};

}  // namespace homenode
