// AMX: matrices by tiles of bytes and of bfloat16 pairs; few tokens of block formats as the level avx512bf16 has them.
#include "kernels/amx/pairs.h"

namespace homenode {
namespace {

LinearTable make_table() {
  LinearTable table = linear_table_avx512bf16();
  fill_pairs(table.floats[2]);
  table.finish = release_shape;
  return table;
}

}  // namespace

const LinearTable& linear_table_amx() {
  static const LinearTable table = make_table();
  return table;
}

}  // namespace homenode
