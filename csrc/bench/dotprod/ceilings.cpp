// NEON with dot products of bytes.
#include "bench/ceilings_neon.h"

namespace homenode {

const CeilingTable& ceiling_table_dotprod() { return kTable; }

}  // namespace homenode
