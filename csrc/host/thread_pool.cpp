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
  State(const std::vector<int>& on, std::vector<GroupPath> paths, int64_t spin, bool pin,
        std::unique_ptr<TreeBarrier> tree)
      : size(static_cast<int>(on.size())),
        places(on.size()),
        groups(std::move(paths)),
        spin_ns(spin),
        pin_caller(pin),
        barrier(std::move(tree)),
        contention(size) {
    for (size_t i = 0; i < on.size(); ++i)
      if (on[i] >= 0) places[i] = {on[i]};
  }

  const int size;
  std::vector<std::vector<int>> places;  // the CPUs of each thread, none: not pinned; changed by who holds both locks
  std::mutex places_change;
  const std::vector<GroupPath> groups;
  const int64_t spin_ns;
  const bool pin_caller;
  std::mutex one_run;  // run() may come from several Python threads; they take turns
  std::unique_ptr<TreeBarrier> barrier;
  CpuContention contention;

  // Before the barrier can be used: threads pin themselves, then first touch their nodes of it.
  EventCount all_settled;
  alignas(kLine) std::atomic<int> settled_threads{0};
  std::atomic<int> pin_errno{0}, pin_thread{-1};

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

  void pin(int thread) {
    const auto& place = places[static_cast<size_t>(thread)];
    if (place.empty()) return;
    if (const int code = pin_this_thread(place)) {
      pin_thread.store(thread);
      pin_errno.store(code);
    }
  }

  Error refusal() const {
    return pin_errno.load() ? pin_error(places[static_cast<size_t>(pin_thread.load())], pin_errno.load()) : Error{};
  }

  void settle(int thread) {
    barrier->settle(thread);
    if (settled_threads.fetch_add(1, std::memory_order_acq_rel) + 1 == size) all_settled.advance();
  }

  const std::vector<int>& callers_place() const {
    static const std::vector<int> anywhere;
    return pin_caller ? places[0] : anywhere;
  }

  // The caller holds `one_run` and is thread 0.
  void call(void (*f)(int, void*), void* given, bool computes) {
    function = f;
    context = given;
    measured = computes && contention.due();
    barrier->call();
    take_part(0);
    if (measured) contention.conclude();
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
    pin(thread);
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
    for (size_t i = 1; i < places.size(); ++i) workers.push_back({this, static_cast<int>(i), {}});
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
    const std::vector<int> first = cpus[0] >= 0 ? std::vector<int>{cpus[0]} : std::vector<int>{};
    if (PinScope trial(first); trial.error()) return pin_error(first, trial.error());
  }
  auto barrier = TreeBarrier::create(groups);
  if (!barrier) return barrier.error();
  std::unique_ptr<ThreadPool> pool(new ThreadPool);
  const int64_t spin_ns = std::clamp(spin_us, 0, threads_share_cpus(cpus) ? kSharedSpinUs : INT_MAX) * int64_t(1000);
  pool->state_ = std::make_unique<State>(cpus, std::move(groups), spin_ns, pin_caller, std::move(barrier.value()));
  State& s = *pool->state_;

  size_t started = 0;
  const int code = s.start_workers(started);
  {
    const PinScope pin(s.callers_place());
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
  if (s.pin_errno.load()) return s.refusal();  // ~ThreadPool ends the threads
  return pool;
}

ThreadPool::~ThreadPool() {
  if (state_) state_->end_workers(state_->workers.size());
}

int ThreadPool::size() const { return state_->size; }

std::vector<int> ThreadPool::cpus() const {
  const std::lock_guard<std::mutex> unchanged(state_->places_change);  // a run may go on
  std::vector<int> found;
  for (const auto& place : state_->places) found.push_back(place.size() == 1 ? place[0] : -1);
  return found;
}

const std::vector<GroupPath>& ThreadPool::groups() const { return state_->groups; }

void ThreadPool::run_raw(void (*f)(int, void*), void* context, bool computes) {
  State& s = *state_;
  const std::lock_guard<std::mutex> turn(s.one_run);
  const PinScope pin(s.callers_place());
  s.call(f, context, computes);
}

Error ThreadPool::move(std::vector<std::vector<int>> places) {
  State& s = *state_;
  const std::lock_guard<std::mutex> turn(s.one_run);
  if (places.size() != s.places.size()) {
    return Error{Fault::user, 0,
                 "places for " + std::to_string(places.size()) + " threads of a thread pool of " +
                     std::to_string(s.places.size())};
  }
  {
    const std::lock_guard<std::mutex> change(s.places_change);
    for (size_t i = 0; i < places.size(); ++i)
      if (!places[i].empty()) s.places[i] = std::move(places[i]);
  }
  s.pin_errno.store(0);
  // The caller's own place is looked at, and given back: whose thread it is between runs decides others.
  if (s.pin_caller) {
    if (PinScope trial(s.places[0]); trial.error()) s.pin_errno.store(trial.error()), s.pin_thread.store(0);
  }
  const auto pin = [](int thread, void* p) {
    if (thread) static_cast<State*>(p)->pin(thread);
  };
  s.call(pin, &s, false);
  return s.refusal();
}

void ThreadPool::barrier(int thread) { state_->wait_for_all(thread); }

void ThreadPool::slept(int thread, int64_t ns) {
  if (ns) state_->contention.slept(thread, ns);
}

std::vector<double> ThreadPool::lost_shares() const { return state_->contention.lost_shares(); }
int ThreadPool::spin_us() const { return static_cast<int>(state_->spin_ns / 1000); }

}  // namespace homenode
