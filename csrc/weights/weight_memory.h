// Packed weights that several processes keep in one memfd, each matrix as in packed files (weights/packed_file.h): who
// has it mapped reads it with a pool of any size.
//
// All of it is mapped for reading. Whoever fills a part of it opens that part for writing meanwhile. Where matrices lie
// is not said in the memory: callers know.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "host/memory.h"

namespace homenode {

class ThreadPool;

class WeightMemory {
 public:
  static constexpr size_t kAlignment = 128;  // of matrices, as of pieces in an arena

  // The first `bytes` bytes of memory that is sealed against shrinking and has as many. The descriptor is not kept.
  static Result<std::shared_ptr<WeightMemory>> map(int fd, uint64_t bytes);

  const Pages& pages() const { return pages_; }
  // Lets bytes begin .. end - 1, whole pages, be written; what was open before no longer can be.
  std::optional<Error> open(uint64_t begin, uint64_t end);
  // Nothing can be written any more.
  std::optional<Error> close();
  // Makes pages begin .. end - 1, all of them open, zeros again; whole huge pages are given back.
  std::optional<Error> clear(uint64_t begin, uint64_t end);
  // Has what is open taken on huge pages, each from where its first byte would come from, by all threads at once.
  // Memory that several processes map has none by itself on most machines, but is given them when it is asked for just
  // these pages (Linux 6.1 and later).
  void take_huge(ThreadPool&) const;
  // Has the kernel take pages begin .. end - 1 that nobody has touched yet from these nodes: see prefer_nodes.
  Result<int> prefer(uint64_t begin, uint64_t end, const std::vector<int>& nodes);
  // Enters pages begin .. end - 1, which others have filled, into this process's tables, all threads at once: else the
  // first steps would, page by page. Kernels before Linux 5.14 do not.
  std::optional<Error> enter(ThreadPool&, uint64_t begin, uint64_t end) const;
  // Where `bytes` bytes at `offset` are; an Error when they are not inside, or to be written and not inside of what is
  // open.
  Result<uint8_t*> at(uint64_t offset, uint64_t bytes, bool to_write) const;

 private:
  std::optional<Error> check_pages(uint64_t begin, uint64_t end) const;
  Pages pages_;
  uint64_t open_begin_ = 0, open_end_ = 0;
};

// Where in such memory a matrix is; without memory: it is not in any.
struct SharedPlace {
  std::shared_ptr<WeightMemory> memory;
  uint64_t offset = 0;
};

}  // namespace homenode
