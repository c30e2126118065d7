// Sixteen float lanes in portable C++ (GCC vector extension: SSE2 on x86-64, NEON on arm64). The same interface as
// avx2.h and avx512.h.
#pragma once
#include <cstdint>
#include <cstring>

namespace homenode {
namespace {

typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInt __attribute__((vector_size(16)));

struct Lanes {
  Quad part[4];
};

constexpr int kRowBlock = 2;   // rows and columns of the register tile of the matrix-like loops
constexpr int kCodedRowBlock = 2;  // the same over keys and values of codes
constexpr int lanes_beside(int) { return 1; }

inline Lanes fill(float x) {
  const Quad q = {x, x, x, x};
  return {{q, q, q, q}};
}
inline Lanes load(const float* p) {
  Lanes r;
  memcpy(&r, p, sizeof r);
  return r;
}
inline void store(float* p, const Lanes& x) { memcpy(p, &x, sizeof x); }

inline Lanes add(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = a.part[i] + b.part[i];
  return r;
}
inline Lanes subtract(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = a.part[i] - b.part[i];
  return r;
}
inline Lanes multiply(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = a.part[i] * b.part[i];
  return r;
}
inline Lanes divide(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = a.part[i] / b.part[i];
  return r;
}
// a * b + c, rounded twice here: the baseline has no fused multiply-add.
inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) { return add(multiply(a, b), c); }
// sum += a * b, rounded once.
inline void add_product(const Lanes& a, const Lanes& b, Lanes& sum) { sum = multiply_add(a, b, sum); }
// The larger lane; b where either is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return r;
}
inline Lanes smaller(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = a.part[i] < b.part[i] ? a.part[i] : b.part[i];
  return r;
}
// Nearest whole number, halves to even, for |x| < 2^22.
inline Lanes round_even(const Lanes& x) {
  const Lanes big = fill(12582912.0f);
  return subtract(add(x, big), big);
}
// x * 2^n for whole n in -126 .. 127 with a normal result.
inline Lanes scale_by_power(const Lanes& x, const Lanes& n) {
  Lanes r;
  for (int i = 0; i < 4; ++i) {
    const QuadInt exponent = (__builtin_convertvector(n.part[i], QuadInt) + 127) << 23;
    r.part[i] = x.part[i] * reinterpret_cast<Quad>(exponent);
  }
  return r;
}
// Lanes begin <= i < end of x, `other` elsewhere.
inline Lanes keep(const Lanes& x, int begin, int end, const Lanes& other) {
  float a[16], b[16];
  store(a, x);
  store(b, other);
  for (int i = 0; i < 16; ++i) a[i] = i >= begin && i < end ? a[i] : b[i];
  return load(a);
}
// 32 bf16 values: the even ones and the odd ones.
inline void load_pairs(const uint16_t* p, Lanes& even, Lanes& odd) {
  uint32_t words[16], high[16];
  memcpy(words, p, sizeof words);
  for (int i = 0; i < 16; ++i) high[i] = words[i] & 0xffff0000u;
  for (int i = 0; i < 16; ++i) words[i] <<= 16;
  memcpy(&even, words, sizeof even);
  memcpy(&odd, high, sizeof odd);
}

// Pairwise: lane i with i + 8, then 4, 2, 1. The same order at every level.
inline float sum_lanes(const Lanes& x) {
  const Quad quarter = (x.part[0] + x.part[2]) + (x.part[1] + x.part[3]);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}
inline float largest_lane(const Lanes& x) {
  Quad half[2];
  for (int i = 0; i < 2; ++i) half[i] = x.part[i] > x.part[i + 2] ? x.part[i] : x.part[i + 2];
  const Quad q = half[0] > half[1] ? half[0] : half[1];
  const float a = q[0] > q[2] ? q[0] : q[2], b = q[1] > q[3] ? q[1] : q[3];
  return a > b ? a : b;
}

// Sixteen 32-bit sums, and sixteen pairs of codes.
struct IntLanes {
  QuadInt part[4];
};
struct PairLanes {
  QuadInt first[4], second[4];
};
inline IntLanes zero_ints() { return {}; }
inline Lanes to_floats(const IntLanes& x) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.part[i] = __builtin_convertvector(x.part[i], Quad);
  return r;
}
// 32 int8 codes: a pair in each lane.
inline PairLanes load_code_pairs(const int8_t* p) {
  PairLanes r;
  for (int i = 0; i < 16; ++i) {
    r.first[i / 4][i % 4] = p[2 * i];
    r.second[i / 4][i % 4] = p[2 * i + 1];
  }
  return r;
}
// One pair in all lanes.
inline PairLanes fill_pair(const int16_t* p) {
  int16_t pair[2];
  memcpy(pair, p, sizeof pair);
  const QuadInt first = {pair[0], pair[0], pair[0], pair[0]}, second = {pair[1], pair[1], pair[1], pair[1]};
  return {{first, first, first, first}, {second, second, second, second}};
}
// The two products of each lane's pairs, added to its sum.
inline void add_products(const PairLanes& a, const PairLanes& b, IntLanes& sum) {
  for (int i = 0; i < 4; ++i) sum.part[i] += a.first[i] * b.first[i] + a.second[i] * b.second[i];
}
// Nearest whole numbers, halves to even, of magnitudes below 2^15.
inline void store_codes(int16_t* p, const Lanes& x) {
  const Lanes whole = round_even(x);
  int16_t codes[16];
  for (int i = 0; i < 16; ++i) codes[i] = static_cast<int16_t>(whole.part[i / 4][i % 4]);
  memcpy(p, codes, sizeof codes);
}

// A line of eight words, as KV memory is copied.
struct WordLine {
  uint64_t word[8];
};
constexpr int64_t kStreamAlignment = 1;  // of a line that stream_words stores
inline WordLine load_words(const void* p) {
  WordLine r;
  memcpy(&r, p, sizeof r);
  return r;
}
inline void store_words(void* p, const WordLine& x) { memcpy(p, &x, sizeof x); }
// Past the caches, where there is an instruction for it.
inline void stream_words(void* p, const WordLine& x) { store_words(p, x); }
inline WordLine fill_words(uint64_t x) { return {{x, x, x, x, x, x, x, x}}; }
inline WordLine add(const WordLine& a, const WordLine& b) {
  WordLine r;
  for (int i = 0; i < 8; ++i) r.word[i] = a.word[i] + b.word[i];
  return r;
}
inline WordLine exclusive_or(const WordLine& a, const WordLine& b) {
  WordLine r;
  for (int i = 0; i < 8; ++i) r.word[i] = a.word[i] ^ b.word[i];
  return r;
}
// The lower half of each word times its upper half.
inline WordLine multiply_halves(const WordLine& x) {
  WordLine r;
  for (int i = 0; i < 8; ++i) r.word[i] = (x.word[i] & 0xffffffffu) * (x.word[i] >> 32);
  return r;
}
// Words 2i and 2i + 1 exchanged.
inline WordLine swap_pairs(const WordLine& x) {
  WordLine r;
  for (int i = 0; i < 8; ++i) r.word[i] = x.word[i ^ 1];
  return r;
}

}  // namespace
}  // namespace homenode
