// Where the intermediate results of a program lie: memory is used again once the phases that need it are over.
#pragma once
#include <vector>

#include "base/status.h"
#include "graph/tensor.h"
#include "host/memory.h"

namespace homenode {

// Parts of one size, one for each thread, one behind the other.
struct OwnParts {
  std::byte* data;
  size_t bytes;  // of one
};

struct Placed {
  Pages pages;
  std::vector<OwnParts> own;  // empty unless homes are apart
};

// Gives every Memory that a phase uses its place in one allocation. apart: threads have different homes, so pages are
// small, and what each thread has for itself lies on pages of its own. groups[p]: the run of phases without a barrier
// that phase p belongs to; it ascends. A thread may be ahead of another within a group, so there memory goes on only
// from rows to rows of the same length and kind: then both threads are in rows of their own. Error when the memory is
// not to be had.
Result<Placed> place(const std::vector<Memory*>&, const std::vector<int>& groups, bool apart);

}  // namespace homenode
