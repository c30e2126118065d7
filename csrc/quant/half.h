// float32 to and from the two 16-bit floats, without instructions of their own. Not for the level units (see
// CMakeLists.txt).
#pragma once
#include <bit>
#include <cstdint>

namespace homenode {

inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = uint32_t(h & 0x7fff) << 13;
  // Exact, of zero and subnormals too
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  return std::bit_cast<float>(sign | scaled |
                              (magnitude >= 31u << 23 ? 0x7f800000 : 0));   // infinity and NaNs keep their fraction
}

// To nearest, ties to even; too large becomes infinite, a NaN stays one.
inline uint16_t float_to_half(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), magnitude = bits & 0x7fffffff;
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520: halfway from the largest half to the next
  if (magnitude < 0x38800000) {  // below 2^-14: adding 1/2 leaves the rounded multiple of 2^-24 in the last bits
    return sign | uint16_t(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000);
  }
  const uint32_t rebased = magnitude - (112u << 23);
  return sign | uint16_t((rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

inline float bf16_to_float(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

inline uint16_t float_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 64);  // a NaN must not round to infinity
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace homenode
