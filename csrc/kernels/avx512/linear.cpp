// AVX-512 with VNNI. GCC 12 takes the deliberately undefined operands inside its own intrinsics for a fault of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/avx512/vectors.h"

#include "kernels/avx512/encode.h"
#include "linear/panel.h"
#include "linear/tiles.h"

namespace homenode {
namespace {

constexpr LinearTable make_wide_table() {
  LinearTable table = with_panels(make_table());
  for (CodedTiles& tiles : table.coded) tiles.tokens_of_many = kPanelTokens;
  table.encode = encode_parts_wide;
  table.block_bytes = 544 << 10;
  return table;
}

}  // namespace

const LinearTable& linear_table_avx512() {
  static constexpr LinearTable table = make_wide_table();
  return table;
}

}  // namespace homenode
