// Values as whole numbers times one scale. Plain loops: the compiler makes vectors of them at every level, and every
// level gives the same bits.
#pragma once
#include <cstdint>

namespace homenode {
namespace {

// Rounds n values to codes of at most `limit` in magnitude, halves to even, so that value = scale * code; the largest
// magnitude becomes `limit` (below 2^22, and what Code can hold). Returns the scale. Where a value is not finite the
// scale is NaN, where all are as good as zero it is 0; the codes are 0 then.
template <class Code>
inline float encode_symmetric(const float* x, int64_t n, float limit, Code* out) {
  int32_t largest_bits = 0;  // as integers magnitudes compare like the floats, and a NaN is above infinity
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  float largest;
  __builtin_memcpy(&largest, &largest_bits, sizeof largest);
  if (largest_bits > 0x7f7fffff || largest < 1e-30f) {  // the inverse of a smaller one could overflow
    __builtin_memset(out, 0, static_cast<uint64_t>(n) * sizeof(Code));
    return largest < 1e-30f ? 0.0f : __builtin_nanf("");
  }
  const float inverse = limit / largest;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no room for fractions
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Code>((x[i] * inverse + kRound) - kRound);
  return largest / limit;
}

}  // namespace
}  // namespace homenode
