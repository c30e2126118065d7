// AVX-512 with VNNI and BF16.
#include "bench/ceilings_avx512.h"

namespace homenode {

const CeilingTable& ceiling_table_avx512bf16() { return kTable; }

}  // namespace homenode
