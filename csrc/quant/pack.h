// Rows into packed groups and back. The layout is described in quant/coding.h.
//
// The float formats interleave 32 rows too: F32 and F16 as [column][row], BF16 as [column / 2][row][column % 2], the
// pairs that a dot product of bfloat16 pairs takes; an odd number of columns leaves the last pair's second element
// zero.
#pragma once
#include "quant/format.h"

namespace homenode {

// Columns that stand together (and a row is padded to a multiple of), and the bytes of them in a group.
struct PackedStep {
  int columns = 0;
  int bytes = 0;
};
PackedStep packed_step(Format);

int64_t packed_group_bytes(Format, int64_t columns);

// Puts `count` stored rows (each file_row_bytes, one every `stride` bytes) in places `place`, `place` + 1, ... of a
// group whose memory is zero there. `place` is a multiple of kPackedRows; where `count` is none, the places up to the
// next one are written with zeros.
constexpr int kPackedRows = 4;
void pack_rows(Format, const uint8_t* source, size_t stride, int count, int64_t columns, int place, uint8_t* group);

// The float32 values of row `row` of a group: exactly decode_row of what pack_rows was given.
void unpack_group_row(Format, const uint8_t* group, int64_t columns, int row, float* out);

}  // namespace homenode
