// What this processor and the kernel that runs it can do: the facts behind level_lack.
#pragma once
#include "base/isa.h"

namespace homenode {

// What the processor or the kernel lacks for a level, whether it was built or not; null when nothing.
const char* processor_lack(Level);

// Processors that differ in what no instruction tells: how they bring memory to their caches, and what they take for
// an instruction.
enum class Processor { other, zen4, golden_cove };
Processor processor();

}  // namespace homenode
