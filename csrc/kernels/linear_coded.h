// Tiles of the block formats. See linear_tiles.h for the order of summation and quant/coding.h for the layout.
#pragma once
#include "kernels/linear_block.h"

namespace homenode {
namespace {

template <int Left>
HOMENODE_INLINE Ints shifted(Ints x) {
  if constexpr (Left > 0) return shift_left16<Left>(x);
  if constexpr (Left < 0) return shift_right16<-Left>(x);
  return x;
}

HOMENODE_INLINE Ints masked(Ints x, int byte) { return bit_and(x, broadcast_int(byte * 0x01010101)); }

// The codes of line `Line` (see quant/coding.h) as unsigned bytes; high and low bits of one vector's rows.
template <Coding C, int Line>
HOMENODE_INLINE Ints line_codes(const uint8_t* high, const uint8_t* low) {
  Ints codes;
  if constexpr (C.low_bits == 8) codes = load_bytes(low + kLineBytes * Line);
  if constexpr (C.low_bits == 4) codes = masked(shifted<-4 * (Line / 4)>(load_bytes(low + kLineBytes * (Line % 4))), 15);
  if constexpr (C.low_bits == 2) codes = masked(shifted<-2 * (Line % 4)>(load_bytes(low + kLineBytes * (Line / 4))), 3);
  if constexpr (C.high_bits == 1) {
    codes = bit_or(codes, masked(shifted<C.low_bits - Line>(load_bytes(high)), 1 << C.low_bits));
  }
  if constexpr (C.high_bits == 2) {
    codes = bit_or(codes, masked(shifted<C.low_bits - 2 * (Line % 4)>(load_bytes(high + kLineBytes * (Line / 4))), 3 << C.low_bits));
  }
  if constexpr (C.table != Table::none) codes = look_up(table_bytes<C.table, C.zero>(), codes);
  return codes;
}

// Does the level's dot product take these codes less their zero, so that no compensation is due?
template <Coding C>
constexpr bool kDotSubtracts = C.zero == 128 && kWideDotSubtracts128;

constexpr int sums_per_part(const Coding& c) { return c.scales == 2 ? 2 : 1; }

// Integer sums of one part, for each half of the columns when each half has a scale of its own.
template <Coding C, int M>
struct PartSums {
  Ints sum[sums_per_part(C)][M][kVectors];
};

template <Coding C, int M>
HOMENODE_INLINE void start_sums(const uint8_t* x, size_t stride, PartSums<C, M>& sums) {
  constexpr int n = sums_per_part(C);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
#pragma GCC unroll 8
    for (int h = 0; h < n; ++h) {
      Ints start = zero_ints();
      if constexpr (C.zero != 0 && !kDotSubtracts<C>) {
        start = shift_left32<__builtin_ctz(C.zero | 256)>(broadcast_int(n == 1 ? part->minus_sum : part->minus_half_sum[h]));
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums.sum[h][m][v] = start;
    }
  }
}

template <Coding C>
constexpr int kLargestWeight = C.zero == 128 ? 255 : (1 << (C.low_bits + C.high_bits)) - 1 + (C.table == Table::none ? 0 : C.zero);

constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Lines whose products are summed before the level widens them: lines of one half of the columns, where each half has its own sum.
template <Coding C>
constexpr int kRunLines = smaller(run_lines(kLargestWeight<C>), sums_per_part(C) == 1 ? 8 : C.low_bits == 4 ? 1 : 4);

// Adds the products of all eight lines. Lines that share bytes follow each other.
template <Coding C, int M, int Step = 0>
HOMENODE_INLINE void add_lines(const uint8_t* lines, const uint8_t* x, size_t stride, Ints (&run)[M][kVectors], PartSums<C, M>& sums) {
  constexpr int line = C.low_bits == 4 ? Step / 2 + 4 * (Step % 2) : Step;
  constexpr int h = sums_per_part(C) == 2 ? line / 4 : 0;
  Ints w[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const uint8_t* high = lines + v * kVectorBytes;
    w[v] = line_codes<C, line>(high, high + Packed<C>::high);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Ints codes = broadcast_bytes4(x + m * stride + 4 * line);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (Step % kRunLines<C> == 0) run[m][v] = begin_run(sums.sum[h][m][v]);
      run[m][v] = C.zero == 128 ? add_wide_products(run[m][v], w[v], codes) : add_products(run[m][v], w[v], codes);
      if constexpr ((Step + 1) % kRunLines<C> == 0) sums.sum[h][m][v] = end_run(sums.sum[h][m][v], run[m][v]);
    }
  }
  if constexpr (Step < 7) add_lines<C, M, Step + 1>(lines, x, stride, run, sums);
}

template <Coding C, int M>
HOMENODE_INLINE void add_products_of_part(const uint8_t* lines, const uint8_t* x, size_t stride, PartSums<C, M>& sums) {
  Ints run[M][kVectors];
  add_lines<C, M>(lines, x, stride, run, sums);
}

// 16-bit scales of the rows of one vector.
template <Coding C>
HOMENODE_INLINE Floats load_scales(const uint8_t* p) {
  if constexpr (C.scale_bf16) return as_floats(shift_left32<16>(load_unsigned16(p)));
  return load_halves(p);
}

// d_row * -(sum of the row's codes): what a minimum is multiplied with, negated.
HOMENODE_INLINE Floats minus_row_sum(const EncodedPart* part) {
  return multiply(broadcast_float(&part->scale), to_floats(broadcast_int(part->minus_sum)));
}
HOMENODE_INLINE Floats minus_row_half_sum(const EncodedPart* part, int h) {
  return multiply(broadcast_float(&part->scale), to_floats(broadcast_int(part->minus_half_sum[h])));
}

template <Coding C, int M>
void tile_simple(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* total) {
  using At = Packed<C>;
  Block<M> f;
  load_sums<M>(total, f);
  for (; columns > 0; columns -= kPartColumns, packed += At::bytes, x += sizeof(EncodedPart)) {
    if constexpr (M > 1) expect<At::bytes>(packed);
    PartSums<C, M> sums;
    start_sums<C, M>(x, stride, sums);
    add_products_of_part<C, M>(packed + At::head, x, stride, sums);
    Floats d[kVectors], minimum[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      d[v] = load_scales<C>(packed + 2 * kLanes * v);
      if constexpr (C.minimum != Minimum::none) minimum[v] = load_halves(packed + 2 * kGroupRows + 2 * kLanes * v);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
      const Floats scale = broadcast_float(&part->scale);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        f[m][v] = fma(to_floats(sums.sum[0][m][v]), multiply(d[v], scale), f[m][v]);
        if constexpr (C.minimum != Minimum::none) f[m][v] = minus_fma(minimum[v], minus_row_sum(part), f[m][v]);
      }
    }
  }
  store_sums<M>(f, total);
}

