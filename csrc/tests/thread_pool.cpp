#include <sched.h>

#include <atomic>
#include <thread>

#include "tests/cases.h"

namespace homenode::checks {
namespace {

std::vector<GroupPath> random_groups(Random& random, int threads) {
  std::vector<GroupPath> groups;
  if (random.one_in(4)) return groups;
  const int depth = random.between(0, 4), names = random.between(1, 4);
  for (int m = 0; m < threads; ++m) {
    GroupPath path;
    for (int d = random.one_in(5) ? random.between(0, depth) : depth; d > 0; --d)
      path.push_back(random.between(0, names - 1));
    groups.push_back(path);
  }
  return groups;
}

// Plain values handed on from thread to thread, with nothing but barriers between writing and reading.
void hand_around(ThreadPool& pool, int rounds) {
  const int size = pool.size();
  std::vector<int64_t> held(static_cast<size_t>(size)), next(static_cast<size_t>(size));
  for (int m = 0; m < size; ++m) held[static_cast<size_t>(m)] = m;
  for (int run = 0; run < 3; ++run) {
    auto work = [&](int thread) {
      const auto mine = static_cast<size_t>(thread), left = static_cast<size_t>((thread + 1) % size);
      for (int i = 0; i < rounds; ++i) {
        next[mine] = held[left] + 1;
        pool.barrier(thread);
        held[mine] = next[mine];
        pool.barrier(thread);
      }
    };
    run % 2 ? pool.run(work) : pool.compute(work);
  }
  for (int m = 0; m < size; ++m) {
    const int64_t from = (m + 3 * rounds) % size;
    require(held[static_cast<size_t>(m)] == from + 3 * rounds,
            "a value goes around the thread pool, one thread a round");
  }
}

}  // namespace

void check_thread_pool(Random& random) {
  const int threads = random.between(1, 9), spin_us = random.of<int>({0, 3, 200});
  auto pool = taken(ThreadPool::create(std::vector<int>(static_cast<size_t>(threads), -1), spin_us, false,
                                       random_groups(random, threads)));
  hand_around(*pool, random.between(1, 30));

  // Runs from several threads take turns, while another asks for the figures and moves the threads about.
  std::vector<int> calls(static_cast<size_t>(threads));
  std::atomic<bool> done{false};
  std::thread asks([&] {
    while (!done.load()) {
      require(pool->lost_shares().size() == static_cast<size_t>(threads) && pool->spin_us() <= spin_us,
              "figures of every thread");
      const std::vector<std::vector<int>> here(static_cast<size_t>(threads), {sched_getcpu()});
      require(pool->move(here).message.empty() && pool->cpus().size() == here.size(), "threads move between runs");
    }
  });
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 10; ++i) pool->compute([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  done = true;
  asks.join();
  for (const int made : calls) require(made == 30, "every call reaches every thread");
}

}  // namespace homenode::checks
