// The table of one level. Include that level's lanes first.
#pragma once
#include "kernels/simd/attention.h"
#include "kernels/simd/attention_int8.h"
#include "kernels/simd/elements.h"

namespace homenode {
namespace {

constexpr Kernels kTable = {rms_norm, rms_scale, scale_row, silu_mul, attend<StoredF32>, attend<StoredBf16>, attend_int8,
                            merge, find_largest, sum_exponentials, exponentials};

}  // namespace
}  // namespace homenode
