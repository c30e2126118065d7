// Storage formats of matrices, in files and packed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace homenode {

// By their GGUF number (see src/homenode/dtypes.py).
enum class Format : int32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39,
};

// How a row lies in a file: `columns` elements of a row are stored together in `bytes` bytes. bytes is 0 for a format
// we do not know.
struct FileBlock {
  int columns = 1;
  int bytes = 0;
};
FileBlock file_block(Format);

// Bytes of a stored row; a last block that is not full counts whole.
int64_t file_row_bytes(Format, int64_t columns);

const char* format_name(Format);  // "Q8_0", or "unknown"

// Decode one stored row to float32, the values the gguf package gives. The row may end inside its last block.
void decode_row(Format, const uint8_t* source, float* out, int64_t columns);

// Formats we can write, for weights that are stored otherwise than they are kept.
bool can_encode(Format);
// Encode `columns` values, padding the last block with zeros: F32, F16, BF16 rounded to nearest even, Q8_0 and Q4_0 as
// ggml's reference does.
void encode_row(Format, const float* source, uint8_t* out, int64_t columns);

}  // namespace homenode
