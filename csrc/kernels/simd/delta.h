// The gated delta rule, the short convolution before it and a gate, on Lanes. A sum's order depends on the widths only,
// so that a token's result has the same bits however many tokens are computed at once.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/elements.h"

namespace homenode {
namespace {

inline Lanes sigmoid(const Lanes& x) { return divide(fill(1), add(fill(1), exponential(subtract(fill(0), x)))); }

void sigmoid_mul(const float* gate, const float* x, float* out, int64_t count) {
  multiply_gates<sigmoid>(gate, x, out, count);
}

inline Lanes unchanged(const Lanes& x) { return x; }

void multiply_rows(const float* x, const float* y, float* out, int64_t count) {
  multiply_gates<unchanged>(x, y, out, count);
}

// sum += x[i] * rows[i] over the rows of a panel, in four sums that take turns.
template <class Row>
inline Lanes sum_of_rows(int count, Row&& row) {
  Lanes sums[4] = {fill(0), fill(0), fill(0), fill(0)};
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int j = 0; j < 4; ++j) row(i + j, sums[j]);
  }
  for (int j = 0; i + j < count; ++j) row(i + j, sums[j]);
  return add(add(sums[0], sums[1]), add(sums[2], sums[3]));
}

// The same where each row of the state has a decay of its own.
void delta_rule_by_row(const DeltaArgs& a) {
  const bool whole = a.columns == 16;
  const int width = a.key_width;
  float* const state = a.state;
  for (int t = 0; t < a.tokens; ++t) {
    const int64_t first = int64_t(t) * width;
    const float *k = a.k + first, *q = a.q + first, *decay = a.decay + first, *v = a.v + t * a.v_stride;
    float* const out = a.out + t * a.out_stride;
    const Lanes seen = sum_of_rows(width, [&](int i, Lanes& sum) {
      const Lanes kept = multiply(load(state + 16 * i), fill(decay[i]));
      store(state + 16 * i, kept);
      sum = multiply_add(fill(k[i]), kept, sum);
    });
    const Lanes change = multiply(subtract(whole ? load(v) : load_first(v, a.columns), seen), fill(a.beta[t]));
    const Lanes found = sum_of_rows(width, [&](int i, Lanes& sum) {
      const Lanes row = multiply_add(fill(k[i]), change, load(state + 16 * i));
      store(state + 16 * i, row);
      sum = multiply_add(fill(q[i]), row, sum);
    });
    if (whole) store(out, found);
    else store_first(out, a.columns, found);
  }
}

void delta_rule(const DeltaArgs& a) {
  if (a.by_row) return delta_rule_by_row(a);
  const bool whole = a.columns == 16;
  const int width = a.key_width;
  float* const state = a.state;  // by itself: what is stored there is no argument
  for (int t = 0; t < a.tokens; ++t) {
    const float *k = a.k + int64_t(t) * width, *q = a.q + int64_t(t) * width, *v = a.v + t * a.v_stride;
    float* const out = a.out + t * a.out_stride;
    const Lanes decay = fill(a.decay[t]);
    const Lanes seen =
        sum_of_rows(width, [&](int i, Lanes& sum) { sum = multiply_add(fill(k[i]), load(state + 16 * i), sum); });
    const Lanes value = whole ? load(v) : load_first(v, a.columns);
    const Lanes change = multiply(subtract(value, multiply(seen, decay)), fill(a.beta[t]));
    const Lanes found = sum_of_rows(width, [&](int i, Lanes& sum) {
      const Lanes row = multiply_add(fill(k[i]), change, multiply(load(state + 16 * i), decay));
      store(state + 16 * i, row);
      sum = multiply_add(fill(q[i]), row, sum);
    });
    if (whole) store(out, found);
    else store_first(out, a.columns, found);
  }
}

void convolve(const ConvolveArgs& a) {
  for (int64_t i = 0; i < a.count; i += 16) {
    const int64_t left = a.count - i < 16 ? a.count - i : 16;
    const auto lanes = [=](const float* p) { return left == 16 ? load(p + i) : load_first(p + i, left); };
    Lanes sum = a.bias ? lanes(a.bias) : fill(0);
    for (int j = 0; j < a.width; ++j) {
      if (a.inputs[j]) sum = multiply_add(lanes(a.weights + j * a.weight_stride), lanes(a.inputs[j]), sum);
    }
    if (a.silu) sum = silu(sum);
    if (left == 16) store(a.out + i, sum);
    else store_first(a.out + i, left, sum);
  }
}

}  // namespace
}  // namespace homenode
