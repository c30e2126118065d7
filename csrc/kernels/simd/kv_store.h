// Queries as attention multiplies them, and keys and values into the tiles of the KV memory (see kv/cache.h).
//
// Plain loops over a head: the compiler makes vectors of them at every level, and rounding is the same at each.
#pragma once
#include "kernels/kernels.h"
#include "kernels/simd/symmetric.h"

namespace homenode {
namespace {

// To nearest, halves to even; a NaN stays one.
inline uint32_t to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), kept = bits | 0x400000;
  return ((bits & 0x7fffffffu) > 0x7f800000u ? kept : rounded) >> 16;
}

// One token of keys: `Pair` holds two elements of a head, the one with the lower index below.
template <class Pair>
inline void scatter_pairs(const Pair* pairs, int64_t head_dim, int token, void* tile) {
  Pair* out = static_cast<Pair*>(tile) + token;
  for (int64_t i = 0; i < head_dim / 2; ++i) out[i * kTileKeys] = pairs[i];
}

// Values of one token, every second element of the pairs it shares with its neighbour; the neighbour may belong to
// another thread.
template <class Element>
inline void put_alternate(const Element* value, int64_t head_dim, int token, void* tile) {
  Element* out = static_cast<Element*>(tile) + (token / 2) * 2 * head_dim + token % 2;
  for (int64_t d = 0; d < head_dim; ++d) out[2 * d] = value[d];
}

inline float load_query_floats(const float* q, int64_t head_dim, float scale, void* out) {
  for (int64_t d = 0; d < head_dim; ++d) static_cast<float*>(out)[d] = q[d] * scale;
  return 1;
}

inline float load_query_codes(const float* q, int64_t head_dim, float scale, void* out) {
  return encode_symmetric(q, head_dim, static_cast<float>(query_limit(head_dim)), static_cast<int16_t*>(out)) * scale;
}

inline void put_key_f32(const float* key, int64_t head_dim, int token, void* tile) {
  float* out = static_cast<float*>(tile) + token;
  for (int64_t d = 0; d < head_dim; ++d) out[d * kTileKeys] = key[d];
}

inline void put_values_f32(const float* value, const float* next, int64_t head_dim, int token, void* tile) {
  float* out = static_cast<float*>(tile) + token * head_dim;
  __builtin_memcpy(out, value, static_cast<uint64_t>(head_dim) * sizeof(float));
  if (next) __builtin_memcpy(out + head_dim, next, static_cast<uint64_t>(head_dim) * sizeof(float));
}

inline void put_key_bf16(const float* key, int64_t head_dim, int token, void* tile) {
  uint32_t pairs[kMostHead / 2];
  for (int64_t i = 0; i < head_dim / 2; ++i) pairs[i] = to_bf16(key[2 * i]) | to_bf16(key[2 * i + 1]) << 16;
  scatter_pairs(pairs, head_dim, token, tile);
}

inline void put_values_bf16(const float* value, const float* next, int64_t head_dim, int token, void* tile) {
  if (next) {
    uint32_t* out = static_cast<uint32_t*>(tile) + token / 2 * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) out[d] = to_bf16(value[d]) | to_bf16(next[d]) << 16;
    return;
  }
  uint16_t rounded[kMostHead];
  for (int64_t d = 0; d < head_dim; ++d) rounded[d] = static_cast<uint16_t>(to_bf16(value[d]));
  put_alternate(rounded, head_dim, token, tile);
}

inline void put_scale(float scale, int64_t head_dim, int token, void* tile) {
  __builtin_memcpy(static_cast<int8_t*>(tile) + kTileKeys * head_dim + token * static_cast<int>(sizeof scale), &scale,
                   sizeof scale);
}

inline void put_key_int8(const float* key, int64_t head_dim, int token, void* tile) {
  int8_t codes[kMostHead];
  put_scale(encode_symmetric(key, head_dim, kKvLimit, codes), head_dim, token, tile);
  uint16_t pairs[kMostHead / 2];
  __builtin_memcpy(pairs, codes, static_cast<uint64_t>(head_dim));
  scatter_pairs(pairs, head_dim, token, tile);
}

inline void put_values_int8(const float* value, const float* next, int64_t head_dim, int token, void* tile) {
  int8_t codes[2][kMostHead];
  put_scale(encode_symmetric(value, head_dim, kKvLimit, codes[0]), head_dim, token, tile);
  if (!next) return put_alternate(codes[0], head_dim, token, tile);
  put_scale(encode_symmetric(next, head_dim, kKvLimit, codes[1]), head_dim, token + 1, tile);
  int8_t* out = static_cast<int8_t*>(tile) + token * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) {
    out[2 * d] = codes[0][d];
    out[2 * d + 1] = codes[1][d];
  }
}

}  // namespace
}  // namespace homenode
