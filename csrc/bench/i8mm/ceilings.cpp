// NEON with matrix products of bytes and of bfloat16.
#include "bench/ceilings_neon.h"

namespace homenode {

const CeilingTable& ceiling_table_i8mm() { return kTable; }

}  // namespace homenode
