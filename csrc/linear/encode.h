// Activations as small integers. See EncodedPart.
#pragma once
#include "linear/block.h"

namespace homenode {
namespace {

constexpr int kLowBits = 20;  // of a float's significand below the eighths
constexpr float kAnchor = 12582912.0f;  // 1.5 * 2^23: a float whose last bit counts ones
constexpr int32_t kLargestMagnitude = __builtin_bit_cast(int32_t, 1e33f);  // anchors of larger ones would overflow

// Rounds `least` up to an eighth of its power of two.
HOMENODE_INLINE void set_scale(float least, EncodedPart* out) {
  const int32_t rounded = (__builtin_bit_cast(int32_t, least) + (1 << kLowBits) - 1) >> kLowBits << kLowBits;
  out->scale = __builtin_bit_cast(float, rounded);
  out->anchor = __builtin_bit_cast(float, (rounded >> 23) * (1 << 23)) * kAnchor;
  out->factor = (rounded >> kLowBits & (kEighths - 1)) * kPanelFloats;
}

void encode_part(const float* x, EncodedPart* out) {
  constexpr int kPerHalf = kPartColumns / 2 / kLanes;
  // Of the largest magnitude: as integers they compare like the floats, and a NaN is above infinity
  Ints bits = zero_ints();
  for (int i = 0; i < 2 * kPerHalf; ++i) {
    bits = larger_ints(bits, bit_and(as_ints(load_floats(x + kLanes * i)), broadcast_int(0x7fffffff)));
  }
  const int32_t largest_bits = largest_lane(bits);
  const float largest = __builtin_bit_cast(float, largest_bits);
  *out = EncodedPart{};
  out->anchor = kAnchor;
  if (largest_bits > kLargestMagnitude) {
    out->scale = out->anchor = out->minus_total = __builtin_nanf("");
    return;
  }
  if (largest < 1e-30f) return;  // as good as zero; its inverse could overflow
  set_scale(largest / 127.0f, out);
  const float inverse = 1.0f / out->scale;
  const Floats factor = broadcast_float(&inverse);
  for (int h = 0; h < 2; ++h) {
    Ints sum = zero_ints();
    for (int i = h * kPerHalf; i < (h + 1) * kPerHalf; ++i) {
      const Ints codes = round_to_ints(multiply(load_floats(x + kLanes * i), factor));
      store_signed8(out->codes + kLanes * i, codes);
      sum = add_ints(sum, codes);
    }
    out->minus_half_sum[h] = -sum_lanes(sum);
  }
  out->minus_sum = out->minus_half_sum[0] + out->minus_half_sum[1];
  out->minus_total = out->scale * float(out->minus_sum);
}

void encode_parts(const float* x, int64_t tokens, int64_t parts, EncodedPart* out, int64_t stride) {
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t token = 0; token < tokens; ++token, x += kPartColumns) encode_part(x, out + token * stride + part);
  }
}

}  // namespace
}  // namespace homenode
