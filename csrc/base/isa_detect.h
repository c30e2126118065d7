// What this processor and the kernel that runs it can do: the facts behind level_lack.
#pragma once
#include "base/isa.h"

namespace homenode {

// What the processor or the kernel lacks for a level, whether it was built or not; null when nothing.
const char* processor_lack(Level);

}  // namespace homenode
