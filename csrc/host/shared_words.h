// Words of 64 bits at the beginning of a memfd that several processes write: what they tell each other of the rest of
// it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "host/shared_memory.h"

namespace homenode {

class SharedWords {
 public:
  // The first `count` words of memory that is sealed against shrinking and has as many. The descriptor is not kept.
  static Result<std::shared_ptr<SharedWords>> map(int fd, int64_t count);

  int64_t count() const { return count_; }
  // What was written before the word was stored is seen after it was loaded.
  uint64_t load(int64_t i) const { return __atomic_load_n(words() + i, __ATOMIC_ACQUIRE); }
  void store(int64_t i, uint64_t value) { __atomic_store_n(words() + i, value, __ATOMIC_RELEASE); }
  // Writes `value` where the word is `expected`. The result is what it was.
  uint64_t exchange(int64_t i, uint64_t expected, uint64_t value) {
    __atomic_compare_exchange_n(words() + i, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
  }

 private:
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(pages_.data); }
  Pages pages_;
  int64_t count_ = 0;
};

}  // namespace homenode
