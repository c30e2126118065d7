// Layouts of the stored blocks: one row of a block, taken apart. Source: the GGUF specification and the decoders of the
// gguf package, which the tests compare with.
//
// Inline, because who calls it with a format that is a constant gets that format's few vector instructions and no
// choice.
#pragma once
#include <cstring>

#include "quant/block.h"
#include "quant/lanes.h"

namespace homenode::split {

inline uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// 32 four-bit codes: element i in the low half of byte i, element i + 16 in its high half.
inline void nibbles(const uint8_t* q, uint8_t* codes) {
  const Words both = load_words(q);
  store_words(bits_of(both, 0, 4), codes);
  store_words(bits_of(both, 4, 4), codes + 16);
}

// 32 bits, one for each code in turn: the codes' bit 4.
inline void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    const uint64_t chosen = bits[i] * 0x0101010101010101u & 0x8040201008040201u;  // bit j alone in byte j
    uint64_t word;
    std::memcpy(&word, codes + 8 * i, 8);
    word |= ((chosen + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u) << 4;
    std::memcpy(codes + 8 * i, &word, 8);
  }
}

// 32 bytes hold the codes of 8 / bits parts of 32, the lowest bits of the first part.
template <int bits>
inline void parts(const uint8_t* q, uint8_t* codes) {
  for (int part = 0; part < 8 / bits; ++part, codes += 32) {
    store_words(bits_of(load_words(q), bits * part, bits), codes);
    store_words(bits_of(load_words(q + 16), bits * part, bits), codes + 16);
  }
}

// 32 bytes hold one further bit of the codes of 8 parts of 32, bit j that of part j: it becomes their bit `to`.
inline void add_bit(const uint8_t* q, int to, uint8_t* codes) {
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; i += 16, codes += 16)
      store_words(load_words(codes) | bits_of(load_words(q + i), part, 1) << uint32_t(to), codes);
  }
}

// Eight scales and eight minimums of six bits in twelve bytes (Q4_K, Q5_K).
inline void scales6(const uint8_t* p, RowBlock& b) {
  for (int j = 0; j < 4; ++j) {
    b.s[j] = int8_t(p[j] & 63);
    b.m[j] = p[j + 4] & 63;
    b.s[j + 4] = int8_t((p[j + 8] & 15) | (p[j] >> 6) << 4);
    b.m[j + 4] = uint8_t((p[j + 8] >> 4) | (p[j + 4] >> 6) << 4);
  }
}

inline void q2_k(const uint8_t* p, RowBlock& b) {  // scales[16] q[64] d dmin
  for (int j = 0; j < 16; ++j) {
    b.s[j] = int8_t(p[j] & 15);
    b.m[j] = p[j] >> 4;
  }
  for (int half = 0; half < 2; ++half) parts<2>(p + 16 + 32 * half, b.codes + 128 * half);
  b.d = read16(p + 80);
  b.minimum = read16(p + 82);
}

inline void q3_k(const uint8_t* p, RowBlock& b) {  // high[32] q[64] scales[12] d
  for (int half = 0; half < 2; ++half) parts<2>(p + 32 + 32 * half, b.codes + 128 * half);
  add_bit(p, 2, b.codes);
  const uint8_t* s = p + 96;
  for (int j = 0; j < 16; ++j)
    b.s[j] = int8_t(((s[j % 8] >> (4 * (j / 8)) & 15) | (s[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32);
  b.d = read16(p + 108);
}

inline void q4_k(const uint8_t* p, RowBlock& b) {  // d dmin scales[12] q[128]
  b.d = read16(p);
  b.minimum = read16(p + 2);
  scales6(p + 4, b);
  for (int pair = 0; pair < 4; ++pair) parts<4>(p + 16 + 32 * pair, b.codes + 64 * pair);
}

inline void q5_k(const uint8_t* p, RowBlock& b) {  // d dmin scales[12] high[32] q[128]
  b.d = read16(p);
  b.minimum = read16(p + 2);
  scales6(p + 4, b);
  for (int pair = 0; pair < 4; ++pair) parts<4>(p + 48 + 32 * pair, b.codes + 64 * pair);
  add_bit(p + 16, 4, b.codes);
}

inline void q6_k(const uint8_t* p, RowBlock& b) {  // low[128] high[64] scales[16] d
  for (int i = 0; i < 256; i += 16) {
    const int half = i / 128, part = i % 128 / 32;
    const Words low = load_words(p + 64 * half + i % 64), high = load_words(p + 128 + 32 * half + i % 32);
    store_words(bits_of(low, 4 * (part / 2), 4) | bits_of(high, 2 * part, 2) << 4u, b.codes + i);
  }
  std::memcpy(b.s, p + 192, 16);
  b.d = read16(p + 208);
}

inline void iq4_xs(const uint8_t* p, RowBlock& b) {  // d high[2] low[4] q[128]
  b.d = read16(p);
  const int high = read16(p + 2);
  for (int j = 0; j < 8; ++j) {
    b.s[j] = int8_t(((p[4 + j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4) - 32);
    nibbles(p + 8 + 16 * j, b.codes + 32 * j);
  }
}

// The power of two a shared exponent stands for, halved because the table is doubled; kept as bfloat16, which holds it
// exactly.
inline uint16_t exponent_scale(uint8_t e) { return uint16_t((e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23) >> 16); }

// Take apart the stored block at `p`.
[[gnu::always_inline]] inline void block(Format format, const uint8_t* p, RowBlock& b) {
  switch (format) {
    case Format::q8_0:  // d q[32], signed
      b.d = read16(p);
      for (int i = 0; i < 32; i += 16) store_words(load_words(p + 2 + i) ^ 0x80808080u, b.codes + i);
      break;
    case Format::q4_0: case Format::iq4_nl:  // d q[16]
      b.d = read16(p);
      nibbles(p + 2, b.codes);
      break;
    case Format::q4_1:  // d minimum q[16]
      b.d = read16(p);
      b.minimum = read16(p + 2);
      nibbles(p + 4, b.codes);
      break;
    case Format::q5_0:  // d high[4] q[16]
      b.d = read16(p);
      nibbles(p + 6, b.codes);
      add_fifth_bits(p + 2, b.codes);
      break;
    case Format::q5_1:  // d minimum high[4] q[16]
      b.d = read16(p);
      b.minimum = read16(p + 2);
      nibbles(p + 8, b.codes);
      add_fifth_bits(p + 4, b.codes);
      break;
    case Format::mxfp4:  // exponent q[16]
      b.d = exponent_scale(p[0]);
      nibbles(p + 1, b.codes);
      break;
    case Format::q2_k: return q2_k(p, b);
    case Format::q3_k: return q3_k(p, b);
    case Format::q4_k: return q4_k(p, b);
    case Format::q5_k: return q5_k(p, b);
    case Format::q6_k: return q6_k(p, b);
    case Format::iq4_xs: return iq4_xs(p, b);
    case Format::f32: case Format::f16: case Format::bf16: break;  // no blocks
  }
}

}  // namespace homenode::split
