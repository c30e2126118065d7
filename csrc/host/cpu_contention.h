// CPU contention: whether the threads of a pool have the CPUs they want. Other work on the same CPUs, more threads than
// CPUs, and a quota of CPU time look alike from inside: time passes in which a thread neither ran nor slept.
//
// Such time is measured in one run now and then, as asking for a thread's CPU time costs about a microsecond.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "host/event_count.h"

namespace homenode {

class CpuContention {
 public:
  explicit CpuContention(int threads);

  // By the caller of a run: whether to measure this one.
  bool due();
  // By each thread of a run that is measured, around its work.
  void begin(int thread);
  void end(int thread);
  // By the caller, when all threads have ended.
  void conclude();

  // By a thread that slept, waiting for others: that was no time it lost.
  void slept(int thread, int64_t ns) { threads_[static_cast<size_t>(thread)].slept += ns; }

  // Of the time each thread recently wanted its CPU, the share it did not have it; 0 while too little has been
  // measured.
  std::vector<double> lost_shares() const;

 private:
  // Nanoseconds of measured time before anything is said: one hiccup is no shortage
  static constexpr int64_t kLeastMeasured = 200'000'000;

  struct alignas(kLine) ThreadTimes {
    int64_t slept = 0;  // ever
    int64_t wall_begin, cpu_begin, slept_begin;
    int64_t wanted = 0, had = 0;  // nanoseconds of CPU in the run that was measured last
  };
  struct Recent {
    int64_t wanted = 0, lost = 0;
    double share() const {
      return wanted < kLeastMeasured ? 0 : static_cast<double>(lost) / static_cast<double>(wanted);
    }
  };

  int64_t concluded_at_ = 0;
  std::vector<ThreadTimes> threads_;  // written by the thread
  mutable std::mutex reading_;
  std::vector<Recent> recent_;  // guarded by `reading_`
};

}  // namespace homenode
