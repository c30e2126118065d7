// The inner loops that exist once for each instruction set level, as a table of function pointers. Matrix products have their own (linear.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace homenode {

constexpr int kTileKeys = 16;       // keys side by side in a tile of the KV cache: one vector of lanes
constexpr int kChunkKeys = 256;     // keys whose softmax is computed at once; chunks are counted from position 0
constexpr int kChunkTiles = kChunkKeys / kTileKeys;
constexpr int kQueryRows = 16;      // most (query, head) rows a chunk is computed for at once

// Attention over int8 keys and values multiplies whole numbers. These bounds keep every sum of products in 32 bits, so that it is exact.
constexpr int kKvLimit = 127;         // of a code of a key or value
constexpr int kWeightLimit = 32767;   // of a softmax weight: kChunkKeys * kWeightLimit * 128 < 2^31
constexpr int query_limit(int64_t head_dim) {
  const int64_t most = INT32_MAX / (128 * head_dim);
  return static_cast<int>(most < 32767 ? most : 32767);
}

// Row lengths of attention accumulators: whole lanes.
constexpr int64_t padded_head(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Attention of up to kQueryRows rows over one chunk of one KV head.
struct AttendArgs {
  int rows, head_dim;
  const float* queries;         // [rows, head_dim], times the softmax scale
  const void* const* keys;      // [kChunkTiles] tiles, see kv_cache.h
  const void* const* values;    // [kChunkTiles]
  const int* begin;             // [rows] keys begin <= i < end of the chunk are visible to a row
  const int* end;
  float* scores;                // [kQueryRows, kChunkKeys] work space
  float* largest;               // [rows] out: largest score
  float* sum;                   // [rows] out: sum of exp(score - largest); 0 where nothing is visible
  float* out;                   // [rows, padded_head(head_dim)] out: sum of exp(score - largest) * value
  // For int8 keys instead of `queries`: [rows, head_dim] codes of at most query_limit(head_dim), and what each row's codes are times.
  const int16_t* query_codes = nullptr;
  const float* query_scales = nullptr;
  const void* const* next_keys = nullptr;  // [next_tiles] tiles that will be wanted next: worth fetching meanwhile
  int next_tiles = 0;
};

struct Largest {
  float value;
  int64_t index;  // of the first among equals
  bool nan;       // a NaN was seen (value and index mean nothing then)
};

struct Kernels {
  // out = x / sqrt(mean(x^2) + eps) * weight over `width` values.
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t width, float eps);
  // The two steps of it, for who wants the result piece by piece: 1 / sqrt(mean(x^2) + eps), and out = x * scale * weight.
  float (*rms_scale)(const float* x, int64_t width, float eps);
  void (*scale_row)(const float* x, float scale, const float* weight, float* out, int64_t count);
  // out = gate / (1 + exp(-gate)) * up; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, float* out, int64_t count);
  void (*attend_f32)(const AttendArgs&);
  void (*attend_bf16)(const AttendArgs&);
  void (*attend_int8)(const AttendArgs&);
  // Adds the chunk (largest2, sum2, out2) to the state (largest, sum, out) of one row.
  void (*merge)(float* largest, float* sum, float* out, float largest2, float sum2, const float* out2, int64_t padded);
  Largest (*find_largest)(const float* x, int64_t count);
  // Sum of exp((x - largest) * factor), pieces of a fixed length added in double precision.
  double (*sum_exponentials)(const float* x, int64_t count, float largest, float factor);
  // out = exp((x - largest) * factor), 0 where x is -infinity.
  void (*exponentials)(const float* x, float* out, int64_t count, float largest, float factor);
};

const Kernels& kernels(Level);

}  // namespace homenode
