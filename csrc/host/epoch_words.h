// Numbers that tell who has memory mapped when a part of it became another's: one for each part, in a memfd that only
// its maker writes.
//
// The maker changes a part's number before it uses the part again. A reader compares the number before and after it has
// read: where it is still what it was told, so is what it read (a seqlock without a lock).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "host/shared_memory.h"

namespace homenode {

class EpochWords {
 public:
  static Result<std::shared_ptr<EpochWords>> create(int64_t count);              // all zero
  static Result<std::shared_ptr<EpochWords>> map(int fd, int64_t count);  // another's, read-only

  int64_t count() const { return count_; }
  int fd() const { return file_.fd ? *file_.fd : -1; }  // -1: another's
  bool writable() const { return file_.fd != nullptr; }

  // What was written to the part before this number was is seen by the reads that come after.
  uint64_t load(int64_t i) const { return __atomic_load_n(words() + i, __ATOMIC_ACQUIRE); }
  // For after the reads: none of them happens later.
  uint64_t load_again(int64_t i) const {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(words() + i, __ATOMIC_RELAXED);
  }
  // No write that comes after is seen before this one; only where writable.
  void store(int64_t i, uint64_t epoch);

 private:
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(file_.pages.data); }
  SharedFile file_;
  int64_t count_ = 0;
};

// Orders writes past the caches, too, which no ordinary fence does.
inline void fence_stores() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace homenode
