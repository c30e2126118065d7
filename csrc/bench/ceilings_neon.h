// The loops of the Arm levels; what a unit is compiled for decides which instruction multiplies. Sixteen accumulators
// cover the latency of four pipes. Without dot products of bytes, products are summed to 16 bits, in pairs, then in
// fours: four instructions for 16 products.
#pragma once
#include "bench/ceiling_table.h"

#include <arm_neon.h>

namespace homenode {
namespace {

inline uint64x2_t load(const uint8_t* p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }

inline uint64_t folded(const uint64x2_t (&v)[8]) {
  uint64x2_t all = v[0];
  for (int i = 1; i < 8; ++i) all = veorq_u64(all, v[i]);
  return vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

inline void clear(uint64x2_t (&v)[8]) {
  for (int i = 0; i < 8; ++i) v[i] = vdupq_n_u64(0);
}

uint64_t read_one_stream(const uint8_t* data, size_t bytes) {
  uint64x2_t v[8];
  clear(v);
  for (size_t at = 0; at < bytes; at += sizeof v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = veorq_u64(v[i], load(data + at + 16 * i));
  }
  return folded(v);
}

uint64_t read_eight_streams(const uint8_t* data, size_t bytes) {
  uint64x2_t v[8];
  clear(v);
  for (size_t block = 0; block < bytes; block += kReadStep) {
    for (size_t at = 0; at < kStreamBytes; at += 64) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const uint8_t* p = data + block + i * kStreamBytes + at;
        __builtin_prefetch(p + kReadStep);  // a prefetch past the end does nothing
        v[i] = veorq_u64(v[i], veorq_u64(veorq_u64(load(p), load(p + 16)), veorq_u64(load(p + 32), load(p + 48))));
      }
    }
  }
  return folded(v);
}

#define SIXTEEN(op) \
  op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13) op(14) op(15)
#define ZERO(n) "movi v" #n ".2d,#0\n"
#define ALL_REGISTERS \
  "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", \
      "v17", "v18", "v19", "v30", "v31"
// The operands are zero: nothing overflows, and no number is ever denormal.
#define MULTIPLY(name, op) \
  void name(int64_t rounds) { \
    __asm__ volatile(SIXTEEN(ZERO) ZERO(30) ZERO(31) "1:\n" SIXTEEN(op) "subs %0,%0,#1\nb.ne 1b\n" \
                     : "+r"(rounds) \
                     : \
                     : ALL_REGISTERS); \
  }

#define FLOATS(n) "fmla v" #n ".4s,v30.4s,v31.4s\n"
MULTIPLY(multiply_f32, FLOATS)
constexpr MultiplyLoop kFloats = {multiply_f32, 16 * 8};

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define BYTES(n) "usmmla v" #n ".4s,v30.16b,v31.16b\n"
constexpr int kByteOperations = 64;
#elif defined(__ARM_FEATURE_DOTPROD)
#define BYTES(n) "sdot v" #n ".4s,v30.16b,v31.16b\n"
constexpr int kByteOperations = 32;
#else
#define BYTES(n) \
  "smull v16.8h,v30.8b,v31.8b\nsmull2 v17.8h,v30.16b,v31.16b\naddp v18.8h,v16.8h,v17.8h\nsadalp v" #n ".4s,v18.8h\n"
constexpr int kByteOperations = 32;
#endif
MULTIPLY(multiply_int8, BYTES)
constexpr MultiplyLoop kBytes = {multiply_int8, 16 * kByteOperations};

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define PAIRS(n) "bfmmla v" #n ".4s,v30.8h,v31.8h\n"
MULTIPLY(multiply_bf16, PAIRS)
constexpr MultiplyLoop kPairs = {multiply_bf16, 16 * 32};
#else
constexpr MultiplyLoop kPairs = kFloats;  // without an instruction for it, bfloat16 is multiplied as float32
#endif

constexpr CeilingTable kTable = {read_one_stream, read_eight_streams, kBytes, kPairs, kFloats};

}  // namespace
}  // namespace homenode
