#include "kernels/simd/neon.h"

#include "kernels/simd/table.h"

namespace homenode {

extern const Kernels kernels_neon;
const Kernels kernels_neon = kTable;

}  // namespace homenode
