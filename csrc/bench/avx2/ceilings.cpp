// AVX2 with FMA.
#include "bench/ceilings_avx2.h"

namespace homenode {

const CeilingTable& ceiling_table_avx2() { return kTable; }

}  // namespace homenode
