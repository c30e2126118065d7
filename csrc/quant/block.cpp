// Layouts of the stored blocks. Source: the GGUF specification and the decoders of the gguf package, which the tests compare with.
#include "quant/block.h"

#include <algorithm>
#include <cstring>

#include "quant/half.h"

namespace homenode {
namespace {

uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// 32 four-bit codes: element i in the low half of byte i, element i + 16 in its high half.
void split_nibbles(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= uint8_t((bits[i / 8] >> (i % 8) & 1) << 4);
}

// Pairs of 32 codes in 32 bytes, four times: low halves first (Q4_K, Q5_K).
void split_wide_nibbles(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) codes[i] = q[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
}

// 128 codes in 32 bytes, twice: two bits for each group of 32 in turn (Q2_K, Q3_K).
void split_crumbs(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) codes[i] = q[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}

// Eight scales and eight minimums of six bits in twelve bytes (Q4_K, Q5_K).
void split_scales6(const uint8_t* p, RowBlock& b) {
  for (int j = 0; j < 4; ++j) {
    b.s[j] = int8_t(p[j] & 63);
    b.m[j] = p[j + 4] & 63;
    b.s[j + 4] = int8_t((p[j + 8] & 15) | (p[j] >> 6) << 4);
    b.m[j + 4] = uint8_t((p[j + 8] >> 4) | (p[j + 4] >> 6) << 4);
  }
}

void split_q2_k(const uint8_t* p, RowBlock& b) {  // scales[16] q[64] d dmin
  for (int j = 0; j < 16; ++j) {
    b.s[j] = int8_t(p[j] & 15);
    b.m[j] = p[j] >> 4;
  }
  split_crumbs(p + 16, b.codes);
  b.d = read16(p + 80);
  b.minimum = read16(p + 82);
}

void split_q3_k(const uint8_t* p, RowBlock& b) {  // high[32] q[64] scales[12] d
  split_crumbs(p + 32, b.codes);
  for (int i = 0; i < 256; ++i) b.codes[i] |= uint8_t((p[i % 32] >> (i / 32) & 1) << 2);
  const uint8_t* s = p + 96;
  for (int j = 0; j < 16; ++j) b.s[j] = int8_t(((s[j % 8] >> (4 * (j / 8)) & 15) | (s[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32);
  b.d = read16(p + 108);
}

void split_q4_k(const uint8_t* p, RowBlock& b) {  // d dmin scales[12] q[128]
  b.d = read16(p);
  b.minimum = read16(p + 2);
  split_scales6(p + 4, b);
  split_wide_nibbles(p + 16, b.codes);
}

void split_q5_k(const uint8_t* p, RowBlock& b) {  // d dmin scales[12] high[32] q[128]
  b.d = read16(p);
  b.minimum = read16(p + 2);
  split_scales6(p + 4, b);
  split_wide_nibbles(p + 48, b.codes);
  for (int i = 0; i < 256; ++i) b.codes[i] |= uint8_t((p[16 + i % 32] >> (i / 32) & 1) << 4);
}

void split_q6_k(const uint8_t* p, RowBlock& b) {  // low[128] high[64] scales[16] d
  for (int i = 0; i < 256; ++i) {
    const int h = i / 128, r = i % 128;
    const int low = p[64 * h + r % 64] >> (4 * (r / 64)) & 15, high = p[128 + 32 * h + r % 32] >> (2 * (r / 32)) & 3;
    b.codes[i] = uint8_t(low | high << 4);
  }
  std::memcpy(b.s, p + 192, 16);
  b.d = read16(p + 208);
}

void split_iq4_xs(const uint8_t* p, RowBlock& b) {  // d high[2] low[4] q[128]
  b.d = read16(p);
  const int high = read16(p + 2);
  for (int j = 0; j < 8; ++j) {
    b.s[j] = int8_t(((p[4 + j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4) - 32);
    split_nibbles(p + 8 + 16 * j, b.codes + 32 * j);
  }
}

// The power of two a shared exponent stands for, halved because the table is doubled; kept as bfloat16, which holds it exactly.
uint16_t exponent_scale(uint8_t e) { return uint16_t((e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23) >> 16); }

}  // namespace

const Coding* coding_of(Format format) {
  const Coding* end = kCodings + kCodingCount;
  const Coding* found = std::find_if(kCodings, end, [format](const Coding& c) { return c.format == format; });
  return found == end ? nullptr : found;
}

void split_block(Format format, const uint8_t* p, RowBlock& b) {
  switch (format) {
    case Format::q8_0:  // d q[32], signed
      b.d = read16(p);
      for (int i = 0; i < 32; ++i) b.codes[i] = p[2 + i] ^ 0x80;
      break;
    case Format::q4_0: case Format::iq4_nl:  // d q[16]
      b.d = read16(p);
      split_nibbles(p + 2, b.codes);
      break;
    case Format::q4_1:  // d minimum q[16]
      b.d = read16(p);
      b.minimum = read16(p + 2);
      split_nibbles(p + 4, b.codes);
      break;
    case Format::q5_0:  // d high[4] q[16]
      b.d = read16(p);
      split_nibbles(p + 6, b.codes);
      add_fifth_bits(p + 2, b.codes);
      break;
    case Format::q5_1:  // d minimum high[4] q[16]
      b.d = read16(p);
      b.minimum = read16(p + 2);
      split_nibbles(p + 8, b.codes);
      add_fifth_bits(p + 4, b.codes);
      break;
    case Format::mxfp4:  // exponent q[16]
      b.d = exponent_scale(p[0]);
      split_nibbles(p + 1, b.codes);
      break;
    case Format::q2_k: return split_q2_k(p, b);
    case Format::q3_k: return split_q3_k(p, b);
    case Format::q4_k: return split_q4_k(p, b);
    case Format::q5_k: return split_q5_k(p, b);
    case Format::q6_k: return split_q6_k(p, b);
    case Format::iq4_xs: return split_iq4_xs(p, b);
    case Format::f32: case Format::f16: case Format::bf16: break;  // no blocks
  }
}

void block_values(const Coding& c, const RowBlock& b, float* out, int columns) {
  const float d = c.scale_bf16 ? bf16_to_float(b.d) : half_to_float(b.d), minimum = half_to_float(b.minimum);
  const int columns_per_scale = c.scales == 2 ? 16 : 32;
  for (int i = 0; i < columns; ++i) {
    const int j = i / columns_per_scale;
    const float scale = c.scales ? d * float(b.s[j]) : d;
    const int value = c.table == Table::none ? b.codes[i] - c.zero : kTables[int(c.table) - 1][b.codes[i]];
    out[i] = scale * float(value);
    if (c.minimum == Minimum::added) out[i] += minimum;
    if (c.minimum == Minimum::subtracted || c.minimum == Minimum::paired) out[i] -= minimum * float(b.m[j]);
  }
}

}  // namespace homenode
