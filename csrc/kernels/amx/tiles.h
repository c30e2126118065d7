// The eight tile registers of AMX: all that is used of it, in a few functions.
//
// A tile has up to 16 rows of up to 64 bytes, as the thread's configuration says. In builds of the checks another
// header of the same functions takes the place of this one (emulated_tiles.h), so that everything written on them runs
// on processors without AMX as well.
#pragma once
#include <cstddef>
#include <cstdint>

namespace homenode {
namespace {

// What LDTILECFG reads: Intel's Software Developer's Manual, volume 1, chapter 18.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int tile_rows, int bytes) {
    row_bytes[tile] = uint16_t(bytes);
    rows[tile] = uint8_t(tile_rows);
  }
};
static_assert(sizeof(TileConfiguration) == 64);

}  // namespace
}  // namespace homenode

#ifdef HOMENODE_EMULATE_TILES
#include "kernels/amx/emulated_tiles.h"
#else

namespace homenode {
namespace {

inline void configure_tiles(const TileConfiguration& c) { __asm__ volatile("ldtilecfg %0" : : "m"(c)); }
inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int Tile>
inline void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
template <int Tile>
inline void load_tile(const void* p, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
inline void store_tile_rows(void* p, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}
// Sum[m][n] += signed bytes A[m][4k + i] * signed bytes B[k][4n + i] over k and i: exact.
template <int Sum, int A, int B>
inline void add_byte_products() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}
// Sum[m][n] += (sum of A[m][2k] * B[k][2n]) + (sum of A[m][2k + 1] * B[k][2n + 1]) over k ascending, each a chain of
// fused multiply-adds from 0; bfloat16 factors, float32 sums, denormal numbers taken and left as zero.
template <int Sum, int A, int B>
inline void add_pair_products() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

}  // namespace
}  // namespace homenode
#endif
