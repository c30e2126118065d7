// What the packed block formats have in common.
//
// Every block format is the same idea: an element is a small unsigned code, its value
//
//     scale * (code - zero)     or    scale * (table[code])    without a minimum
//     scale * code + minimum                                   simple blocks of 32 with one
//     (d * s) * code - (dmin * m)                              super-blocks of 256, s and m small integers per 32 or 16
//
// so a format is a line in the table below; decoding, packing and the kernels are written once, over this description.
//
// Packed layout. 32 rows form a group; a (group, block) is contiguous, and the blocks of a group follow each other, so
// a thread reads one sequential stream. Columns are interleaved in lines: line k (0..7) of 32 columns holds columns 4k
// .. 4k+3 of row 0, then of row 1, ...: 128 bytes when a code is a byte, which is two AVX-512 or four AVX2 registers of
// four-byte units, the operand of an integer dot product. Codes of fewer bits share bytes: the byte of (row, column %
// 4) holds
//     4 bits: line k in the low half of byte line k (k < 4), line k + 4 in its high half
//     2 bits: lines 4h .. 4h+3 in byte line h, lowest first
//     1 bit:  lines 0 .. 7 in one byte line, lowest first
// A block is, in the order it is read:
//     simple: d, uint16 x 32 rows | minimum, likewise, if any | high bits | low bits
//     super:  d | dmin, if any | 8 times: s, 1 byte x 32 rows (twice when per 16 columns) | m likewise | high bits |
//             low bits
// Scales keep the 16 bits of the file. Nothing here depends on the instruction set: what is packed once computes
// anywhere.
#pragma once
#include "quant/format.h"

namespace homenode {

constexpr int kGroupRows = 32;   // rows interleaved in a packed group
constexpr int kPartColumns = 32; // columns that share one activation scale
constexpr int kLineBytes = 4 * kGroupRows;

enum class Table : uint8_t { none, iq4, e2m1 };  // codes that index a table of values
// paired: subtracted, with s and m as the halves of one byte
enum class Minimum : uint8_t { none, added, subtracted, paired };

struct Coding {
  Format format;
  int parts;      // of 32 columns in a block: 1 (simple) or 8 (super)
  int low_bits;   // 8, 4 or 2
  int high_bits;  // 0, 1 or 2, above the low ones
  int zero;       // a power of two, or 0; for tables: what is added to the table's values to make them unsigned
  int scales;     // s per part: 0 (simple), 1 or 2
  Minimum minimum = Minimum::none;
  Table table = Table::none;
  bool scale_bf16 = false;  // d is kept as bfloat16 (a power of two), not as half
};

inline constexpr Coding kCodings[] = {
    {Format::q8_0, 1, 8, 0, 128, 0},
    {Format::q4_0, 1, 4, 0, 8, 0},
    {Format::q4_1, 1, 4, 0, 0, 0, Minimum::added},
    {Format::q5_0, 1, 4, 1, 16, 0},
    {Format::q5_1, 1, 4, 1, 0, 0, Minimum::added},
    {Format::iq4_nl, 1, 4, 0, 128, 0, Minimum::none, Table::iq4},
    {Format::mxfp4, 1, 4, 0, 16, 0, Minimum::none, Table::e2m1, true},
    {Format::q2_k, 8, 2, 0, 0, 2, Minimum::paired},
    {Format::q3_k, 8, 2, 1, 4, 2},
    {Format::q4_k, 8, 4, 0, 0, 1, Minimum::subtracted},
    {Format::q5_k, 8, 4, 1, 0, 1, Minimum::subtracted},
    {Format::q6_k, 8, 4, 2, 32, 2},
    {Format::iq4_xs, 8, 4, 0, 128, 1, Minimum::none, Table::iq4},
};
constexpr int kCodingCount = sizeof(kCodings) / sizeof(kCodings[0]);

// Values of the table formats (llama.cpp's IQ4_NL; the OCP microscaling E2M1, doubled so that they are whole numbers).
inline constexpr int8_t kTables[2][16] = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
};

// Where the pieces of a packed block are. Only constants: the kernels of all levels use them, and share no code.
template <Coding C>
struct Packed {
  static constexpr int columns = C.parts * kPartColumns;
  static constexpr int head = C.minimum == Minimum::none ? 2 * kGroupRows : 4 * kGroupRows;
  static constexpr int scale = C.scales * kGroupRows;
  static constexpr int minimum = C.minimum == Minimum::subtracted ? C.scales * kGroupRows : 0;
  static constexpr int high = kLineBytes * C.high_bits;
  static constexpr int low = kLineBytes * C.low_bits;
  static constexpr int part = scale + minimum + high + low;
  static constexpr int bytes = head + C.parts * part;
};

}  // namespace homenode
