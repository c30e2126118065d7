// An event count: a word that threads wait on until it changes, first spinning, then asleep on a futex.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace homenode {

constexpr size_t kLine = 128;  // two cache lines: neighbours are fetched in pairs on x86

// Of the monotonic clock.
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

// A sleeper announces itself before the kernel compares the word, and the waker changes the word before it looks for
// sleepers (both sequentially consistent), so either the sleeper sees the change or the waker sees the sleeper.
class alignas(kLine) EventCount {
 public:
  uint32_t value() const { return word_.load(std::memory_order_relaxed); }

  // Returns when value() != seen: at once, after spinning for at most `spin_ns`, or after sleep. The result is the
  // nanoseconds slept.
  int64_t wait_while(uint32_t seen, int64_t spin_ns) {
    if (word_.load(std::memory_order_acquire) != seen) return 0;
    // Asking for the time before looking again is right: who looks too often takes the line from the one who is about
    // to write it.
    const int64_t until = spin_ns > 0 ? now_ns() + spin_ns : 0;
    while (until && now_ns() < until) {
      for (int i = 0; i < 32; ++i) {
        if (word_.load(std::memory_order_acquire) != seen) return 0;
        relax();
      }
    }
    return sleep_while(seen);
  }

  // Changes the value and wakes all sleepers.
  void advance() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) wake();
  }

 private:
  int64_t sleep_while(uint32_t seen);
  void wake();

  std::atomic<uint32_t> word_{0};
  alignas(kLine) std::atomic<uint32_t> sleepers_{0};
};

}  // namespace homenode
