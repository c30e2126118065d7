// BF16 tiles of three tokens: the values of linear/floats.h. Twelve sums, three activations and a vector of weights
// fill all sixteen registers. The compiler does not find a way to do it: it moves sums to memory and back with every
// column. So two columns are written out.
#pragma once
#include "linear/floats.h"

namespace homenode {
namespace {

constexpr int kTripleTokens = 3;

// Weights of eight rows, in the first of the registers 12 .. 15: the first or the second column of each pair at `at`;
// times the activations of three tokens.
#define HOMENODE_FIRST(at) "vmovdqu " #at "(%[packed]),%%ymm12\nvpslld $16,%%ymm12,%%ymm12\n"
#define HOMENODE_SECOND(at) "vmovdqu " #at "(%[packed]),%%ymm12\nvpand %[mask],%%ymm12,%%ymm12\n"
#define HOMENODE_THREE(a, b, c) \
  "vfmadd231ps %%ymm13,%%ymm12,%[" #a "]\nvfmadd231ps %%ymm14,%%ymm12,%[" #b "]\nvfmadd231ps %%ymm15,%%ymm12,%[" #c \
  "]\n"
#define HOMENODE_ACTIVATIONS(at) \
  "vbroadcastss " #at "(%[row]),%%ymm13\nvbroadcastss " #at "(%[row],%[stride]),%%ymm14\nvbroadcastss " #at \
  "(%[row],%[stride],2),%%ymm15\n"
#define HOMENODE_COLUMN(x_at, choose)                                                                               \
  HOMENODE_ACTIVATIONS(x_at)                                                                                        \
  choose(0) HOMENODE_THREE(a0, b0, c0) choose(32) HOMENODE_THREE(a1, b1, c1) choose(64) HOMENODE_THREE(a2, b2, c2) \
  choose(96) HOMENODE_THREE(a3, b3, c3)

void tile_triple(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* sums,
                 Prefetch prefetch) {
  const Ints mask = broadcast_int(int32_t(0xffff0000));
  Block<kTripleTokens> f;
  load_sums<kTripleTokens>(sums, f);
  for (; columns > 1; columns -= 2, packed += 4 * kGroupRows, x += 8) {
    prefetch_lines(prefetch);
    asm(HOMENODE_COLUMN(0, HOMENODE_FIRST) HOMENODE_COLUMN(4, HOMENODE_SECOND)
        : [a0] "+x"(f[0][0]), [a1] "+x"(f[0][1]), [a2] "+x"(f[0][2]), [a3] "+x"(f[0][3]), [b0] "+x"(f[1][0]),
          [b1] "+x"(f[1][1]), [b2] "+x"(f[1][2]), [b3] "+x"(f[1][3]), [c0] "+x"(f[2][0]), [c1] "+x"(f[2][1]),
          [c2] "+x"(f[2][2]), [c3] "+x"(f[2][3])
        : [packed] "r"(packed), [row] "r"(x), [stride] "r"(stride), [mask] "m"(mask)
        : "memory", "xmm12", "xmm13", "xmm14", "xmm15");
  }
  if (columns > 0)
    add_column<kTripleTokens>([packed](int v) { return first_of_pair(packed + v * kVectorBytes); }, x, stride, f);
  store_sums<kTripleTokens>(f, sums);
}

#undef HOMENODE_FIRST
#undef HOMENODE_SECOND
#undef HOMENODE_THREE
#undef HOMENODE_ACTIVATIONS
#undef HOMENODE_COLUMN

}  // namespace
}  // namespace homenode
