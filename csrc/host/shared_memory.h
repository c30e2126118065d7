// Memory that other processes can map: a memfd of a size that is sealed, so that no reader of it can be made to fault.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include "base/status.h"
#include "host/memory.h"

namespace homenode {

// What others may do with it. Where the kernel lacks F_SEAL_FUTURE_WRITE (before 5.1) those who may read can write,
// too.
enum class Sharing { readable, writable };

struct SharedFile {
  std::shared_ptr<const int> fd;  // closed when the last copy goes; the mapping stays
  Pages pages;                    // all of it, writable; see allocate_pages
};

// Zeroed, not touched yet. `name` is what /proc says of it.
Result<SharedFile> create_shared(size_t bytes, const char* name, Sharing);

// So many bytes of another process's memory, from `offset`, a multiple of kHugePage, on. It must be sealed against
// shrinking and be as large; the descriptor is not kept.
Result<Pages> map_shared(int fd, size_t bytes, bool writable, size_t offset = 0);

// Takes all pages now, so that a lack of memory is an Error here instead of a signal later.
std::optional<Error> populate(const Pages&);

}  // namespace homenode
