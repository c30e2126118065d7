#include "kernels/simd/avx2.h"

#include "kernels/simd/table.h"

namespace homenode {

extern const Kernels kernels_avx2vnni;
const Kernels kernels_avx2vnni = kTable;

}  // namespace homenode
