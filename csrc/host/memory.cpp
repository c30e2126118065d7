#include "host/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace homenode {
namespace {

[[maybe_unused]] Result<Pages> allocate_exactly(size_t bytes) {
  void* memory = nullptr;
  if (const int code = posix_memalign(&memory, kSmallPage, bytes)) return Error{Fault::host, code, "posix_memalign of " + std::to_string(bytes) + " bytes failed"};
  std::memset(memory, 0, bytes);
  return Pages{std::shared_ptr<void>(memory, std::free), static_cast<std::byte*>(memory), bytes, false};
}

}  // namespace

Result<Pages> allocate_pages(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kSmallPage;
  const size_t wanted = bytes ? bytes : 1;
  if (wanted > SIZE_MAX / 2) return Error{Fault::user, 0, "a buffer of " + std::to_string(bytes) + " bytes is more than an address space"};
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
  pages.owner = std::shared_ptr<void>(base, [mapped](void* p) { munmap(p, mapped); });
  pages.huge = alignment == kHugePage && madvise(pages.data, size, MADV_HUGEPAGE) == 0;
  return pages;
}

}  // namespace homenode
