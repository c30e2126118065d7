// What suits one processor and not another of the same instruction set level: how memory comes to its caches. Nothing
// of it changes a value.
#pragma once
#include "base/isa_detect.h"
#include "linear/table.h"

namespace homenode {

LinearTable tuned_for(Processor, LinearTable);

}  // namespace homenode
