// A pool of threads on exactly the CPUs it is told. It never looks around the machine.
//
// The caller of run() is thread 0, and is pinned like the others while inside run() only if `pin_caller`. The others
// spin for `spin_us`, then sleep on a futex; with more threads than CPUs for them they sleep almost at once. run()
// calls the function on all threads and returns when all are done; inside, barrier(thread) waits for all.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "host/tree_barrier.h"

namespace homenode {

class ThreadPool {
 public:
  // cpus[i]: the CPU of thread i, or -1 to leave it unpinned; cpus.size() >= 1. groups[i]: the path of groups that
  // thread i belongs to (see tree_barrier.h), the largest first; empty: all threads are one group.
  static Result<std::unique_ptr<ThreadPool>> create(std::vector<int> cpus, int spin_us, bool pin_caller,
                                                    std::vector<GroupPath> groups = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int size() const;
  // The CPU of each thread; -1 for one that may run on several.
  std::vector<int> cpus() const;
  // The path of groups of each thread.
  const std::vector<GroupPath>& groups() const;

  template <class F>
  void run(F&& f) {  // f(int thread)
    run_raw([](int thread, void* p) { (*static_cast<std::remove_reference_t<F>*>(p))(thread); }, &f, false);
  }
  // run() for work that only computes: time in which a thread neither runs nor sleeps was taken by others, and
  // counts in lost_shares().
  template <class F>
  void compute(F&& f) {
    run_raw([](int thread, void* p) { (*static_cast<std::remove_reference_t<F>*>(p))(thread); }, &f, true);
  }
  // Moves the threads between two runs, the caller's as of the next one: places[i] are the CPUs that thread i may run
  // on, none: it stays where it is. Memory that threads have touched stays where it lies. One place for each thread.
  // `Error.message` is empty where all has been done; else what the kernel refused, and other threads have moved.
  Error move(std::vector<std::vector<int>> places);
  void barrier(int thread);
  // Called inside run(): the thread slept `ns` nanoseconds, waiting for somebody outside the pool.
  void slept(int thread, int64_t ns);

  // Of the time each thread recently computed or spun, the share in which it did not have its CPU (cpu_contention.h).
  std::vector<double> lost_shares() const;
  // How long threads spin before they sleep, in microseconds: at most the `spin_us` given, less where threads share
  // CPUs.
  int spin_us() const;

 private:
  ThreadPool();
  void run_raw(void (*f)(int, void*), void* context, bool computes);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace homenode
