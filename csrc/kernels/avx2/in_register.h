// A vector that comes by an instruction of its own: as an operand of each one that takes it, its load would be repeated.
#pragma once

namespace homenode {
namespace {

template <class Vector>
inline __attribute__((always_inline)) Vector in_register(Vector x) {
  asm("" : "+x"(x));
  return x;
}

}  // namespace
}  // namespace homenode