// The integer scale s and the minimum m of half h (or the whole) of a part, for one vector's rows.
template <Coding C>
HOMENODE_INLINE Ints part_scale(const uint8_t* part, int h, int v) {
  const uint8_t* p = part + kGroupRows * h + kLanes * v;
  if constexpr (C.minimum == Minimum::paired) return bit_and(load_unsigned8(p), broadcast_int(15));
  return load_signed8(p);
}
template <Coding C>
HOMENODE_INLINE Floats part_minimum(const uint8_t* part, int h, int v) {
  const uint8_t* p = part + kGroupRows * h + kLanes * v;
  if constexpr (C.minimum == Minimum::paired) return to_floats(shift_right16<4>(load_unsigned8(p)));
  return to_floats(load_unsigned8(p + Packed<C>::scale));
}

// One part of a super-block: inner += d_row * sum of s * integer sums.
template <Coding C, int M>
HOMENODE_INLINE void add_part(const uint8_t* at, const uint8_t* x, size_t stride, Block<M>& inner) {
  constexpr int n = sums_per_part(C);
  if constexpr (M > 1) expect<Packed<C>::part>(at);
  PartSums<C, M> sums;
  start_sums<C, M>(x, stride, sums);
  add_products_of_part<C, M>(at + Packed<C>::scale + Packed<C>::minimum, x, stride, sums);
  Ints s[n][kVectors];
#pragma GCC unroll 2
  for (int h = 0; h < n; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) s[h][v] = part_scale<C>(at, h, v);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Floats scale = broadcast_float(&reinterpret_cast<const EncodedPart*>(x + m * stride)->scale);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Ints scaled = multiply_ints(sums.sum[0][m][v], s[0][v]);
      if constexpr (n == 2) scaled = add_ints(scaled, multiply_ints(sums.sum[1][m][v], s[1][v]));
      inner[m][v] = fma(to_floats(scaled), scale, inner[m][v]);
    }
  }
}

// The minimums of one part: inner += m * (d_row * -(sum of the row's codes)).
template <Coding C, int M>
HOMENODE_INLINE void add_minimums_of_part(const uint8_t* at, const uint8_t* x, size_t stride, Block<M>& inner) {
  constexpr int n = sums_per_part(C);
#pragma GCC unroll 2
  for (int h = 0; h < n; ++h) {
    Floats minimum[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) minimum[v] = part_minimum<C>(at, h, v);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
      const Floats row = n == 2 ? minus_row_half_sum(part, h) : minus_row_sum(part);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) inner[m][v] = fma(minimum[v], row, inner[m][v]);
    }
  }
}

// total += inner * the super-block's scales at `d`.
template <Coding C, int M>
HOMENODE_INLINE void add_scaled(const Block<M>& inner, const uint8_t* d, float* total) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Floats scale = load_scales<C>(d + 2 * kLanes * v);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      float* sum = total + kGroupRows * m + kLanes * v;
      store_floats(sum, fma(inner[m][v], scale, load_floats(sum)));
    }
  }
}

// Products and minimums pass one after the other and the totals stay in memory: so the registers are enough for as many tokens as in a simple tile.
template <Coding C, int M>
void tile_super(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* total) {
  using At = Packed<C>;
  for (; columns > 0; columns -= At::columns, packed += At::bytes, x += C.parts * sizeof(EncodedPart)) {
    Block<M> inner;
    set_zero<M>(inner);
    for (int p = 0; p < C.parts; ++p) add_part<C, M>(packed + At::head + p * At::part, x + p * sizeof(EncodedPart), stride, inner);
    add_scaled<C, M>(inner, packed, total);
    if constexpr (C.minimum != Minimum::none) {
      set_zero<M>(inner);
      for (int p = 0; p < C.parts; ++p) add_minimums_of_part<C, M>(packed + At::head + p * At::part, x + p * sizeof(EncodedPart), stride, inner);
      add_scaled<C, M>(inner, packed + 2 * kGroupRows, total);
    }
  }
}

}  // namespace
}  // namespace homenode
