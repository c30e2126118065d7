// What all levels build from Lanes: the exponential, and parts of a vector. Include one of scalar.h, avx2.h, avx512.h, neon.h first.
#pragma once

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

// 2^x to about 2 units in the last place for x in [-126, 127]; clamped outside (so never 0 or infinite); NaN stays NaN.
// x = n + r with |r| <= 1/2; the polynomial of 2^r, exactly 1 at 0, is off by at most 2e-9.
inline Lanes power_of_two_at(Lanes x) {
  x = larger(fill(-126.0f), smaller(fill(127.0f), x));
  const Lanes n = round_even(x), r = subtract(x, n);
  Lanes p = fill(1.5353362e-4f);
  p = multiply_add(p, r, fill(1.3398875e-3f));
  p = multiply_add(p, r, fill(9.61843692e-3f));
  p = multiply_add(p, r, fill(5.55033237e-2f));
  p = multiply_add(p, r, fill(0.240226477f));
  p = multiply_add(p, r, fill(0.693147182f));
  p = multiply_add(p, r, fill(1.0f));
  return scale_by_power(p, n);
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
