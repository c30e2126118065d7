// Zeroed, page-aligned anonymous memory. Nothing is touched here: a page belongs to the thread that first writes it.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"

namespace homenode {

constexpr size_t kSmallPage = 4096, kHugePage = size_t(2) << 20;

#if defined(__SANITIZE_ADDRESS__)
#define HOMENODE_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#define HOMENODE_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#else
#define HOMENODE_ADDRESS_SANITIZER 0
#endif
// In builds with AddressSanitizer pages are exactly as many bytes as were asked for, from the heap, so that a byte too
// far is found.
constexpr bool kExactPages = HOMENODE_ADDRESS_SANITIZER;

struct MemoryRange {
  const std::byte* data;
  size_t bytes;
};

struct Pages {
  std::shared_ptr<void> owner;  // unmaps when the last copy goes
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool huge = false;  // asked for with MADV_HUGEPAGE; what is really huge can be read back once the pages are touched
};

// At least `bytes` bytes; on a 2 MiB boundary and huge pages asked for when that large. An Error names the size and
// errno.
Result<Pages> allocate_pages(size_t bytes);

// Gives back all of such pages behind their first `bytes` bytes, where nothing lies any more. A huge page that ends
// there becomes small ones.
void shrink(Pages&, size_t bytes);

// Has the kernel take small pages for them, so that neighbours may lie on different nodes.
void keep_small(Pages&);

// Asks the kernel to take pages that are not touched yet from one NUMA node, as long as it has any, or in turn from
// several. 0, or the errno of a refusal (containers often forbid mbind(2)): they then come from the node of the thread
// that touches them first. Another node's memory is better than the end of the process, which a stricter policy would
// be answered with: whoever cares asks afterwards.
int prefer_nodes(const Pages&, const std::vector<int>& nodes);

// Memory inside of pages that nobody may touch, such as the space between two parts of them: a finding in builds with
// AddressSanitizer.
void forbid(const std::byte* begin, size_t bytes);
void permit(const std::byte* begin, size_t bytes);

}  // namespace homenode
