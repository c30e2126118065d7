// NEON as every 64-bit Arm processor has it.
#include "kernels/neon/vectors.h"

namespace homenode {
namespace {

constexpr bool kWideDotSubtracts128 = true;

// Signed bytes times signed bytes, in 16 bits, summed in pairs there (at most 2 * 128 * 127), then in fours. Weights
// below 128 are signed as they are.
inline Ints add_products(Ints run, Ints weights, Ints codes) {
  const int8x16_t w = bytes_of(weights), c = bytes_of(codes);
  return vpadalq_s16(run, vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(c)), vmull_high_s8(w, c)));
}
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) {
  return add_products(run, vreinterpretq_s32_u8(veorq_u8(unsigned_bytes_of(weights), vdupq_n_u8(128))), codes);
}

}  // namespace
}  // namespace homenode

#include "linear/tiles.h"

namespace homenode {

const LinearTable& linear_table_neon() {
  static constexpr LinearTable table = make_table();
  return table;
}

}  // namespace homenode
