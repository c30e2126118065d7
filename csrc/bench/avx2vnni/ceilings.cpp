// AVX2 with FMA and AVX-VNNI.
#include "bench/ceilings_avx2.h"

namespace homenode {

const CeilingTable& ceiling_table_avx2vnni() { return kTable; }

}  // namespace homenode
