// AMX: BF16 matrices by tiles of bfloat16 pairs, those of simple block formats and many tokens by tiles of bytes; all
// else as the level avx512bf16 has it.
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a fault of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/avx512/vectors.h"

#include "kernels/amx/pairs.h"
#include "kernels/amx/panel.h"

namespace homenode {
namespace {

LinearTable make_table() {
  LinearTable table = linear_table_avx512bf16();
  fill_pairs(table.floats[2]);
  fill_panels(table);
  table.finish = release_shape;
  table.block_bytes = 1280 << 10;  // every processor with AMX has 2 MiB of second-level cache
  return table;
}

}  // namespace

const LinearTable& linear_table_amx() {
  static const LinearTable table = make_table();
  return table;
}

}  // namespace homenode
