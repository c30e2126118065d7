// Vectors of NEON for linear/tiles.h: four lanes, eight registers for the rows of a group. The integer dot products are
// missing: the levels that share these vectors differ in them.
#pragma once
#include <arm_neon.h>

#include "quant/coding.h"

namespace homenode {
namespace {

using Floats = float32x4_t;
using Ints = int32x4_t;
constexpr int kLanes = 4;
constexpr int kFloatTokens = 3, kPairTokens = 3, kCodedTokens = 2;  // what 32 registers hold

inline Floats zero_floats() { return vdupq_n_f32(0); }
inline Floats load_floats(const float* p) { return vld1q_f32(p); }
inline void store_floats(float* p, Floats x) { vst1q_f32(p, x); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats subtract(Floats a, Floats b) { return vsubq_f32(a, b); }
inline Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Floats to_floats(Ints x) { return vcvtq_f32_s32(x); }
inline Ints round_to_ints(Floats x) { return vcvtnq_s32_f32(x); }
inline Floats as_floats(Ints x) { return vreinterpretq_f32_s32(x); }
inline Ints as_ints(Floats x) { return vreinterpretq_s32_f32(x); }
inline Floats load_halves(const uint8_t* p) {
  uint64_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return vcvt_f32_f16(vreinterpret_f16_u64(vdup_n_u64(four)));
}
inline Floats broadcast_float(const void* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return vdupq_n_f32(x);
}

inline int8x16_t bytes_of(Ints x) { return vreinterpretq_s8_s32(x); }
inline uint8x16_t unsigned_bytes_of(Ints x) { return vreinterpretq_u8_s32(x); }

inline Ints zero_ints() { return vdupq_n_s32(0); }
inline Ints broadcast_int(int32_t x) { return vdupq_n_s32(x); }
inline Ints broadcast_bytes4(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return vdupq_n_s32(x);
}
inline Ints load_bytes(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
inline Ints load_codes(const uint8_t* p) { return load_bytes(p); }
inline void store_ints(uint8_t* p, Ints x) { vst1q_u8(p, unsigned_bytes_of(x)); }
inline uint16x4_t widened_four(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))));
}
inline Ints load_unsigned8(const uint8_t* p) { return vreinterpretq_s32_u32(vmovl_u16(widened_four(p))); }
inline Ints load_signed8(const uint8_t* p) { return vshrq_n_s32(vshlq_n_s32(load_unsigned8(p), 24), 24); }
inline Ints load_unsigned16(const uint8_t* p) {
  uint64_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u64(vdup_n_u64(four))));
}
inline void store_signed8(int8_t* p, Ints x) {
  const int16x4_t words = vqmovn_s32(x);
  const int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
  __builtin_memcpy(p, &four, sizeof four);
}
inline Ints add_ints(Ints a, Ints b) { return vaddq_s32(a, b); }
inline Ints larger_ints(Ints a, Ints b) { return vmaxq_s32(a, b); }
inline int32_t largest_lane(Ints x) { return vmaxvq_s32(x); }
inline int32_t sum_lanes(Ints x) { return vaddvq_s32(x); }
inline Ints bit_and(Ints a, Ints b) { return vandq_s32(a, b); }
inline Ints bit_or(Ints a, Ints b) { return vorrq_s32(a, b); }
template <int N>
inline Ints shift_left32(Ints x) { return vshlq_n_s32(x, N); }
template <int N>
inline Ints shift_left16(Ints x) { return vreinterpretq_s32_s16(vshlq_n_s16(vreinterpretq_s16_s32(x), N)); }
template <int N>
inline Ints shift_right16(Ints x) { return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(x), N)); }

template <Table T, int Zero>
inline Ints table_bytes() {
  uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(kTables[int(T) - 1][i] + Zero);
  return load_bytes(bytes);
}
inline Ints look_up(Ints table, Ints codes) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(unsigned_bytes_of(table), unsigned_bytes_of(codes)));
}

// Every run is its sum itself: the dot products of these levels are exact for all values.
constexpr int run_lines(int) { return 8; }
inline Ints begin_run(Ints sum) { return sum; }
inline Ints end_run(Ints, Ints run) { return run; }

}  // namespace
}  // namespace homenode
