// One row of one block, taken apart: the form between files, packed groups and float32.
#pragma once
#include "quant/coding.h"

namespace homenode {

struct RowBlock {
  uint8_t codes[256];
  uint16_t d = 0, minimum = 0;  // the file's bits
  int8_t s[16];                 // per 32 or 16 columns, as Coding says; signed in Q3_K, Q6_K, IQ4_XS
  uint8_t m[16];
};

// The description of a block format, or null for F32, F16, BF16 and unknown formats.
const Coding* coding_of(Format);

// Take apart the stored block at `source` (file_block(format).bytes of it).
void split_block(Format, const uint8_t* source, RowBlock&);

// The float32 values of the block: `columns` of them.
void block_values(const Coding&, const RowBlock&, float* out, int columns);

}  // namespace homenode
