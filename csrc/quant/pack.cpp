#include "quant/pack.h"

#include <algorithm>
#include <cstring>

#include "quant/block.h"
#include "quant/half.h"

namespace homenode {
namespace {

// Packed<C> for a coding chosen at run time.
struct Places {
  int head, scale, minimum, high, part, bytes;
  bool paired;
  explicit Places(const Coding& c)
      : head(c.minimum == Minimum::none ? 2 * kGroupRows : 4 * kGroupRows),
        scale(c.scales * kGroupRows),
        minimum(c.minimum == Minimum::subtracted ? c.scales * kGroupRows : 0),
        high(kLineBytes * c.high_bits),
        part(scale + minimum + high + kLineBytes * c.low_bits),
        bytes(head + c.parts * part),
        paired(c.minimum == Minimum::paired) {}
};

// Where line k of a part is when a code takes `bits` bits: the byte line, and the shift in its bytes.
struct Spot {
  int line, shift;
};
Spot spot(int bits, int k) {
  switch (bits) {
    case 8: return {k, 0};
    case 4: return {k % 4, 4 * (k / 4)};
    case 2: return {k / 4, 2 * (k % 4)};
    default: return {0, k};
  }
}

uint32_t every_byte(int value) { return uint32_t(value) * 0x01010101u; }

// The way back of pack_rows: adds bits `from` .. `from + bits - 1` to 32 codes, four of them (one line of the row) at a
// time.
void get_bits(const uint8_t* lines, int from, int bits, int row, uint8_t* codes) {
  for (int k = 0; k < 8; ++k) {
    const Spot s = spot(bits, k);
    uint32_t word, old;
    std::memcpy(&word, lines + kLineBytes * s.line + 4 * row, 4);
    std::memcpy(&old, codes + 4 * k, 4);
    word = old | (word >> s.shift & every_byte((1 << bits) - 1)) << from;
    std::memcpy(codes + 4 * k, &word, 4);
  }
}

void get_block(const Coding& c, const Places& at, const uint8_t* group, int row, RowBlock& b) {
  std::memcpy(&b.d, group + 2 * row, 2);
  if (c.minimum != Minimum::none) std::memcpy(&b.minimum, group + 2 * kGroupRows + 2 * row, 2);
  for (int part = 0; part < c.parts; ++part) {
    const uint8_t* p = group + at.head + part * at.part;
    for (int j = 0; j < c.scales; ++j) {
      const int to = part * c.scales + j, from = j * kGroupRows + row;
      b.s[to] = at.paired ? int8_t(p[from] & 15) : int8_t(p[from]);
      b.m[to] = at.paired ? p[from] >> 4 : at.minimum ? p[at.scale + from] : uint8_t(0);
    }
    p += at.scale + at.minimum;
    uint8_t* codes = b.codes + part * kPartColumns;
    std::memset(codes, 0, kPartColumns);
    if (c.high_bits) get_bits(p, c.low_bits, c.high_bits, row, codes);
    get_bits(p + at.high, 0, c.low_bits, row, codes);
  }
}

// Byte of column i of a row in a group of a float format.
size_t float_place(Format format, int64_t column, int row) {
  if (format == Format::f32) return size_t(column * kGroupRows + row) * 4;
  if (format == Format::f16) return size_t(column * kGroupRows + row) * 2;
  return size_t(column / 2 * kGroupRows * 2 + row * 2 + column % 2) * 2;
}

}  // namespace

PackedStep packed_step(Format format) {
  switch (format) {
    case Format::f32: return {1, 4 * kGroupRows};
    case Format::f16: return {1, 2 * kGroupRows};
    case Format::bf16: return {2, 4 * kGroupRows};
    default: break;
  }
  const Coding* c = coding_of(format);
  return c ? PackedStep{c->parts * kPartColumns, Places(*c).bytes} : PackedStep{};
}

int64_t packed_group_bytes(Format format, int64_t columns) {
  const PackedStep step = packed_step(format);
  return step.columns ? (columns + step.columns - 1) / step.columns * step.bytes : 0;
}

void unpack_group_row(Format format, const uint8_t* group, int64_t columns, int row, float* out) {
  const Coding* c = coding_of(format);
  if (!c) {
    const int size = file_block(format).bytes;
    for (int64_t i = 0; i < columns; ++i)
      decode_row(format, group + float_place(format, i, row), out + i, size ? 1 : 0);
    return;
  }
  const Places at(*c);
  const int step = c->parts * kPartColumns;
  RowBlock block;
  for (int64_t i = 0; i < columns; i += step, group += at.bytes) {
    get_block(*c, at, group, row, block);
    block_values(*c, block, out + i, int(std::min<int64_t>(step, columns - i)));
  }
}

}  // namespace homenode
