#include "weights/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "host/file.h"
#include "host/shared_memory.h"
#include "host/thread_pool.h"

namespace homenode {
namespace {

constexpr int kPopulateRead = 22, kCollapse = 25;  // asm-generic/mman-common.h: newer than some C libraries

std::string extent_text(uint64_t begin, uint64_t end) {
  return "bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of shared weights";
}

}  // namespace

Result<std::shared_ptr<WeightMemory>> WeightMemory::map(int fd, uint64_t bytes) {
  if (bytes > SIZE_MAX / 4)
    return Error{Fault::user, 0,
                 "shared weights of " + std::to_string(bytes) + " bytes; wanted at most a quarter of an address space"};
  auto pages = map_shared(fd, static_cast<size_t>(bytes), true);
  if (!pages) return pages.error();
  auto memory = std::make_shared<WeightMemory>();
  memory->pages_ = std::move(pages.value());
  if (auto error = memory->close()) return std::move(*error);
  forbid(memory->pages_.data, memory->pages_.bytes);  // what lies between matrices is nobody's
  return memory;
}

std::optional<Error> WeightMemory::open(uint64_t begin, uint64_t end) {
  if (auto error = check_pages(begin, end)) return error;
  if (auto error = close()) return error;
  if (mprotect(pages_.data + begin, static_cast<size_t>(end - begin), PROT_READ | PROT_WRITE))
    return system_error(extent_text(begin, end) + ": mprotect");
  open_begin_ = begin, open_end_ = end;
  return std::nullopt;
}

std::optional<Error> WeightMemory::close() {
  open_begin_ = open_end_ = 0;
  if (mprotect(pages_.data, pages_.bytes, PROT_READ)) return system_error("shared weights: mprotect");
  return std::nullopt;
}

std::optional<Error> WeightMemory::clear(uint64_t begin, uint64_t end) {
  if (auto error = check_pages(begin, end)) return error;
  if (begin < open_begin_ || end > open_end_)
    return Error{Fault::user, 0, extent_text(begin, end) + ", which are not open for writing"};
  std::byte* at = pages_.data + begin;
  const auto bytes = static_cast<size_t>(end - begin);
  // A part of a huge page cannot be given back; the rest of it would become small pages.
  if (begin % kHugePage == 0 && end % kHugePage == 0 && !madvise(at, bytes, MADV_REMOVE)) return std::nullopt;
  permit(at, bytes);
  std::memset(at, 0, bytes);
  return std::nullopt;
}

void WeightMemory::take_huge(ThreadPool& pool) const {
  const uint64_t first = (open_begin_ + kHugePage - 1) / kHugePage, past = open_end_ / kHugePage;
  if (kExactPages || past < first + 2) return;  // one for very little would be wasted
  pool.run([&](int thread) {
    const uint64_t mine = first + (past - first) * uint64_t(thread) / uint64_t(pool.size());
    const uint64_t next = first + (past - first) * uint64_t(thread + 1) / uint64_t(pool.size());
    for (uint64_t page = mine; page < next; ++page) {
      std::byte* at = pages_.data + page * kHugePage;
      // The node of what is there already is where the kernel takes the huge page from
      *reinterpret_cast<volatile std::byte*>(at) = std::byte{};
      madvise(at, kHugePage, kCollapse);  // refused: the pages are small ones, as they would have been
    }
  });
}

Result<int> WeightMemory::prefer(uint64_t begin, uint64_t end, const std::vector<int>& nodes) {
  if (auto error = check_pages(begin, end)) return std::move(*error);
  return prefer_nodes({nullptr, pages_.data + begin, static_cast<size_t>(end - begin)}, nodes);
}

std::optional<Error> WeightMemory::enter(ThreadPool& pool, uint64_t begin, uint64_t end) const {
  if (auto error = check_pages(begin, end)) return error;
  const uint64_t parts = (end - begin + kHugePage - 1) / kHugePage, threads = uint64_t(pool.size());
  pool.run([&](int thread) {
    const uint64_t first = begin + parts * uint64_t(thread) / threads * kHugePage,
                   past = std::min(end, begin + parts * uint64_t(thread + 1) / threads * kHugePage);
    // Not being able to is no harm: pages are entered as they are read.
    if (first < past) madvise(pages_.data + first, static_cast<size_t>(past - first), kPopulateRead);
  });
  return std::nullopt;
}

Result<uint8_t*> WeightMemory::at(uint64_t offset, uint64_t bytes, bool to_write) const {
  const uint64_t begin = to_write ? open_begin_ : 0, end = to_write ? open_end_ : pages_.bytes;
  if (offset % kAlignment || offset < begin || offset > end || bytes > end - offset) {
    return Error{Fault::user, 0,
                 std::to_string(bytes) + " bytes at " + std::to_string(offset) + "; wanted a multiple of " +
                     std::to_string(kAlignment) + " and all of it inside " + extent_text(begin, end) +
                     (to_write ? ", which are open for writing" : "")};
  }
  permit(pages_.data + offset, static_cast<size_t>(bytes));
  return reinterpret_cast<uint8_t*>(pages_.data + offset);
}

std::optional<Error> WeightMemory::check_pages(uint64_t begin, uint64_t end) const {
  if (begin % kSmallPage || end % kSmallPage || begin >= end || end > pages_.bytes) {
    return Error{Fault::user, 0,
                 extent_text(begin, end) + "; wanted whole pages inside of " + std::to_string(pages_.bytes) + " bytes"};
  }
  return std::nullopt;
}

}  // namespace homenode
