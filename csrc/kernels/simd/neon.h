// Sixteen float lanes in four NEON registers. The same interface as scalar.h, avx2.h and avx512.h.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace homenode {
namespace {

struct Lanes {
  float32x4_t part[4];
};

constexpr int kRowBlock = 4;   // rows and columns of the register tile of the matrix-like loops
constexpr int kCodedRowBlock = 4;  // the same over keys and values of codes
constexpr int lanes_beside(int) { return 1; }

// f(0) .. f(3) as the four parts.
template <class F>
inline Lanes each(F&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}

inline Lanes fill(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return {{all, all, all, all}};
}
inline Lanes load(const float* p) {
  return each([p](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, const Lanes& x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.part[i]);
}
inline Lanes add(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Lanes subtract(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline Lanes multiply(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Lanes divide(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
// a * b + c, rounded once.
inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
// sum += a * b, rounded once.
inline void add_product(const Lanes& a, const Lanes& b, Lanes& sum) { sum = multiply_add(a, b, sum); }
// The larger lane; b where either is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Lanes smaller(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
// Nearest whole number, halves to even.
inline Lanes round_even(const Lanes& x) {
  return each([&](int i) { return vrndnq_f32(x.part[i]); });
}
// x * 2^n for whole n in -126 .. 127 with a normal result.
inline Lanes scale_by_power(const Lanes& x, const Lanes& n) {
  return each([&](int i) {
    const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.part[i]), vdupq_n_s32(127)), 23);
    return vmulq_f32(x.part[i], vreinterpretq_f32_s32(exponent));
  });
}
// Lanes begin <= i < end of x, `other` elsewhere.
inline Lanes keep(const Lanes& x, int begin, int end, const Lanes& other) {
  const int32_t four[4] = {0, 1, 2, 3};
  const int32x4_t first = vld1q_s32(four);
  return each([&](int i) {
    const int32x4_t lane = vaddq_s32(first, vdupq_n_s32(4 * i));
    const uint32x4_t in = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
    return vbslq_f32(in, x.part[i], other.part[i]);
  });
}
// 32 bf16 values: the even ones and the odd ones.
inline void load_pairs(const uint16_t* p, Lanes& even, Lanes& odd) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t words = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
    even.part[i] = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
    odd.part[i] = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)));
  }
}

// Pairwise: lane i with i + 8, then 4, 2, 1. The same order at every level.
inline float sum_lanes(const Lanes& x) {
  const float32x4_t quarter = vaddq_f32(vaddq_f32(x.part[0], x.part[2]), vaddq_f32(x.part[1], x.part[3]));
  const float32x2_t pair = vadd_f32(vget_low_f32(quarter), vget_high_f32(quarter));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
inline float largest_lane(const Lanes& x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.part[0], x.part[2]), vmaxq_f32(x.part[1], x.part[3])));
}

// Sixteen 32-bit sums, and sixteen pairs of 16-bit codes.
struct IntLanes {
  int32x4_t part[4];
};
struct PairLanes {
  int16x8_t part[4];
};
inline IntLanes zero_ints() {
  const int32x4_t zero = vdupq_n_s32(0);
  return {{zero, zero, zero, zero}};
}
inline Lanes to_floats(const IntLanes& x) {
  return each([&](int i) { return vcvtq_f32_s32(x.part[i]); });
}
// 32 int8 codes: a pair in each lane.
inline PairLanes load_code_pairs(const int8_t* p) {
  const int8x16_t low = vld1q_s8(p), high = vld1q_s8(p + 16);
  return {{vmovl_s8(vget_low_s8(low)), vmovl_high_s8(low), vmovl_s8(vget_low_s8(high)), vmovl_high_s8(high)}};
}
// One pair in all lanes.
inline PairLanes fill_pair(const int16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  const int16x8_t all = vreinterpretq_s16_s32(vdupq_n_s32(pair));
  return {{all, all, all, all}};
}
// The two products of each lane's pairs, added to its sum.
inline void add_products(const PairLanes& a, const PairLanes& b, IntLanes& sum) {
  for (int i = 0; i < 4; ++i) {
    const int32x4_t low = vmull_s16(vget_low_s16(a.part[i]), vget_low_s16(b.part[i])),
                    high = vmull_high_s16(a.part[i], b.part[i]);
    sum.part[i] = vaddq_s32(sum.part[i], vpaddq_s32(low, high));
  }
}
// Nearest whole numbers, halves to even, of magnitudes below 2^15.
inline void store_codes(int16_t* p, const Lanes& x) {
  for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vqmovn_s32(vcvtnq_s32_f32(x.part[i])));
}

// A line of eight words, as KV memory is copied.
struct WordLine {
  uint64x2_t part[4];
};
template <class F>
inline WordLine each_pair(F&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
constexpr int64_t kStreamAlignment = 1;  // of a line that stream_words stores
inline WordLine load_words(const void* p) {
  return each_pair([p](int i) { return vreinterpretq_u64_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i)); });
}
inline void store_words(void* p, const WordLine& x) {
  for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, vreinterpretq_u8_u64(x.part[i]));
}
// Whole lines written one after the other: these processors then stop reading them first by themselves.
inline void stream_words(void* p, const WordLine& x) { store_words(p, x); }
inline WordLine fill_words(uint64_t x) {
  return each_pair([x](int) { return vdupq_n_u64(x); });
}
inline WordLine add(const WordLine& a, const WordLine& b) {
  return each_pair([&](int i) { return vaddq_u64(a.part[i], b.part[i]); });
}
inline WordLine exclusive_or(const WordLine& a, const WordLine& b) {
  return each_pair([&](int i) { return veorq_u64(a.part[i], b.part[i]); });
}
// The lower half of each word times its upper half.
inline WordLine multiply_halves(const WordLine& x) {
  return each_pair([&](int i) { return vmull_u32(vmovn_u64(x.part[i]), vshrn_n_u64(x.part[i], 32)); });
}
// Words 2i and 2i + 1 exchanged.
inline WordLine swap_pairs(const WordLine& x) {
  return each_pair([&](int i) { return vextq_u64(x.part[i], x.part[i], 1); });
}

}  // namespace
}  // namespace homenode
