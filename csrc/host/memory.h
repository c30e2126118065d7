// Zeroed, page-aligned anonymous memory. Nothing is touched here: a page belongs to the thread that first writes it.
#pragma once
#include <cstddef>
#include <memory>

#include "base/status.h"

namespace homenode {

struct Pages {
  std::shared_ptr<void> owner;  // unmaps when the last copy goes
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool huge = false;  // asked for with MADV_HUGEPAGE and granted
};

// At least `bytes` bytes; on a 2 MiB boundary and huge pages asked for when that large. An Error names the size and errno.
//
// In builds with AddressSanitizer exactly that many bytes, from the heap, so that a byte too far is found.
Result<Pages> allocate_pages(size_t bytes);

// Memory inside of pages that nobody may touch, such as the space between two parts of them: a finding in builds with AddressSanitizer.
void forbid(const std::byte* begin, size_t bytes);

}  // namespace homenode
