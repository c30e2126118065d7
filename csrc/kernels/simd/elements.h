// Row kernels written on Lanes: normalisation, gate, softmax pieces. The order of summation depends on the row's length
// only.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/math.h"

namespace homenode {
namespace {

inline float sum_of_squares(const float* x, int64_t width) {
  Lanes sums[4] = {fill(0), fill(0), fill(0), fill(0)};
  int64_t i = 0;
  for (; i + 64 <= width; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const Lanes v = load(x + i + 16 * j);
      sums[j] = multiply_add(v, v, sums[j]);
    }
  }
  for (int j = 0; i < width; i += 16, ++j) {
    const Lanes v = i + 16 <= width ? load(x + i) : load_first(x + i, width - i);
    sums[j] = multiply_add(v, v, sums[j]);
  }
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

float rms_scale(const float* x, int64_t width, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, width) / static_cast<float>(width) + eps);
}

void scale_row(const float* x, float scale, const float* weight, float* out, int64_t count) {
  const Lanes scales = fill(scale);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, multiply(multiply(load(x + i), scales), load(weight + i)));
  for (; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

void rms_norm(const float* x, const float* weight, float* out, int64_t width, float eps) {
  scale_row(x, rms_scale(x, width, eps), weight, out, width);
}

void rotate(const float* x, float* out, const float* cos_sin, int64_t half, int64_t head_dim) {
  const float* sines = cos_sin + half;
  int64_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const Lanes a = load(x + i), b = load(x + half + i), c = load(cos_sin + i), s = load(sines + i);
    store(out + i, subtract(multiply(a, c), multiply(b, s)));
    store(out + half + i, add(multiply(b, c), multiply(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cos_sin[i] - b * sines[i];
    out[half + i] = b * cos_sin[i] + a * sines[i];
  }
  if (out != x)
    __builtin_memcpy(out + 2 * half, x + 2 * half, static_cast<uint64_t>(head_dim - 2 * half) * sizeof(float));
}

void add_positive(const float* x, float factor, float* out, int64_t count) {
  const Lanes factors = fill(factor), zero = fill(0);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, multiply_add(larger(load(x + i), zero), factors, load(out + i)));
  for (; i < count; i += 16) {
    const Lanes positive = larger(load_first(x + i, count - i), zero);
    store_first(out + i, count - i, multiply_add(positive, factors, load_first(out + i, count - i)));
  }
}

// Columns 16 N of what add_weighted makes.
template <int N>
inline void add_weighted_lanes(const float* x, const float* y, int64_t runs, const float* weights, float offset,
                               float* out, int64_t width) {
  Lanes sums[N];
  for (int j = 0; j < N; ++j) sums[j] = load(x + 16 * j);
  for (int64_t run = 0; run < runs; ++run) {
    const Lanes factor = fill(offset + (weights ? weights[run] : 0));
    for (int j = 0; j < N; ++j) sums[j] = add(sums[j], multiply(factor, load(y + run * width + 16 * j)));
  }
  for (int j = 0; j < N; ++j) store(out + 16 * j, sums[j]);
}

void add_weighted(const float* x, const float* y, int64_t runs, const float* weights, float offset, float* out,
                  int64_t width) {
  int64_t i = 0;
  for (; i + 64 <= width; i += 64) add_weighted_lanes<4>(x + i, y + i, runs, weights, offset, out + i, width);
  for (; i + 16 <= width; i += 16) add_weighted_lanes<1>(x + i, y + i, runs, weights, offset, out + i, width);
  for (; i < width; ++i) {
    float sum = x[i];
    for (int64_t run = 0; run < runs; ++run) sum += (offset + (weights ? weights[run] : 0)) * y[run * width + i];
    out[i] = sum;
  }
}

inline Lanes silu(const Lanes& x) { return divide(x, add(fill(1), exponential(subtract(fill(0), x)))); }

// 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^(-2 u)).
inline Lanes gelu(const Lanes& x) {
  const Lanes cubic = multiply_add(multiply(multiply(x, x), x), fill(0.044715f), x);
  return divide(x, add(fill(1), exponential(multiply(cubic, fill(-1.59576912f)))));
}

// x Phi(x) = max(x, 0) - |x| Phi(-|x|), the tail of the normal distribution by Abramowitz and Stegun (1964), 7.1.26,
// which is off by at most 1e-7. Beyond 20 it is nothing.
inline Lanes gelu_erf(const Lanes& x) {
  const Lanes size = smaller(fill(20.0f), larger(subtract(fill(0), x), x));
  const Lanes t = divide(fill(1), multiply_add(size, fill(0.231641888f), fill(1)));
  Lanes p = fill(1.061405429f);
  p = multiply_add(p, t, fill(-1.453152027f));
  p = multiply_add(p, t, fill(1.421413741f));
  p = multiply_add(p, t, fill(-0.284496736f));
  p = multiply_add(p, t, fill(0.254829592f));
  const Lanes tail = multiply(multiply(p, t), exponential(multiply(multiply(size, size), fill(-0.5f))));
  return subtract(larger(fill(0), x), multiply(multiply(size, fill(0.5f)), tail));
}

inline Lanes relu(const Lanes& x) { return larger(fill(0), x); }

inline Lanes relu2(const Lanes& x) {
  const Lanes positive = larger(fill(0), x);
  return multiply(positive, positive);
}

// e^m - 1 - m with m = min(x, 0): what the exponential has beyond its tangent at 0, and nothing above 0.
inline Lanes exp_rest(const Lanes& x) {
  const Lanes negative = smaller(fill(0), x);
  return subtract(subtract(exponential(negative), fill(1)), negative);
}

template <Lanes (*activation)(const Lanes&)>
void multiply_gates(const float* gate, const float* up, float* out, int64_t count) {
  int64_t i = 0;
  if (!up) {
    for (; i + 16 <= count; i += 16) store(out + i, activation(load(gate + i)));
    if (i < count) store_first(out + i, count - i, activation(load_first(gate + i, count - i)));
    return;
  }
  for (; i + 16 <= count; i += 16) store(out + i, multiply(activation(load(gate + i)), load(up + i)));
  if (i < count)
    store_first(out + i, count - i,
                multiply(activation(load_first(gate + i, count - i)), load_first(up + i, count - i)));
}

// g / (1 + e^(-1.702 g)) * (u + 1), g being gate limited to 7 from above and u up limited to -7 .. 7.
inline Lanes clamped(const Lanes& gate, const Lanes& up) {
  const Lanes g = smaller(fill(7.0f), gate), u = larger(fill(-7.0f), smaller(fill(7.0f), up));
  return multiply(divide(g, add(fill(1), exponential(multiply(g, fill(-1.702f))))), add(u, fill(1)));
}

// g / (1 + e^-g) * u, g being gate limited to 10 from above and u up limited to -10 .. 10.
inline Lanes limited(const Lanes& gate, const Lanes& up) {
  const Lanes g = smaller(fill(10.0f), gate), u = larger(fill(-10.0f), smaller(fill(10.0f), up));
  return multiply(divide(g, add(fill(1), exponential(multiply(g, fill(-1.0f))))), u);
}

template <Lanes (*activation)(const Lanes&, const Lanes&)>
void combine_gates(const float* gate, const float* up, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, activation(load(gate + i), load(up + i)));
  if (i < count)
    store_first(out + i, count - i, activation(load_first(gate + i, count - i), load_first(up + i, count - i)));
}

void soft_cap(const float* x, float cap, float* out, int64_t count) {
  const Lanes caps = fill(cap), parts = fill(1.0f / cap);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, multiply(tanh_of(multiply(load(x + i), parts)), caps));
  if (i < count)
    store_first(out + i, count - i, multiply(tanh_of(multiply(load_first(x + i, count - i), parts)), caps));
}

