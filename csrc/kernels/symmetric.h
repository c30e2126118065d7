// Values as whole numbers times one scale, for the portable units.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

namespace homenode {

// Rounds n values to codes of at most `limit` in magnitude, halves to even, so that value = scale * code; the largest magnitude becomes `limit`
// (below 2^22, and what Code can hold). Returns the scale. Where a value is not finite the scale is NaN, where all are as good as zero it is 0; the
// codes are 0 then.
template <class Code>
float encode_symmetric(const float* x, int64_t n, float limit, Code* out) {
  int32_t largest_bits = 0;  // as integers magnitudes compare like the floats, and a NaN is above infinity
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  if (largest_bits > 0x7f7fffff || largest < 1e-30f) {  // the inverse of a smaller one could overflow
    std::memset(out, 0, static_cast<size_t>(n) * sizeof(Code));
    return largest < 1e-30f ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = limit / largest;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no room for fractions
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Code>((x[i] * inverse + kRound) - kRound);
  return largest / limit;
}

}  // namespace homenode
