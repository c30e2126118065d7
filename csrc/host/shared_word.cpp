#include "host/shared_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace homenode {
Arrival SharedWord::wait_for(uint32_t count, int64_t spin_ns, int64_t until_ns, int64_t* slept_ns, int64_t slice_ns) {
  const auto look = [&](Arrival otherwise) {
    const uint32_t word = word_.load(std::memory_order_acquire);
    return reached(word, count) ? Arrival::reached : word & 1 ? Arrival::over : otherwise;
  };
  if (const Arrival first = look(Arrival::late); first != Arrival::late) return first;
  const int64_t begin = now_ns(), watch = std::min(begin + spin_ns, until_ns);
  while (spin_ns > 0 && now_ns() < watch) {
    for (int i = 0; i < 32; ++i) {
      if (const Arrival seen = look(Arrival::late); seen != Arrival::late) return seen;
      relax();
    }
  }
  const int64_t asleep = now_ns();
  const Arrival found = sleep(count, until_ns, slice_ns);
  if (slept_ns) *slept_ns += now_ns() - asleep;
  return found;
}

Arrival SharedWord::sleep(uint32_t count, int64_t until_ns, int64_t slice_ns) {
  Arrival found = Arrival::late;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t word = word_.load(std::memory_order_seq_cst);
    if (reached(word, count)) {
      found = Arrival::reached;
      break;
    }
    if (word & 1) {
      found = Arrival::over;
      break;
    }
    const int64_t left = std::min(until_ns - now_ns(), slice_ns);
    if (left <= 0) break;
    const timespec slice{left / 1'000'000'000, static_cast<long>(left % 1'000'000'000)};
    syscall(SYS_futex, &word_, FUTEX_WAIT, word, &slice, nullptr, 0);  // not private: other processes wake it
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return found;
}

void SharedWord::wake() { syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace homenode
