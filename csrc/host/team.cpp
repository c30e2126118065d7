#include "host/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <mutex>

namespace homenode {
namespace {

constexpr size_t kLine = 128;  // two cache lines: neighbours are fetched in pairs on x86

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// A word that threads wait on until it changes. A sleeper announces itself before the kernel compares the word, and the waker changes the word
// before it looks for sleepers (both sequentially consistent), so either the sleeper sees the change or the waker sees the sleeper.
struct alignas(kLine) Gate {
  std::atomic<uint32_t> word{0};
  alignas(kLine) std::atomic<uint32_t> sleepers{0};

  void wait_while(uint32_t seen, int64_t spin_ns) {
    if (word.load(std::memory_order_acquire) != seen) return;
    const int64_t until = spin_ns > 0 ? now_ns() + spin_ns : 0;
    while (until && now_ns() < until) {
      for (int i = 0; i < 32; ++i) {
        if (word.load(std::memory_order_acquire) != seen) return;
        relax();
      }
    }
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (word.load(std::memory_order_seq_cst) == seen) {
      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  void advance() {
    word.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst)) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
};

// Room for 8192 CPUs, the most a Linux kernel is built for; one cpu_set_t has room for 1024 only.
struct CpuMask {
  cpu_set_t words[8192 / CPU_SETSIZE];
};

// 0, or the errno of the refusal.
int pin_this_thread(int cpu) {
  if (cpu >= 8192) return EINVAL;
  CpuMask mask;
  CPU_ZERO_S(sizeof mask, mask.words);
  CPU_SET_S(cpu, sizeof mask, mask.words);
  return sched_setaffinity(0, sizeof mask, mask.words) ? errno : 0;
}

Error pin_error(int cpu, int code) {
  return Error{Fault::host, code, "sched_setaffinity to CPU " + std::to_string(cpu) + " failed: " + std::strerror(code)};
}

// Pins the calling thread while it lives, and gives its old CPUs back.
class PinScope {
 public:
  explicit PinScope(int cpu) {
    if (cpu < 0 || sched_getaffinity(0, sizeof before_, before_.words)) return;
    error_ = pin_this_thread(cpu);
    pinned_ = error_ == 0;
  }
  ~PinScope() {
    if (pinned_) sched_setaffinity(0, sizeof before_, before_.words);
  }
  PinScope(const PinScope&) = delete;
  int error() const { return error_; }

 private:
  CpuMask before_;
  bool pinned_ = false;
  int error_ = 0;
};

}  // namespace

struct Team::State {
  std::vector<int> cpus;
  int64_t spin_ns = 0;
  bool pin_caller = false;
  std::mutex one_run;  // run() may come from several Python threads; they take turns

  Gate jobs;      // advanced once a run: the workers leave
  Gate barriers;  // advanced when the last member arrives
  alignas(kLine) std::atomic<int> arrived{0};
  alignas(kLine) std::atomic<int> pin_errno{0};
  std::atomic<int> pin_cpu{-1};
  void (*function)(int, void*) = nullptr;
  void* context = nullptr;
  bool ending = false;

  struct Worker {
    State* state;
    int member;
    pthread_t thread;
  };
  std::vector<Worker> workers;  // members 1 .. size - 1

  void meet() {
    const uint32_t seen = barriers.word.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(cpus.size())) {
      arrived.store(0, std::memory_order_relaxed);
      barriers.advance();
    } else {
      barriers.wait_while(seen, spin_ns);
    }
  }

  void work(int member) {
    uint32_t seen = 0;  // the first job is number 1, and none starts before create() has returned
    if (cpus[member] >= 0) {
      if (const int code = pin_this_thread(cpus[member])) {
        pin_cpu.store(cpus[member]);
        pin_errno.store(code);
      }
    }
    meet();
    for (;;) {
      jobs.wait_while(seen++, spin_ns);
      if (ending) return;
      function(member, context);
      meet();
    }
  }

  static void* enter(void* p) {
    auto* worker = static_cast<Worker*>(p);
    worker->state->work(worker->member);
    return nullptr;
  }

  void end_workers(size_t started) {
    ending = true;
    jobs.advance();
    for (size_t i = 0; i < started; ++i) pthread_join(workers[i].thread, nullptr);
  }
};

Team::Team() : state_(std::make_unique<State>()) {}

Result<std::unique_ptr<Team>> Team::create(std::vector<int> cpus, int spin_us, bool pin_caller) {
  if (cpus.empty()) return Error{Fault::user, 0, "a team needs at least one member"};
  if (cpus.size() > 4096) return Error{Fault::user, 0, "a team of " + std::to_string(cpus.size()) + " threads; at most 4096"};
  if (pin_caller) {
    if (PinScope trial(cpus[0]); trial.error()) return pin_error(cpus[0], trial.error());
  }
  std::unique_ptr<Team> team(new Team);
  State& s = *team->state_;
  s.cpus = std::move(cpus);
  s.spin_ns = int64_t(spin_us > 0 ? spin_us : 0) * 1000;
  s.pin_caller = pin_caller;
  for (size_t i = 1; i < s.cpus.size(); ++i) s.workers.push_back({&s, static_cast<int>(i), {}});

  // Signals belong to the threads of the host program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = 0;
  size_t started = 0;
  while (started < s.workers.size() && !(code = pthread_create(&s.workers[started].thread, nullptr, State::enter, &s.workers[started]))) ++started;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);

  if (code) {
    // Those that started wait for all to meet: stand in for the missing ones so that they go on to their end.
    for (size_t i = started; i < s.cpus.size() - 1; ++i) s.arrived.fetch_add(1, std::memory_order_acq_rel);
  }
  s.meet();
  if (code) {
    s.end_workers(started);
    s.workers.clear();
    return Error{Fault::host, code, "pthread_create of thread " + std::to_string(started + 1) + " failed: " + std::strerror(code)};
  }
  if (s.pin_errno.load()) return pin_error(s.pin_cpu.load(), s.pin_errno.load());  // ~Team ends the threads
  return team;
}

Team::~Team() { state_->end_workers(state_->workers.size()); }

int Team::size() const { return static_cast<int>(state_->cpus.size()); }
const std::vector<int>& Team::cpus() const { return state_->cpus; }

void Team::run_raw(void (*f)(int, void*), void* context) {
  State& s = *state_;
  const std::lock_guard<std::mutex> turn(s.one_run);
  const PinScope pin(s.pin_caller ? s.cpus[0] : -1);
  s.function = f;
  s.context = context;
  s.jobs.advance();
  f(0, context);
  s.meet();
}

void Team::barrier(int) { state_->meet(); }

}  // namespace homenode
