// NEON with matrix products of bytes and of bfloat16 (I8MM and BF16).
#include "kernels/neon/vectors.h"

namespace homenode {
namespace {

constexpr bool kWideDotSubtracts128 = false;
constexpr int kPanelTokens = 4;  // two by two

// Unsigned bytes times signed bytes, summed in fours.
inline Ints add_products(Ints run, Ints weights, Ints codes) {
  return vusdotq_s32(run, unsigned_bytes_of(weights), bytes_of(codes));
}
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) { return add_products(run, weights, codes); }

}  // namespace
}  // namespace homenode

#include "kernels/i8mm/pairs.h"
#include "kernels/i8mm/panel.h"
#include "linear/tiles.h"

namespace homenode {
namespace {

constexpr LinearTable make_i8mm_table() {
  LinearTable table = make_table();
  fill_rounded(table.floats[2]);
  fill_paired_panels(table);
  table.round = round_columns;
  return table;
}

}  // namespace

const LinearTable& linear_table_i8mm() {
  static constexpr LinearTable table = make_i8mm_table();
  return table;
}

}  // namespace homenode
