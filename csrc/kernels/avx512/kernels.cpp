#include "kernels/simd/avx512.h"

#include "kernels/simd/table.h"

namespace homenode {

extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = kTable;

}  // namespace homenode
