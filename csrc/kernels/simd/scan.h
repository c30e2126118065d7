// The recurrence of Mamba 2 on Lanes. Several tokens go through a row of the state together, in the order in which they
// would one after the other, so that a token's result has the same bits however many are computed at once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/math.h"

namespace homenode {
namespace {

// Tokens of `a` from `first` on.
template <int kTokens>
inline void scan_tokens(const ScanArgs& a, int first) {
  const float *q = a.q + first * a.stride, *k = a.k + first * a.stride;
  float* const state = a.state;  // by itself: what is stored there is no argument
  Lanes value[kTokens], decay[kTokens], sums[2][kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const float* v = a.v + (first + t) * a.stride;
    value[t] = multiply(a.columns == 16 ? load(v) : load_first(v, a.columns), fill(a.share[first + t]));
    decay[t] = fill(a.decay[first + t]);
    sums[0][t] = sums[1][t] = fill(0);
  }
  const auto pass = [&](int i, Lanes(&sum)[kTokens]) {
    Lanes row = load(state + 16 * i);
    for (int t = 0; t < kTokens; ++t) {
      row = multiply_add(fill(k[t * a.stride + i]), value[t], multiply(row, decay[t]));
      sum[t] = multiply_add(fill(q[t * a.stride + i]), row, sum[t]);
    }
    store(state + 16 * i, row);
  };
  int i = 0;
  for (; i + 2 <= a.key_width; i += 2) pass(i, sums[0]), pass(i + 1, sums[1]);
  if (i < a.key_width) pass(i, sums[0]);
  for (int t = 0; t < kTokens; ++t) {
    const float* v = a.v + (first + t) * a.stride;
    float* const out = a.out + (first + t) * a.out_stride;
    const Lanes given = a.columns == 16 ? load(v) : load_first(v, a.columns);
    const Lanes found = multiply_add(given, fill(a.skip), add(sums[0][t], sums[1][t]));
    if (a.columns == 16) store(out, found);
    else store_first(out, a.columns, found);
  }
}

void selective_scan(const ScanArgs& a) {
  int t = 0;
  for (; t + 4 <= a.tokens; t += 4) scan_tokens<4>(a, t);
  for (; t < a.tokens; ++t) scan_tokens<1>(a, t);
}

}  // namespace
}  // namespace homenode
