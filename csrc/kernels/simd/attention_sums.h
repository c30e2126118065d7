// Sums of products of some rows' factors with vectors of lanes, in registers: the inner loops of attention over float
// keys and values.
//
// Each sum is one chain of multiply-adds, which takes some four steps an addition; so a block wants eight chains and
// more, and as many as the level has registers for: few rows stand beside several vectors of lanes (lanes_beside).
#pragma once
#include <cstdint>

#define HOMENODE_ATTEND inline __attribute__((always_inline))

namespace homenode {
namespace {

template <int R, int T>
HOMENODE_ATTEND void clear_sums(Lanes (&sums)[R][T]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = fill(0);
  }
}

template <int R, int T>
HOMENODE_ATTEND void load_sums(const float* from, int64_t stride, Lanes (&sums)[R][T]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = load(from + r * stride + 16 * t);
  }
}

template <int R, int T>
HOMENODE_ATTEND void store_sums(const Lanes (&sums)[R][T], float* to, int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) store(to + r * stride + 16 * t, sums[r][t]);
  }
}

// sums[r][t] += x[r * stride] * lanes at at[t].
template <int R, int T>
HOMENODE_ATTEND void add_floats(const float* x, int64_t stride, const float* const (&at)[T], Lanes (&sums)[R][T]) {
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const Lanes v = load(at[t]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) add_product(fill(x[r * stride]), v, sums[r][t]);
  }
}

// sums[r][t] += x[r * stride] * even lanes of the pairs at at[t], then += x[r * stride + 1] * odd ones.
template <int R, int T>
HOMENODE_ATTEND void add_pairs(const float* x, int64_t stride, const uint16_t* const (&at)[T], Lanes (&sums)[R][T]) {
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    Lanes even, odd;
    if constexpr (R > 4) even = load_even(at[t]);  // many sums leave no registers for both at once
    else load_pairs(at[t], even, odd);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) add_product(fill(x[r * stride]), even, sums[r][t]);
    if constexpr (R > 4) odd = load_odd(at[t]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) add_product(fill(x[r * stride + 1]), odd, sums[r][t]);
  }
}

}  // namespace
}  // namespace homenode
