// What all levels build from Lanes: the exponential, and parts of a vector. Include one of scalar.h, avx2.h, avx512.h,
// neon.h first.
#pragma once
#include <cstdint>

namespace homenode {
namespace {

// e^x to about 2 units in the last place for x in [-87.3, 88]; clamped outside (so never 0 or infinite); NaN stays NaN.
// x = n ln2 + r with |r| <= ln2 / 2, and the Taylor polynomial of e^r to degree 7 (the rest is below 2^-27).
inline Lanes exponential(Lanes x) {
  x = larger(fill(-87.3f), smaller(fill(88.0f), x));
  const Lanes n = round_even(multiply(x, fill(1.44269504f)));
  Lanes r = multiply_add(n, fill(-0.693145752f), x);
  r = multiply_add(n, fill(-1.42860677e-6f), r);
  Lanes p = fill(1.0f / 5040);
  p = multiply_add(p, r, fill(1.0f / 720));
  p = multiply_add(p, r, fill(1.0f / 120));
  p = multiply_add(p, r, fill(1.0f / 24));
  p = multiply_add(p, r, fill(1.0f / 6));
  p = multiply_add(p, r, fill(0.5f));
  p = multiply_add(p, r, fill(1.0f));
  p = multiply_add(p, r, fill(1.0f));
  return scale_by_power(p, n);
}

// 2^r - 1 for |r| <= 1/2, to about a unit in the last place: a polynomial without a constant, off by at most 2e-9.
inline Lanes power_of_two_less_1(const Lanes& r) {
  Lanes p = fill(1.5353362e-4f);
  p = multiply_add(p, r, fill(1.3398875e-3f));
  p = multiply_add(p, r, fill(9.61843692e-3f));
  p = multiply_add(p, r, fill(5.55033237e-2f));
  p = multiply_add(p, r, fill(0.240226477f));
  p = multiply_add(p, r, fill(0.693147182f));
  return multiply(p, r);
}

// 2^x to about 2 units in the last place for x in [-126, 127]; clamped outside (so never 0 or infinite); NaN stays NaN.
// 1 at 0.
inline Lanes power_of_two_at(Lanes x) {
  x = larger(fill(-126.0f), smaller(fill(127.0f), x));
  const Lanes n = round_even(x);
  return scale_by_power(add(power_of_two_less_1(subtract(x, n)), fill(1.0f)), n);
}

// The same for x in -infinity .. 0.
inline Lanes power_of_two_below_1(Lanes x) {
  x = larger(fill(-126.0f), x);
  const Lanes n = round_even(x);
  return scale_by_power(add(power_of_two_less_1(subtract(x, n)), fill(1.0f)), n);
}

// tanh(x) = (2^y - 1) / (2^y + 1) with y = 2 x / ln 2, to a few units in the last place: near 0 nothing cancels, as n
// is 0 there.
inline Lanes tanh_of(const Lanes& x) {
  const Lanes y = larger(fill(-64.0f), smaller(fill(64.0f), multiply(x, fill(2.88539008f)))), n = round_even(y);
  const Lanes scale = scale_by_power(fill(1.0f), n);
  const Lanes less_1 = multiply_add(scale, power_of_two_less_1(subtract(y, n)), subtract(scale, fill(1.0f)));
  return divide(less_1, add(less_1, fill(2.0f)));
}

// The same arithmetic for one value.
inline float exponential(float x) {
  float v[16];
  store(v, exponential(fill(x)));
  return v[0];
}

// The first `count` values at p, zeros in the other lanes.
inline Lanes load_first(const float* p, int64_t count) {
  float v[16] = {};
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return load(v);
}

inline void store_first(float* p, int64_t count, const Lanes& x) {
  float v[16];
  store(v, x);
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

}  // namespace
}  // namespace homenode
