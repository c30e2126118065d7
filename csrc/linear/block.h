// The values that a tile of activation rows accumulates, on the vectors a level defines. See linear/tiles.h.
#pragma once
#include "linear/table.h"

#define HOMENODE_INLINE inline __attribute__((always_inline))

namespace homenode {
namespace {

constexpr int kVectors = kGroupRows / kLanes;  // of a group's rows
constexpr int kVectorBytes = 4 * kLanes;

// Prefetches the weights that are due with one part. With several tokens the instructions of one part fill the
// processor's window, so that it would not see the next reads early enough by itself. They go to the nearest cache,
// where slices of them have room (see linear/group.cpp): what waits in the second-level cache comes too late for the
// first tile of a slice; but on some processors it is the better place (linear/tuning.cpp).
HOMENODE_INLINE void prefetch_lines(Prefetch& prefetch) {
  for (int i = 0; i < prefetch.lines; ++i, prefetch.from += kCacheLine) {
    if (prefetch.into_l2) __builtin_prefetch(prefetch.from, 0, 2);
    else __builtin_prefetch(prefetch.from, 0, 3);
  }
}

template <int M>
using Block = Floats[M][kVectors];

template <int M>
HOMENODE_INLINE void load_sums(const float* sums, Block<M>& f) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) f[m][v] = load_floats(sums + kGroupRows * m + kLanes * v);
  }
}

template <int M>
HOMENODE_INLINE void store_sums(const Block<M>& f, float* sums) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store_floats(sums + kGroupRows * m + kLanes * v, f[m][v]);
  }
}

template <int M>
HOMENODE_INLINE void set_zero(Block<M>& f) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) f[m][v] = zero_floats();
  }
}

}  // namespace
}  // namespace homenode
