#include <atomic>
#include <optional>

#include <nanobind/stl/optional.h>

#include "bind/bind.h"

namespace homenode {
namespace {

std::shared_ptr<ThreadPool> make_thread_pool(const std::vector<int>& cpus, int spin_us, bool pin_caller,
                                             std::optional<std::vector<GroupPath>> groups) {
  nb::gil_scoped_release unlocked;
  auto pool = ThreadPool::create(cpus, spin_us, pin_caller, std::move(groups).value_or(std::vector<GroupPath>{}));
  if (!pool) {
    nb::gil_scoped_acquire locked;
    raise(pool.error());
  }
  return std::shared_ptr<ThreadPool>(std::move(pool.value()));
}

// Every thread counts each round and checks after the barrier that all have: the number of misses, 0 on a sound pool.
int64_t exercise(ThreadPool& pool, int runs, int rounds) {
  std::atomic<int64_t> count{0}, missed{0};
  int64_t expected = 0;
  nb::gil_scoped_release unlocked;
  for (int r = 0; r < runs; ++r) {
    pool.compute([&](int thread) {
      for (int i = 1; i <= rounds; ++i) {
        count.fetch_add(1, std::memory_order_relaxed);
        pool.barrier(thread);
        missed += count.load(std::memory_order_relaxed) != expected + int64_t(i) * pool.size();
        pool.barrier(thread);
      }
    });
    expected += int64_t(rounds) * pool.size();
  }
  return missed + (count != expected);
}

void move(ThreadPool& pool, std::vector<std::vector<int>> places) {
  Error error;
  {
    nb::gil_scoped_release unlocked;  // a run may have to end first
    error = pool.move(std::move(places));
  }
  if (!error.message.empty()) raise(error);
}

}  // namespace

void bind_thread_pool(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool", "Threads pinned to the CPUs given (-1: not pinned).")
      .def(nb::new_(&make_thread_pool), nb::arg("cpus"), nb::arg("spin_us"), nb::arg("pin_caller"),
           nb::arg("groups").none() = nb::none())
      .def_prop_ro("cpus", [](const ThreadPool& t) { return t.cpus(); })
      .def_prop_ro("spin_us", &ThreadPool::spin_us,
                   "Microseconds threads watch for others: less than asked for where they share CPUs.")
      .def_prop_ro("lost_shares", &ThreadPool::lost_shares,
                   "For each thread the share of the CPU time it recently wanted that it did not get.")
      .def("move", &move, nb::arg("places"),
           "Moves each thread, between two runs, to the CPUs of its place; no CPUs: it stays. Its memory stays, too.")
      .def("exercise", &exercise, nb::arg("runs"), nb::arg("rounds"),
           "Self-test: runs with many barriers; returns how often one let go too early.");
}

}  // namespace homenode
