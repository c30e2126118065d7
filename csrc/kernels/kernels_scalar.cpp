#include "kernels/simd/scalar.h"
#include "kernels/simd/table.h"

namespace homenode {

extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512bf16;

const Kernels& kernels(Level level) {
#ifdef HOMENODE_HAVE_AVX512BF16
  if (level >= Level::avx512bf16) return kernels_avx512bf16;
#endif
#ifdef HOMENODE_HAVE_AVX512
  if (level >= Level::avx512) return kernels_avx512;
#endif
#ifdef HOMENODE_HAVE_AVX2
  if (level >= Level::avx2) return kernels_avx2;
#endif
  (void)level;
  return kTable;
}

}  // namespace homenode
