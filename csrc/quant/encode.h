// float32 values into blocks of 32, as ggml's reference does.
#pragma once
#include <cstdint>

namespace homenode {

// A block that holds a NaN or an infinity gets a NaN as its scale, so that the fault stays visible.
void encode_q8_0(const float* x, uint8_t* out);
// The element of largest magnitude (the first of equals) becomes code 0, value -8 * scale: the side with one code more.
void encode_q4_0(const float* x, uint8_t* out);

}  // namespace homenode
