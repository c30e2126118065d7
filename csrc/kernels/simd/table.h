// The table of one level. Include that level's lanes first.
#pragma once
#include "kernels/simd/attention.h"
#include "kernels/simd/attention_int8.h"
#include "kernels/simd/delta.h"
#include "kernels/simd/elements.h"
#include "kernels/simd/kv_copy.h"
#include "kernels/simd/kv_store.h"
#include "kernels/simd/scan.h"

namespace homenode {
namespace {

constexpr Kernels kTable = {
    rms_norm,
    rms_scale,
    scale_row,
    rotate,
    silu_mul,
    gelu_mul,
    gelu_erf_mul,
    relu2_mul,
    exp_rest_mul,
    clamped_mul,
    limited_mul,
    soft_cap,
    {{4, load_query_floats, put_key_f32, put_values_f32, attend<StoredF32>, score<StoredF32>},
     {4, load_query_floats, put_key_bf16, put_values_bf16, attend<StoredBf16>, score<StoredBf16>},
     {2, load_query_codes, put_key_int8, put_values_int8, attend_int8, score_int8}},
    merge_rows,
    divide_row,
    find_largest,
    sum_exponentials,
    exponentials,
    copy_tiles,
    sigmoid_mul,
    multiply_rows,
    convolve,
    delta_rule,
    selective_scan,
    add_positive,
};

}  // namespace
}  // namespace homenode
