// What a head goes through between its projection and attention: an RMS norm of its own, then the rotary embedding;
// either may be missing.
#pragma once
#include <cstdint>

#include "kernels/kernels.h"

namespace homenode {

// Bit by bit what the operations rms_norm and rope compute, for one head where it is loaded instead of for whole rows
// before.
struct NormRope {
  const float* norm_weight = nullptr;  // [head_dim]; null: no norm
  float eps = 0;
  const float* angles = nullptr;       // [tokens] rows of `half` cosines and `half` sines; null: no rotation
  int64_t angles_stride = 0, half = 0;

  // The head of `token` at x as attention wants it: `out` ([head_dim]) holding it, or x itself where there is nothing
  // to do.
  const float* apply(const Kernels& kernels, const float* x, int64_t token, int64_t head_dim, float* out) const {
    if (norm_weight) {
      kernels.rms_norm(x, norm_weight, out, head_dim, eps);
      x = out;
    }
    if (!angles) return x;
    kernels.rotate(x, out, angles + token * angles_stride, half, head_dim);
    return out;
  }
};

}  // namespace homenode
