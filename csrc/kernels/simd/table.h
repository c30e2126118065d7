// The table of one level. Include that level's lanes first.
#pragma once
#include "kernels/simd/attention.h"
#include "kernels/simd/attention_coded.h"
#include "kernels/simd/delta.h"
#include "kernels/simd/elements.h"
#include "kernels/simd/kv_copy.h"
#include "kernels/simd/kv_store.h"
#include "kernels/simd/scan.h"

namespace homenode {
namespace {

#define HOMENODE_PLAIN(name) multiply_gates<name>,
#define HOMENODE_PAIR(name) combine_gates<name>,

constexpr Kernels kTable = {
    .rms_norm = rms_norm,
    .rms_scale = rms_scale,
    .scale_row = scale_row,
    .rotate = rotate,
    .gates = {HOMENODE_PLAIN_ACTIVATIONS(HOMENODE_PLAIN) HOMENODE_PAIR_ACTIVATIONS(HOMENODE_PAIR)},
    .soft_cap = soft_cap,
    .kv = {{4, load_query_floats, put_key_f32, put_values_f32, attend<StoredF32>, score<StoredF32>},
           {4, load_query_floats, put_key_bf16, put_values_bf16, attend<StoredBf16>, score<StoredBf16>},
           {2, load_query_codes, put_key_int8, put_values_int8, attend_coded<StoredInt8>, score_coded<StoredInt8>}},
    .merge = merge_rows,
    .divide = divide_row,
    .find_largest = find_largest,
    .sum_exponentials = sum_exponentials,
    .exponentials = exponentials,
    .copy_tiles = copy_tiles,
    .sigmoid_mul = sigmoid_mul,
    .multiply_rows = multiply_rows,
    .convolve = convolve,
    .delta_rule = delta_rule,
    .selective_scan = selective_scan,
    .add_positive = add_positive,
    .add_weighted = add_weighted,
};

#undef HOMENODE_PLAIN
#undef HOMENODE_PAIR

}  // namespace
}  // namespace homenode
