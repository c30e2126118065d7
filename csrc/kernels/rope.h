// Rotary position embedding of one head.
#pragma once
#include <cstdint>
#include <cstring>

namespace homenode {

// Pairs element i with i + half and turns each pair by its angle: cos_sin holds `half` cosines, then `half` sines. What lies beyond the pairs
// passes unchanged. x and out may be the same.
inline void rotate(const float* x, float* out, const float* cos_sin, int64_t half, int64_t head_dim) {
  const float* sines = cos_sin + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos_sin[i] - b * sines[i];
    out[i + half] = b * cos_sin[i] + a * sines[i];
  }
  if (out != x) std::memcpy(out + 2 * half, x + 2 * half, static_cast<size_t>(head_dim - 2 * half) * sizeof(float));
}

}  // namespace homenode
