// A recorded operation on its way to becoming phases of a program.
//
// The forward function is recorded whole. Then every operation, in order, may take over the ones that make its inputs,
// where computing them on the way saves a barrier or a trip through memory; what nobody took over becomes phases of its
// own. Taking over never changes a value.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/isa.h"
#include "graph/step.h"
#include "graph/tensor.h"

namespace homenode {

class AttentionPlan;
struct AttentionShape;
class Program;
class RunClaims;
class ThreadPool;

// What one thread does in a phase.
using Work = std::function<void(const Step&, int thread, int threads)>;
using Needed = std::function<bool(const Step&)>;

struct Phase {
  std::string name;  // phases of the same kind in all layers have one name
  Work work;
  bool by_rows = false;  // thread t touches rows rows_of(t) only
  Needed needed{};       // empty: always
  bool barrier_before = true;
  bool exchanges = false;  // with other processes, which may fail: what follows it is done only if it did not
};

// The rows of a phase that works by rows: an equal share for each thread, in order.
struct RowRange {
  int begin, end;
};
inline RowRange rows_of(int rows, int thread, int threads) {
  return {static_cast<int>(int64_t(rows) * thread / threads), static_cast<int>(int64_t(rows) * (thread + 1) / threads)};
}

inline int most_rows(RowKind kind, const StepLimits& limits) {
  return kind == RowKind::sampled ? limits.max_sampled_rows : limits.max_tokens;
}
inline int rows_in(RowKind kind, const Step& step) { return kind == RowKind::sampled ? step.sampled : step.tokens; }

// Where operations put their phases.
class Lowering {
 public:
  explicit Lowering(Program& program) : program_(program) {}
  Lowering(const Lowering&) = delete;
  Lowering& operator=(const Lowering&) = delete;

  Level level() const;
  int threads() const;
  ThreadPool* pool() const;
  const StepLimits& limits() const;
  int most_rows(RowKind) const;

  // Memory besides values.
  Memory* scratch(size_t bytes);
  // The number of the phase that is appended next.
  int next_phase() const;
  // Of which thread t has the part that begins own_bytes * t behind `data`, of at least so many bytes.
  Memory* own_scratch(size_t bytes);
  // Appends a phase; `touched` is all it reads and writes besides weights, parameters and KV memory.
  void phase(Phase, const std::vector<Memory*>& touched);

  // The division of a step into work items, one for each shape of attention.
  AttentionPlan* plan(const AttentionShape&, int block_size);
  // For the products and attentions of the program, one after the other; null for a single thread, who has nobody to
  // help.
  RunClaims* claims();

  // Once all phases are there: gives what they touch its place. Nothing else ever lies where the output does.
  std::optional<Error> place_memory(const Tensor& output);

 private:
  Program& program_;
  std::vector<int> groups_;  // see graph/memory_plan.h
  std::vector<Memory*> memories_;
};

class Operation {
 public:
  virtual ~Operation() = default;
  virtual void fuse_producers() {}
  virtual void lower(Lowering&) = 0;

  bool fused = false;  // another operation computes this one on its way
};

inline Memory* memory_of(const Tensor& x) { return &x.value->memory; }

// The operation of this type that made the whole of x for its one reader and nobody else, or null.
template <class Type>
Type* maker_of(const Tensor& x) {
  if (!x.value->made_by || x.value->uses != 1 || !x.whole()) return nullptr;
  return dynamic_cast<Type*>(x.value->made_by);
}

}  // namespace homenode
