// Stored rows into packed groups, four rows at a time: the words of four rows are a square that is transposed in
// registers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "quant/lanes.h"
#include "quant/pack.h"
#include "quant/split.h"

namespace homenode {
namespace {

constexpr int kRows = kPackedRows;  // of a square
constexpr int kPartWords = 8;       // lines of a part's codes

// The codes of a part of four rows: lines[k] has columns 4k .. 4k + 3 of each.
void read_lines(const RowBlock (&rows)[kRows], int part, Words (&lines)[kPartWords]) {
  for (int k = 0; k < kPartWords; k += kRows) {
    Words square[kRows];
    for (int r = 0; r < kRows; ++r) square[r] = load_words(rows[r].codes + part * kPartColumns + 4 * k);
    transpose(square);
    for (int i = 0; i < kRows; ++i) lines[k + i] = square[i];
  }
}

// Bits `from` .. `from + bits - 1` of all codes of a part, as coding.h lays them out.
template <int bits>
void put_bits(const Words (&lines)[kPartWords], int from, uint8_t* out) {
  if constexpr (bits == 8) {
    for (int k = 0; k < 8; ++k) store_words(lines[k], out + kLineBytes * k);
  } else if constexpr (bits == 4) {
    for (int k = 0; k < 4; ++k)
      store_words(bits_of(lines[k], from, 4) | bits_of(lines[k + 4], from, 4) << 4u, out + kLineBytes * k);
  } else if constexpr (bits == 2) {
    for (int k = 0; k < 2; ++k) {
      Words word = bits_of(lines[4 * k], from, 2);
      for (int i = 1; i < 4; ++i) word |= bits_of(lines[4 * k + i], from, 2) << uint32_t(2 * i);
      store_words(word, out + kLineBytes * k);
    }
  } else if constexpr (bits == 1) {
    Words word = bits_of(lines[0], from, 1);
    for (int i = 1; i < 8; ++i) word |= bits_of(lines[i], from, 1) << uint32_t(i);
    store_words(word, out);
  }
}

template <Coding C>
void put_scales(const RowBlock& row, int part, int place, uint8_t* out) {
  for (int j = 0; j < C.scales; ++j) {
    const int from = part * C.scales + j, to = j * kGroupRows + place;
    out[to] = uint8_t(C.minimum == Minimum::paired ? row.s[from] | row.m[from] << 4 : row.s[from]);
    if (C.minimum == Minimum::subtracted) out[Packed<C>::scale + to] = row.m[from];
  }
}

template <Coding C>
void put_blocks(const RowBlock (&rows)[kRows], int place, uint8_t* group) {
  using P = Packed<C>;
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(group + 2 * (place + r), &rows[r].d, 2);
    if (C.minimum != Minimum::none) std::memcpy(group + 2 * (kGroupRows + place + r), &rows[r].minimum, 2);
  }
  for (int part = 0; part < C.parts; ++part) {
    uint8_t* out = group + P::head + part * P::part;
    for (int r = 0; r < kRows; ++r) put_scales<C>(rows[r], part, place + r, out);
    Words lines[kPartWords];
    read_lines(rows, part, lines);
    uint8_t* codes = out + P::scale + P::minimum + 4 * place;
    put_bits<C.high_bits>(lines, C.low_bits, codes);
    put_bits<C.low_bits>(lines, 0, codes + P::high);
  }
}

struct Rows {
  const uint8_t* data;
  size_t stride;
  int count;
};

template <Coding C>
void pack_coded(const Rows& from, int64_t columns, int place, uint8_t* group) {
  const int stored = file_block(C.format).bytes;
  RowBlock blocks[kRows] = {};
  for (int64_t i = 0; i < columns; i += Packed<C>::columns, group += Packed<C>::bytes) {
    const uint8_t* column = from.data + i / Packed<C>::columns * stored;
    for (int row = 0; row < from.count; row += kRows) {
      for (int r = 0; r < kRows; ++r) {
        if (row + r < from.count) split::block(C.format, column + size_t(row + r) * from.stride, blocks[r]);
        else blocks[r] = RowBlock{};
      }
      put_blocks<C>(blocks, place + row, group);
    }
  }
}

// Sixteen bytes of each of four rows, zeros where a row is over or there is none.
[[gnu::always_inline]] inline void read_square(const Rows& from, int row, size_t at, size_t bytes,
                                               Words (&square)[kRows]) {
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* source = from.data + size_t(row + r) * from.stride + at;
    square[r] = Words{};
    if (row + r < from.count) std::memcpy(&square[r], source, bytes);
  }
  transpose(square);
}

// Pairs of two-byte elements of four rows: the first ones to one line, the second ones to another, if there are any.
void put_halves(Words pairs, uint8_t* first, uint8_t* second) {
  uint16_t low[kRows], high[kRows];
  for (int r = 0; r < kRows; ++r) low[r] = uint16_t(pairs[r]), high[r] = uint16_t(pairs[r] >> 16);
  std::memcpy(first, low, sizeof low);
  if (second) std::memcpy(second, high, sizeof high);
}

void pack_floats(Format format, const Rows& from, int64_t columns, int place, uint8_t* group) {
  const auto row_bytes = size_t(file_row_bytes(format, columns));
  for (size_t at = 0; at < row_bytes; at += sizeof(Words)) {
    const size_t bytes = std::min(sizeof(Words), row_bytes - at);
    for (int row = 0; row < from.count; row += kRows) {
      Words square[kRows];
      if (bytes == sizeof(Words)) read_square(from, row, at, sizeof(Words), square);  // a constant: no call
      else read_square(from, row, at, bytes, square);
      for (size_t i = 0; 4 * i < bytes; ++i) {
        uint8_t* line = group + (at / 4 + i) * kLineBytes;
        if (format != Format::f16) {
          store_words(square[i], line + 4 * (place + row));
        } else {
          uint8_t* first = line + 2 * (place + row);
          put_halves(square[i], first, 4 * i + 2 < bytes ? first + kLineBytes / 2 : nullptr);
        }
      }
    }
  }
}

template <size_t... I>
bool pack_coded(Format format, const Rows& from, int64_t columns, int place, uint8_t* group,
                std::index_sequence<I...>) {
  return ((kCodings[I].format == format && (pack_coded<kCodings[I]>(from, columns, place, group), true)) || ...);
}

}  // namespace

void pack_rows(Format format, const uint8_t* source, size_t stride, int count, int64_t columns, int place,
               uint8_t* group) {
  const Rows rows{source, stride, count};
  if (!pack_coded(format, rows, columns, place, group, std::make_index_sequence<kCodingCount>()))
    pack_floats(format, rows, columns, place, group);
}

}  // namespace homenode
