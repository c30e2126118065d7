#include "host/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if HOMENODE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace homenode {
namespace {

// mbind(2), linux/mempolicy.h.
constexpr int kPreferred = 1, kInterleave = 3;
constexpr int kMostNodes = 1024;  // of any kernel

struct Mapping {
  Mapping(void* at, size_t size) : base(static_cast<std::byte*>(at)), bytes(size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(base, bytes); }

  std::byte* base;
  size_t bytes;
};

[[maybe_unused]] Result<Pages> allocate_exactly(size_t bytes) {
  void* memory = nullptr;
  if (const int code = posix_memalign(&memory, kSmallPage, bytes))
    return Error{Fault::host, code, "posix_memalign of " + std::to_string(bytes) + " bytes failed"};
  std::memset(memory, 0, bytes);
  return Pages{std::shared_ptr<void>(memory, std::free), static_cast<std::byte*>(memory), bytes, false};
}

}  // namespace

Result<Pages> allocate_pages(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kSmallPage;
  const size_t wanted = bytes ? bytes : 1;
  if (wanted > SIZE_MAX / 2)
    return Error{Fault::user, 0, "a buffer of " + std::to_string(bytes) + " bytes is more than an address space"};
  if (kExactPages) return allocate_exactly(wanted);
  const size_t size = (wanted + alignment - 1) / alignment * alignment;
  const size_t mapped = size + (alignment == kHugePage ? kHugePage : 0);
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Error{Fault::host, errno, "mmap of " + std::to_string(mapped) + " bytes failed: " + std::strerror(errno)};
  }
  const auto address = reinterpret_cast<uintptr_t>(base);
  Pages pages;
  pages.data = reinterpret_cast<std::byte*>((address + alignment - 1) / alignment * alignment);
  pages.bytes = size;
  pages.owner = std::make_shared<Mapping>(base, mapped);
  pages.huge = alignment == kHugePage && madvise(pages.data, size, MADV_HUGEPAGE) == 0;
  return pages;
}

void shrink(Pages& pages, size_t bytes) {
  const size_t kept = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (kExactPages || kept >= pages.bytes) return;
  auto* mapping = static_cast<Mapping*>(pages.owner.get());
  const auto ahead = static_cast<size_t>(pages.data - mapping->base);
  if (munmap(pages.data + kept, mapping->bytes - ahead - kept)) return;
  mapping->bytes = ahead + kept;
  pages.bytes = kept;
}

void keep_small(Pages& pages) {
  // Refused where there are no huge pages, which is as good
  if (!kExactPages) madvise(pages.data, pages.bytes, MADV_NOHUGEPAGE);
  pages.huge = false;
}

int prefer_nodes(const Pages& pages, const std::vector<int>& nodes) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMostNodes / kBits] = {};
  for (const int node : nodes) {
    if (node < 0 || node >= kMostNodes) return EINVAL;
    mask[node / kBits] |= 1ul << node % kBits;
  }
  if (nodes.empty() || !pages.bytes) return 0;
  const auto address = reinterpret_cast<uintptr_t>(pages.data) / kSmallPage * kSmallPage;
  const size_t size = (pages.bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  // The kernel takes one off the number of bits it is told, so it is told one more; more than it can have nodes is as
  // good.
  const int highest = *std::max_element(nodes.begin(), nodes.end()), words = highest / kBits + 1;
  const long refused = syscall(SYS_mbind, address, size, nodes.size() > 1 ? kInterleave : kPreferred, mask,
                               static_cast<unsigned long>(words * kBits + 1), 0);
  return refused ? errno : 0;
}

void forbid([[maybe_unused]] const std::byte* begin, [[maybe_unused]] size_t bytes) {
#if HOMENODE_ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(begin, bytes);
#endif
}

void permit([[maybe_unused]] const std::byte* begin, [[maybe_unused]] size_t bytes) {
#if HOMENODE_ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
#endif
}

}  // namespace homenode
