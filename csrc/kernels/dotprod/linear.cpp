// NEON with dot products of signed bytes.
#include "kernels/neon/vectors.h"

namespace homenode {
namespace {

constexpr bool kWideDotSubtracts128 = true;

// Weights below 128 are signed as they are; those up to 255 become so less 128.
inline Ints add_products(Ints run, Ints weights, Ints codes) {
  return vdotq_s32(run, bytes_of(weights), bytes_of(codes));
}
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) {
  return vdotq_s32(run, vreinterpretq_s8_u8(veorq_u8(unsigned_bytes_of(weights), vdupq_n_u8(128))), bytes_of(codes));
}

}  // namespace
}  // namespace homenode

#include "linear/tiles.h"

namespace homenode {

const LinearTable& linear_table_dotprod() {
  static constexpr LinearTable table = make_table();
  return table;
}

}  // namespace homenode
