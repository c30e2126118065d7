// A counter in memory that several processes map, on which they wait for each other: watched for a while, then slept
// on, at most until a deadline.
//
// It counts in steps of two; the odd bit says that it is over, and ends every wait, now and later. Whatever others
// write there, nobody waits longer than to the deadline.
#pragma once
#include <atomic>
#include <cstdint>

#include "host/event_count.h"

namespace homenode {

enum class Arrival { reached, over, late };

// All zero is a counter at 0: memory of a new memfd is one.
class alignas(kLine) SharedWord {
 public:
  // What others wrote before they advanced it is seen after a wait that has reached it.
  void advance() {
    word_.fetch_add(2, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) wake();
  }
  void end() {
    word_.fetch_or(1, std::memory_order_seq_cst);
    wake();
  }
  bool is_over() const { return word_.load(std::memory_order_acquire) & 1; }
  bool has_reached(uint32_t count) const { return reached(word_.load(std::memory_order_acquire), count); }

  // Who advances a word and dies before it wakes the sleepers costs them no more than this.
  static constexpr int64_t kSliceNs = 20'000'000;

  // Until it has been advanced `count` times (modulo 2^31), which comes before its end; `until_ns` is of now_ns(). Adds
  // what it slept to `slept_ns`.
  Arrival wait_for(uint32_t count, int64_t spin_ns, int64_t until_ns, int64_t* slept_ns = nullptr,
                   int64_t slice_ns = kSliceNs);

 private:
  static bool reached(uint32_t word, uint32_t count) { return static_cast<int32_t>((word & ~1u) - (count << 1)) >= 0; }
  Arrival sleep(uint32_t count, int64_t until_ns, int64_t slice_ns);
  void wake();

  std::atomic<uint32_t> word_{0};
  alignas(kLine) std::atomic<uint32_t> sleepers_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace homenode
