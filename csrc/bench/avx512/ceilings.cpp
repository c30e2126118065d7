// AVX-512 with VNNI.
#include "bench/ceilings_avx512.h"

namespace homenode {

const CeilingTable& ceiling_table_avx512() { return kTable; }

}  // namespace homenode
