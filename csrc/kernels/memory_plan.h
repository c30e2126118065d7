// Where the intermediate results of a program lie: memory is used again once the phases that need it are over.
#pragma once
#include <vector>

#include "base/status.h"
#include "host/memory.h"
#include "kernels/tensor.h"

namespace homenode {

// Gives every Memory that a phase uses its place in one allocation. groups[p]: the run of phases without a barrier that phase p belongs to; it
// ascends. A thread may be ahead of another within a group, so there memory goes on only from rows to rows of the same length and kind: then both
// threads are in rows of their own. Error when the memory is not to be had.
Result<Pages> place(const std::vector<Memory*>&, const std::vector<int>& groups);

}  // namespace homenode
