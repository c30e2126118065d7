// Finished sums on their way to the output. See LinearTable::store.
#pragma once
#include "linear/block.h"

namespace homenode {
namespace {

// All 32 rows of one token. What is added is known at compile time, so that the loop over tokens holds no decision.
template <bool Bias, bool Residual>
HOMENODE_INLINE void store_row(const float* sums, const float* bias, const float* residual, float* out) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Floats value = load_floats(sums + kLanes * v);
    if constexpr (Bias) value = add(value, load_floats(bias + kLanes * v));
    if constexpr (Residual) value = add(value, load_floats(residual + kLanes * v));
    store_floats(out + kLanes * v, value);
  }
}

template <bool Bias, bool Residual>
void store_rows(const float* sums, int64_t tokens, const Outputs& to) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* residual = Residual ? to.residual + t * to.residual_stride : nullptr;
    store_row<Bias, Residual>(sums + t * kGroupRows, to.bias, residual, to.out + t * to.out_stride);
  }
}

// The last group of a matrix may hold fewer rows than a group has.
void store_some_rows(const float* sums, int64_t tokens, const Outputs& to) {
  for (int64_t t = 0; t < tokens; ++t, sums += kGroupRows) {
    float* out = to.out + t * to.out_stride;
    for (int64_t i = 0; i < to.rows; ++i) {
      float value = sums[i];
      if (to.bias) value += to.bias[i];
      if (to.residual) value += to.residual[t * to.residual_stride + i];
      out[i] = value;
    }
  }
}

void store_tile(const float* sums, int64_t tokens, const Outputs& to) {
  if (to.rows < kGroupRows) return store_some_rows(sums, tokens, to);
  if (to.bias)
    return to.residual ? store_rows<true, true>(sums, tokens, to) : store_rows<true, false>(sums, tokens, to);
  to.residual ? store_rows<false, true>(sums, tokens, to) : store_rows<false, false>(sums, tokens, to);
}

}  // namespace
}  // namespace homenode
