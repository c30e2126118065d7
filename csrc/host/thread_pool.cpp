#include "host/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <mutex>
#include <set>

#include "host/affinity.h"
#include "host/cpu_contention.h"
#include "host/event_count.h"
#include "host/tree_barrier.h"

namespace homenode {
namespace {

// Where threads share CPUs, who watches keeps the CPU from the one it waits for.
constexpr int kSharedSpinUs = 2;

bool threads_share_cpus(const std::vector<int>& cpus) {
  const std::set<int> different(cpus.begin(), cpus.end());
  if (different.count(-1)) return static_cast<int>(cpus.size()) > cpus_of_this_thread();
  return different.size() < cpus.size();
}

}  // namespace

struct ThreadPool::State {
  State(std::vector<int> on, std::vector<GroupPath> paths, int64_t spin, bool pin, std::unique_ptr<TreeBarrier> tree)
      : cpus(std::move(on)),
        groups(std::move(paths)),
        spin_ns(spin),
        pin_caller(pin),
        barrier(std::move(tree)),
        contention(static_cast<int>(cpus.size())) {}

  const std::vector<int> cpus;
  const std::vector<GroupPath> groups;
  const int64_t spin_ns;
  const bool pin_caller;
  std::mutex one_run;  // run() may come from several Python threads; they take turns
  std::unique_ptr<TreeBarrier> barrier;
  CpuContention contention;

  // Before the barrier can be used: threads pin themselves, then first touch their nodes of it.
  EventCount all_settled;
  alignas(kLine) std::atomic<int> settled_threads{0};
  std::atomic<int> pin_errno{0}, pin_cpu{-1};

  // What a call is for; written between runs.
  alignas(kLine) void (*function)(int, void*) = nullptr;
  void* context = nullptr;
  bool measured = false;
  bool ending = false;

  struct Worker {
    State* state;
    int thread;
    pthread_t handle;
  };
  std::vector<Worker> workers;  // threads 1 .. size - 1

  void settle(int thread) {
    barrier->settle(thread);
    if (settled_threads.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(cpus.size()))
      all_settled.advance();
  }

  void wait_for_all(int thread) {
    if (const int64_t slept = barrier->wait(thread, spin_ns)) contention.slept(thread, slept);
  }

  void take_part(int thread) {
    if (measured) contention.begin(thread);
    function(thread, context);
    if (measured) contention.end(thread);
    wait_for_all(thread);
  }

  void work(int thread) {
    if (const int cpu = cpus[static_cast<size_t>(thread)]; cpu >= 0) {
      if (const int code = pin_this_thread(cpu)) {
        pin_cpu.store(cpu);
        pin_errno.store(code);
      }
    }
    settle(thread);
    all_settled.wait_while(0, 0);
    for (uint32_t seen = 0;; ++seen) {
      barrier->wait_for_call(thread, seen, spin_ns);
      if (ending) return;
      take_part(thread);
    }
  }

  static void* enter(void* p) {
    auto* worker = static_cast<Worker*>(p);
    worker->state->work(worker->thread);
    return nullptr;
  }

  // Starts the workers; the errno of the refusal if one could not be started, else 0. `started` says how many were.
  int start_workers(size_t& started) {
    for (size_t i = 1; i < cpus.size(); ++i) workers.push_back({this, static_cast<int>(i), {}});
    sigset_t all, before;  // signals belong to the threads of the host program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = 0;
    while (started < workers.size() &&
           !(code = pthread_create(&workers[started].handle, nullptr, enter, &workers[started])))
      ++started;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return code;
  }

  void end_workers(size_t started) {
    ending = true;
    barrier->call();
    for (size_t i = 0; i < started; ++i) pthread_join(workers[i].handle, nullptr);
  }
};

ThreadPool::ThreadPool() = default;

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(std::vector<int> cpus, int spin_us, bool pin_caller,
                                                       std::vector<GroupPath> groups) {
  if (cpus.empty()) return Error{Fault::user, 0, "a thread pool needs at least one thread"};
  if (cpus.size() > 4096)
    return Error{Fault::user, 0, "a thread pool of " + std::to_string(cpus.size()) + " threads; at most 4096"};
  if (groups.empty()) groups.resize(cpus.size());
  if (groups.size() != cpus.size()) {
    return Error{
        Fault::user, 0,
        "groups of " + std::to_string(groups.size()) + " threads for a thread pool of " + std::to_string(cpus.size())};
  }
  if (pin_caller) {
    if (PinScope trial(cpus[0]); trial.error()) return pin_error(cpus[0], trial.error());
  }
  auto barrier = TreeBarrier::create(groups);
  if (!barrier) return barrier.error();
  std::unique_ptr<ThreadPool> pool(new ThreadPool);
  const int64_t spin_ns = std::clamp(spin_us, 0, threads_share_cpus(cpus) ? kSharedSpinUs : INT_MAX) * int64_t(1000);
  pool->state_ =
      std::make_unique<State>(std::move(cpus), std::move(groups), spin_ns, pin_caller, std::move(barrier.value()));
  State& s = *pool->state_;

  size_t started = 0;
  const int code = s.start_workers(started);
  {
    const PinScope pin(s.pin_caller ? s.cpus[0] : -1);
    s.settle(0);
    // Those that started wait for all: stand in for the missing ones so that they go on to their end.
    for (size_t i = started; i < s.workers.size(); ++i) s.settle(s.workers[i].thread);
    s.all_settled.wait_while(0, 0);
  }
  if (code) {
    s.end_workers(started);
    s.workers.clear();
    return Error{Fault::host, code,
                 "pthread_create of thread " + std::to_string(started + 1) + " failed: " + std::strerror(code)};
  }
  if (s.pin_errno.load()) return pin_error(s.pin_cpu.load(), s.pin_errno.load());  // ~ThreadPool ends the threads
  return pool;
}

ThreadPool::~ThreadPool() {
  if (state_) state_->end_workers(state_->workers.size());
}

int ThreadPool::size() const { return static_cast<int>(state_->cpus.size()); }
const std::vector<int>& ThreadPool::cpus() const { return state_->cpus; }
const std::vector<GroupPath>& ThreadPool::groups() const { return state_->groups; }

void ThreadPool::run_raw(void (*f)(int, void*), void* context, bool computes) {
  State& s = *state_;
  const std::lock_guard<std::mutex> turn(s.one_run);
  const PinScope pin(s.pin_caller ? s.cpus[0] : -1);
  s.function = f;
  s.context = context;
  s.measured = computes && s.contention.due();
  s.barrier->call();
  s.take_part(0);
  if (s.measured) s.contention.conclude();
}

void ThreadPool::barrier(int thread) { state_->wait_for_all(thread); }

void ThreadPool::slept(int thread, int64_t ns) {
  if (ns) state_->contention.slept(thread, ns);
}

std::vector<double> ThreadPool::lost_shares() const { return state_->contention.lost_shares(); }
int ThreadPool::spin_us() const { return static_cast<int>(state_->spin_ns / 1000); }

}  // namespace homenode
