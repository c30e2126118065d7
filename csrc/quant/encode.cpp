// Vectors of the compiler do the same operations, in the same order for each value, as the definitions in plain C++ at
// the end of each encoder, which are left for values so small or large that a quotient leaves the normal numbers.
#include "quant/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/half.h"

namespace homenode {
namespace {

constexpr int kBlock = 32, kLanes = 4, kVectors = kBlock / kLanes;
using Floats [[gnu::vector_size(16)]] = float;
using Ints [[gnu::vector_size(16)]] = int32_t;

// Between these a scale and its inverse are normal numbers, with all their digits.
constexpr float kSmallest = 0x1p-100f, kLargest = 0x1p100f;

Floats load(const float* x, int vector) {
  Floats values;
  std::memcpy(&values, x + kLanes * vector, sizeof values);
  return values;
}

void store(Ints codes, int32_t* out, int vector) { std::memcpy(out + kLanes * vector, &codes, sizeof codes); }

void write_scale(uint8_t* out, float d) {
  const uint16_t half = float_to_half(d);
  std::memcpy(out, &half, 2);
}

// The largest magnitude of a block; not a finite number if one of its values is none. Bits of magnitudes are ordered as
// the magnitudes are.
float largest_magnitude(const float* x) {
  Ints most = {};
  for (int v = 0; v < kVectors; ++v) {
    const Ints magnitude = std::bit_cast<Ints>(load(x, v)) & 0x7fffffff;
    most = most > magnitude ? most : magnitude;
  }
  return std::bit_cast<float>(std::max(std::max(most[0], most[1]), std::max(most[2], most[3])));
}

bool in_range(float largest) { return largest >= kSmallest && largest <= kLargest; }

// The first value of this magnitude.
float first_of(const float* x, float magnitude) {
  Ints positive = {}, negative = {};
  for (int v = 0; v < kVectors; ++v) {
    positive |= load(x, v) == magnitude;
    negative |= load(x, v) == -magnitude;
  }
  const auto any = [](Ints lanes) { return (lanes[0] | lanes[1] | lanes[2] | lanes[3]) != 0; };
  if (any(positive) != any(negative)) return any(positive) ? magnitude : -magnitude;
  return *std::find_if(x, x + kBlock, [&](float value) { return std::fabs(value) == magnitude; });
}

// To the nearest whole number, halves away from zero.
Ints rounded(Floats values) {
  const Ints whole = __builtin_convertvector(values, Ints);
  const Floats rest = values - __builtin_convertvector(whole, Floats);  // exact
  return whole - (rest >= 0.5f) + (rest <= -0.5f);                       // a comparison that holds is -1
}

}  // namespace

void encode_q8_0(const float* x, uint8_t* out) {
  std::memset(out + 2, 0, kBlock);
  const float largest = largest_magnitude(x);
  if (!std::isfinite(largest)) return write_scale(out, std::nanf(""));
  const float d = largest / 127, inverse = d == 0 ? 0 : 1 / d;
  write_scale(out, d);
  if (in_range(largest)) {
    int32_t codes[kBlock];
    for (int v = 0; v < kVectors; ++v) store(rounded(load(x, v) * inverse), codes, v);
    for (int i = 0; i < kBlock; ++i) out[2 + i] = uint8_t(codes[i]);
  } else {
    for (int i = 0; i < kBlock; ++i)
      out[2 + i] = uint8_t(int8_t(std::clamp(std::round(x[i] * inverse), -128.f, 127.f)));
  }
}

void encode_q4_0(const float* x, uint8_t* out) {
  std::memset(out + 2, 0, kBlock / 2);
  const float largest = largest_magnitude(x);
  if (!std::isfinite(largest)) return write_scale(out, std::nanf(""));
  const float d = first_of(x, largest) / -8, inverse = d == 0 ? 0 : 1 / d;
  write_scale(out, d);
  if (in_range(largest)) {
    int32_t codes[kBlock];
    for (int v = 0; v < kVectors; ++v) {
      // Above zero: 0.5 at the least, but for rounding
      const Ints code = __builtin_convertvector(load(x, v) * inverse + 8.5f, Ints);
      store(code > 15 ? Ints{15, 15, 15, 15} : code, codes, v);
    }
    for (int i = 0; i < kBlock / 2; ++i) out[2 + i] = uint8_t(codes[i] | codes[i + kBlock / 2] << 4);
  } else {
    for (int i = 0; i < kBlock; ++i) {
      const auto code = uint8_t(std::clamp(x[i] * inverse + 8.5f, 0.f, 15.f));
      out[2 + i % 16] |= uint8_t(code << (4 * (i / 16)));
    }
  }
}

}  // namespace homenode
