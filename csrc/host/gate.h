// A word that threads wait on until it changes: watched for a while, then slept on.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace homenode {

constexpr size_t kLine = 128;  // two cache lines: neighbours are fetched in pairs on x86

int64_t now_ns();  // of the monotonic clock

// A sleeper announces itself before the kernel compares the word, and the waker changes the word before it looks for sleepers (both
// sequentially consistent), so either the sleeper sees the change or the waker sees the sleeper.
class alignas(kLine) Gate {
 public:
  uint32_t value() const { return word_.load(std::memory_order_relaxed); }

  // Returns when the value is no longer `seen`: at once, after up to `spin_ns` of watching, or after sleep. Returns the nanoseconds slept.
  int64_t wait_while(uint32_t seen, int64_t spin_ns) { return word_.load(std::memory_order_acquire) != seen ? 0 : wait_long(seen, spin_ns); }

  // Lets everybody through who waits for the value to change.
  void advance();

 private:
  int64_t wait_long(uint32_t seen, int64_t spin_ns);

  std::atomic<uint32_t> word_{0};
  alignas(kLine) std::atomic<uint32_t> sleepers_{0};
};

}  // namespace homenode
