// A vector that comes by an instruction of its own: as an operand of each instruction that takes it, its load would be
// repeated.
#pragma once

namespace homenode {
namespace {

template <class Vector>
inline __attribute__((always_inline)) Vector in_register(Vector x) {
#ifdef HOMENODE_EMULATE_AVX512
  asm("" : "+m"(x));
#else
  asm("" : "+v"(x));
#endif
  return x;
}

}  // namespace
}  // namespace homenode
