// A forward function recorded once and replayed each step in a single run of the team.
//
// Each operation is one or more phases; a phase is divided among the threads. A barrier stands between two phases, except where both work row
// by row with the same division of rows and the second writes to memory nobody has used since the last barrier.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/isa.h"
#include "kernels/attention.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace homenode {

class Team;

// What one thread does in a phase.
using Work = std::function<void(const Step&, int thread, int threads)>;

struct Phase {
  Work work;
  bool by_rows = false;                      // thread t touches rows rows_of(t) only
  bool barrier_before = true;
  std::function<bool(const Step&)> needed;   // empty: always. A phase that is not needed is left out with its barrier
};

// The rows of a phase that works by rows: an equal share for each thread, in order.
struct RowRange {
  int begin, end;
};
inline RowRange rows_of(int rows, int thread, int threads) {
  return {static_cast<int>(int64_t(rows) * thread / threads), static_cast<int>(int64_t(rows) * (thread + 1) / threads)};
}

// The result of a program: [rows, columns], valid until its next run.
struct Output {
  const float* data;
  int64_t rows, columns, stride;
};

class Program {
 public:
  // Blocks until the step is done; callers take turns. The input is copied first, and refused with an Error if it breaks the bounds.
  Result<Output> run(const StepInput&);

  size_t bytes() const;
  int barriers() const;

 private:
  friend class Recorder;
  void run_phases(int thread, int threads);

  std::shared_ptr<Team> team_;
  Level level_ = Level::scalar;
  StepBounds bounds_;
  std::mutex one_run_;
  Step step_;
  std::vector<Phase> phases_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<std::unique_ptr<std::atomic<int>>> counters_;  // next work item of each attention
  std::shared_ptr<BufferPool> pool_;
  Pages scratch_;                            // of linear and attention; operations take turns with it
  std::vector<std::shared_ptr<const void>> kept_;  // weights, parameters and KV memory the phases point to
  Tensor output_;
};

// The matrices of a mixture's experts: see Experts in moe.h.
struct ExpertWeights {
  std::vector<std::shared_ptr<const Weight>> gate, up, down;
};

// Appends operations to a program. The calls mirror homenode.compute.ops.Ops; every Error is a mistake of the caller.
class Recorder {
 public:
  Recorder(std::shared_ptr<Team>, Level, const StepLimits&);

  Result<Tensor> embedding(std::shared_ptr<const Weight> table);
  Result<Tensor> rms_norm(const Tensor& x, const Tensor& weight, float eps);
  // biases: one for each weight (empty handles for none), or none at all.
  Result<Tensor> linear(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights, const std::vector<Tensor>& biases, const Tensor* residual);
  Result<std::vector<Tensor>> split(const Tensor& x, std::span<const int64_t> widths);
  Result<Tensor> rope_angles(std::vector<float> inverse_frequencies, float scale);
  Result<Tensor> rope(const Tensor& x, const Tensor& angles, int head_dim);
  Result<Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, std::shared_ptr<KvCache> cache, int layer, float scale, int window);
  Result<Tensor> silu_mul(const Tensor& gate_up);
  Result<Tensor> mixture(const Tensor& x, const Tensor& logits, const ExpertWeights&, int chosen, bool normalise, const Tensor& residual);
  Result<Tensor> add_gated(const Tensor& x, const Tensor& y, const Tensor& gate);
  Result<Tensor> select(const Tensor& x);

  // The finished program; nothing can be recorded after.
  Result<std::shared_ptr<Program>> finish(const Tensor& output);

 private:
  Result<Tensor> make(int64_t columns, RowKind rows);
  // `writes`: the storage the phase writes to if that was taken for it, else null.
  void append(Work work, bool by_rows, const Storage* writes, std::function<bool(const Step&)> needed = {});
  void keep(const Tensor& x);
  std::optional<Error> check_input(const Tensor& x, const char* operation);
  int plan_for(const AttentionShape&, int block_size);
  std::optional<Error> check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const KvCache& cache, int layer, int window);

  std::shared_ptr<Program> program_;
  size_t scratch_bytes_ = 0;
  int group_start_ = 0;  // phases since this one run without a barrier
};

}  // namespace homenode