// The largest of each stretch by vectors; only the stretch that has the largest of all is then searched for where it
// stands.
Largest find_largest(const float* x, int64_t count) {
  constexpr int64_t kStretch = 512;
  const float lowest = -__builtin_inff();
  Lanes poison = fill(0);
  float value = lowest;
  int64_t begin = 0, i = 0;
  for (int64_t stretch = 0; stretch + 16 <= count; stretch += kStretch) {
    const int64_t end = count - stretch < kStretch ? count : stretch + kStretch;
    Lanes best = fill(lowest);
    for (i = stretch; i + 16 <= end; i += 16) {
      const Lanes v = load(x + i);
      // A NaN is passed over here and shows in poison: 0 * x is NaN for NaN (and infinite) x only
      best = larger(v, best);
      poison = multiply_add(v, fill(0), poison);
    }
    const float found = largest_lane(best);
    if (found > value) {
      value = found;
      begin = stretch;
    }
  }
  bool nan = sum_lanes(poison) != 0;
  if (nan) {  // or only infinite: look again
    nan = false;
    for (int64_t j = 0; j < i; ++j) nan |= x[j] != x[j];
  }
  for (; i < count; ++i) {
    nan |= x[i] != x[i];
    if (x[i] > value) {
      value = x[i];
      begin = i;
    }
  }
  int64_t index = begin;
  while (index < count - 1 && x[index] != value) ++index;
  return {value, index, nan};
}

void exponentials(const float* x, float* out, int64_t count, float largest, float factor) {
  const Lanes top = fill(largest), factors = fill(factor);
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t left = count - i;
    const Lanes v = left >= 16 ? load(x + i) : load_first(x + i, left);
    const Lanes e = exponential(multiply(subtract(v, top), factors));
    if (left >= 16) {
      store(out + i, e);
    } else {
      store_first(out + i, left, e);
    }
  }
  const float lowest = -__builtin_inff();
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] == lowest ? 0.0f : out[i];
}

double sum_exponentials(const float* x, int64_t count, float largest, float factor) {
  constexpr int64_t kPiece = 1024;
  float piece[kPiece];
  double total = 0;
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t n = count - i < kPiece ? count - i : kPiece;
    exponentials(x + i, piece, n, largest, factor);
    Lanes sum = fill(0);
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) sum = add(sum, load(piece + j));
    if (j < n) sum = add(sum, load_first(piece + j, n - j));
    total += sum_lanes(sum);
  }
  return total;
}

}  // namespace
}  // namespace homenode
