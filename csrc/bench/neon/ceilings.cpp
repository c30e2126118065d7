// NEON as every 64-bit Arm processor has it.
#include "bench/ceilings_neon.h"

namespace homenode {

const CeilingTable& ceiling_table_neon() { return kTable; }

}  // namespace homenode
