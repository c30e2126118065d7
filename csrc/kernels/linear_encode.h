// Activations as small integers. See EncodedPart.
#pragma once
#include "kernels/linear_block.h"

namespace homenode {
namespace {

void encode_part(const float* x, EncodedPart* out) {
  constexpr int kPerHalf = kPartColumns / 2 / kLanes;
  Ints bits = zero_ints();  // of the largest magnitude: as integers they compare like the floats, and a NaN is above infinity
  for (int i = 0; i < 2 * kPerHalf; ++i) {
    bits = larger_ints(bits, bit_and(as_ints(load_floats(x + kLanes * i)), broadcast_int(0x7fffffff)));
  }
  const int32_t largest_bits = largest_lane(bits);
  const float largest = __builtin_bit_cast(float, largest_bits);
  *out = EncodedPart{};
  if (largest_bits > 0x7f7fffff) {
    out->scale = __builtin_nanf("");
    return;
  }
  if (largest < 1e-30f) return;  // as good as zero; its inverse could overflow
  out->scale = largest / 127.0f;
  const float inverse = 127.0f / largest;
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
}

void encode_columns(const float* x, int64_t columns, EncodedPart* out) {
  for (; columns >= kPartColumns; columns -= kPartColumns, x += kPartColumns) encode_part(x, out++);
  if (columns > 0) {
    float rest[kPartColumns] = {};
    for (int i = 0; i < columns; ++i) rest[i] = x[i];
    encode_part(rest, out);
  }
}

}  // namespace
}  // namespace homenode
