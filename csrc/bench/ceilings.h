// What the machine under a pool can do at most: short bursts of reading, of multiplying, and of one thread waiting for
// another. Callers repeat and choose; nothing is decided here.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/isa.h"
#include "base/status.h"
#include "host/memory.h"

namespace homenode {

class ThreadPool;

// Memory of which every thread of the pool owns a slice and has touched it first, on huge pages where they are granted.
class ReadBuffer {
 public:
  // bytes_per_thread is rounded up to whole huge pages; an Error for more than 2^40 bytes in all.
  static Result<std::unique_ptr<ReadBuffer>> create(std::shared_ptr<ThreadPool>, size_t bytes_per_thread);
  size_t bytes() const { return slice_ * size_t(threads_); }
  bool huge_pages() const { return pages_.huge; }
  // Seconds in which all threads read part number `part` of `parts` of their slices, as one stream or as eight 4 KiB
  // apart. Parts are whole huge pages; an Error when there are fewer of these than parts.
  Result<double> read(Level, bool eight_streams, int part, int parts) const;

 private:
  ReadBuffer() = default;
  std::shared_ptr<ThreadPool> pool_;
  Pages pages_;
  size_t slice_ = 0;
  int threads_ = 0;
};

enum class Multiply { int8 = 0, bf16 = 1, f32 = 2, int6 = 3 };

// Operations each thread did and the seconds it took, all of them at the same time.
struct MultiplyBurst {
  int64_t operations = 0;
  std::vector<double> seconds;
};
Result<MultiplyBurst> multiply_burst(ThreadPool&, Level, Multiply, int64_t rounds);

// Nanoseconds until thread 0, having told `other` something, has its answer: the mean of `rounds` such exchanges.
Result<double> round_trip_ns(ThreadPool&, int other, int rounds);

}  // namespace homenode
