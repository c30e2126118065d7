// A 512-bit register as two of 256 bits, or as an array of lanes (see avx512.h).
#pragma once
#include <immintrin.h>

#include <cstdint>

#define HOMENODE_EMULATED [[gnu::always_inline]] inline

namespace homenode {
namespace {
namespace emulation {

HOMENODE_EMULATED void require(bool holds) {
  if (!holds) __builtin_trap();
}

// What the processor would refuse.
template <class P>
HOMENODE_EMULATED P* aligned(P* p) {
  require(reinterpret_cast<uintptr_t>(p) % 64 == 0);
  return p;
}

HOMENODE_EMULATED __m512 load_floats(const void* p) {
  __m512 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
HOMENODE_EMULATED __m512i load_ints(const void* p) {
  __m512i x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

struct TwoFloats {
  __m256 at[2];
};
struct TwoInts {
  __m256i at[2];
};
HOMENODE_EMULATED __m256 half(__m512 x, int which) { return __builtin_bit_cast(TwoFloats, x).at[which]; }
HOMENODE_EMULATED __m256i half(__m512i x, int which) { return __builtin_bit_cast(TwoInts, x).at[which]; }
HOMENODE_EMULATED __m512 join(__m256 low, __m256 high) { return __builtin_bit_cast(__m512, TwoFloats{{low, high}}); }
HOMENODE_EMULATED __m512i join(__m256i low, __m256i high) { return __builtin_bit_cast(__m512i, TwoInts{{low, high}}); }

// work(the same half of each).
template <class Work, class... Vector>
HOMENODE_EMULATED auto by_halves(Work work, Vector... x) {
  return join(work(half(x, 0)...), work(half(x, 1)...));
}

template <class T, int Bytes = 64>
struct Lanes {
  T at[Bytes / sizeof(T)];
};
template <class T>
using Lanes512 = Lanes<T>;
template <class T, class Vector>
HOMENODE_EMULATED Lanes<T, sizeof(Vector)> lanes_of(Vector x) {
  return __builtin_bit_cast(Lanes<T, sizeof(Vector)>, x);
}

// lane(i) in lane i.
template <class T, class Vector, class Lane>
HOMENODE_EMULATED Vector by_lanes(Lane lane) {
  Lanes<T, sizeof(Vector)> all;
  for (int i = 0; i < int(sizeof(Vector) / sizeof(T)); ++i) all.at[i] = lane(i);
  return __builtin_bit_cast(Vector, all);
}
// Lanes of `x` where the mask's bit is set, of `other` elsewhere.
template <class T, class Vector>
HOMENODE_EMULATED Vector chosen(uint64_t mask, Vector x, Vector other) {
  const auto first = lanes_of<T>(x), second = lanes_of<T>(other);
  return by_lanes<T, Vector>([&](int i) { return mask >> i & 1 ? first.at[i] : second.at[i]; });
}
// The highest bit of each 32-bit lane.
HOMENODE_EMULATED __mmask16 mask_of(__m512i x) {
  const int low = _mm256_movemask_ps(_mm256_castsi256_ps(half(x, 0))),
            high = _mm256_movemask_ps(_mm256_castsi256_ps(half(x, 1)));
  return static_cast<__mmask16>(low | high << 8);
}

}  // namespace emulation
}  // namespace
}  // namespace homenode
