#include "kernels/simd/scalar.h"
#include "kernels/simd/table.h"

namespace homenode {

extern const Kernels kernels_avx2, kernels_avx2vnni, kernels_avx512, kernels_avx512bf16, kernels_neon;
const Kernels& kernels_amx();

const Kernels& kernels(Level level) {
  switch (level) {
#ifdef HOMENODE_HAVE_AMX
    case Level::amx: return kernels_amx();
#endif
#ifdef HOMENODE_HAVE_AVX512BF16
    case Level::avx512bf16: return kernels_avx512bf16;
#endif
#ifdef HOMENODE_HAVE_AVX512
    case Level::avx512: return kernels_avx512;
#endif
#ifdef HOMENODE_HAVE_AVX2VNNI
    case Level::avx2vnni: return kernels_avx2vnni;
#endif
#ifdef HOMENODE_HAVE_AVX2
    case Level::avx2: return kernels_avx2;
#endif
#ifdef HOMENODE_HAVE_NEON
    case Level::i8mm:
    case Level::dotprod:
    case Level::neon: return kernels_neon;
#endif
    default: return kTable;
  }
}

}  // namespace homenode
