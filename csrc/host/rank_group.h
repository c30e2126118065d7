// Sums and gathers over the ranks of a group, each of them a process whose pool takes part with all its threads.
//
// A rank copies its values into its half of the region and arrives, which is one advance of its word; when all have,
// every thread of every rank reads what it needs of the others. The halves take turns: who writes one again has seen
// everybody arrive since, and so be done with reading it. A sum is therefore one wait, and in between no thread of a
// pool waits for another. Values are added in the order of ranks: all have the same bits.
//
// Many values of many ranks are summed in two waits: first each rank its share of the columns, then all take each
// other's.
#pragma once
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "host/rank_memory.h"

namespace homenode {

// Rows of float32, `stride` floats from one to the next.
struct FloatRows {
  float* data;
  int64_t stride, rows, columns;
};

// One thread of those that make a call together, and how long it slept in it. Numbers of a pool's calls ascend.
struct Caller {
  int thread = 0, threads = 1, number = 0;
  int64_t slept_ns = 0;
};

class RankGroup {
 public:
  // Every call waits at most `timeout_s`, the first `spin_us` of it watching.
  static Result<std::unique_ptr<RankGroup>> join(std::shared_ptr<RankMemory>, int rank, double timeout_s, int spin_us);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return memory_->ranks(); }

  // For a time in which nobody else may use the group.
  std::unique_lock<std::mutex> turn() { return std::unique_lock(one_user_); }

  // The sum of all ranks' x into `out`, which may be x. Called by all threads of a pool, which have seen each other's
  // x; each then has what all wrote after its next barrier. False: the group failed; nothing is known of `out`.
  bool sum(const FloatRows& x, const FloatRows& out, Caller&);
  // The x of all ranks beside each other; `widths`: the columns of each.
  bool gather(const FloatRows& x, const FloatRows& out, std::span<const int64_t> widths, Caller&);

  // Whether call `number`, or one before it, failed for any thread of the pool: all see the same after the barrier that
  // follows it, even where some have begun, and failed, the next call.
  bool failed(int number = INT_MAX - 1) const { return failed_at_.load(std::memory_order_acquire) <= number; }
  // What failed, or that the group was ended meanwhile.
  std::optional<Error> error() const;
  // Tells all that the group is over; from any thread.
  void leave();

 private:
  RankGroup(std::shared_ptr<RankMemory> memory, int rank, double timeout_s, int spin_us);
  struct Tile;
  bool sum_at_once(const FloatRows& x, const FloatRows& out, const Tile&, Caller&);
  bool sum_by_shares(const FloatRows& x, const FloatRows& out, const Tile&, Caller&);
  void add_lines(const FloatRows& out, const Tile&, int half, int64_t begin, int64_t end) const;
  bool gather_piece(const FloatRows& x, const FloatRows& out, std::span<const int64_t> widths, const Tile&, Caller&);
  int half() const { return static_cast<int>(tiles_.load(std::memory_order_relaxed) & 1); }
  float* place(int rank, int half, const Tile&, int64_t row, int64_t column) const;
  bool wait_for_ranks(uint64_t call, const Written&, Caller&);
  bool wait_for_all(uint32_t number, uint64_t call, Caller&);
  bool fail(const Caller&, const std::vector<int>& gone = {});

  const std::shared_ptr<RankMemory> memory_;
  const int rank_;
  const int64_t timeout_ns_, spin_ns_;
  std::mutex one_user_;
  alignas(kLine) std::atomic<int> arrived_threads_{0};
  alignas(kLine) std::atomic<uint32_t> number_{0};  // of arrivals
  std::atomic<uint32_t> tiles_{0};                  // exchanged; each uses the other half
  alignas(kLine) std::atomic<int> failed_at_{INT_MAX};
  std::atomic<int> other_caller_{-1};  // a rank that made another call
};

}  // namespace homenode
