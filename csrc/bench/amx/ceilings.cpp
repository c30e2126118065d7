// AMX, with AVX-512 for all that is no matrix. The tiles are full: 16 tokens, 16 rows of weights, 64 bytes of each.
// Block formats have a scale for every 32 columns or fewer and so fill half of them at most.
#include "bench/ceilings_avx512.h"

#include "kernels/amx/tiles.h"

namespace homenode {
namespace {

#ifdef HOMENODE_EMULATE_TILES
constexpr CeilingTable kTileTable = kTable;  // no more than what the processor has
#else
constexpr int kSums = 4;  // tiles of sums; the products of each wait for the one before

template <class Product>
inline void multiply_tiles(int64_t rounds, Product product) {
  TileConfiguration c;
  for (int i = 0; i < 8; ++i) c.set(i, 16, 64);
  configure_tiles(c);  // and clears them: nothing overflows, and no number is ever denormal
  for (; rounds > 0; --rounds) product();
  release_tiles();
}

void multiply_bytes(int64_t rounds) {
  multiply_tiles(rounds, [] {
    add_byte_products<0, 4, 6>();
    add_byte_products<1, 4, 7>();
    add_byte_products<2, 5, 6>();
    add_byte_products<3, 5, 7>();
  });
}

void multiply_pairs(int64_t rounds) {
  multiply_tiles(rounds, [] {
    add_pair_products<0, 4, 6>();
    add_pair_products<1, 4, 7>();
    add_pair_products<2, 5, 6>();
    add_pair_products<3, 5, 7>();
  });
}

constexpr CeilingTable kTileTable = {read_one_stream,
                                     read_eight_streams,
                                     {multiply_bytes, kSums * 16 * 16 * 64 * 2},
                                     {multiply_pairs, kSums * 16 * 16 * 32 * 2},
                                     kFloats};
#endif

}  // namespace

const CeilingTable& ceiling_table_amx() { return kTileTable; }

}  // namespace homenode
