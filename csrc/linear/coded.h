// Tiles of the block formats. See linear/tiles.h for the order of summation and quant/coding.h for the layout.
#pragma once
#include "linear/block.h"
#include "linear/panel_kind.h"

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
  if constexpr (C.low_bits == 8) codes = load_codes(low + kLineBytes * Line);
  if constexpr (C.low_bits == 4)
    codes = masked(shifted<-4 * (Line / 4)>(load_bytes(low + kLineBytes * (Line % 4))), 15);
  if constexpr (C.low_bits == 2) codes = masked(shifted<-2 * (Line % 4)>(load_bytes(low + kLineBytes * (Line / 4))), 3);
  if constexpr (C.high_bits == 1) {
    codes = bit_or(codes, masked(shifted<C.low_bits - Line>(load_bytes(high)), 1 << C.low_bits));
  }
  if constexpr (C.high_bits == 2) {
    codes = bit_or(codes, masked(shifted<C.low_bits - 2 * (Line % 4)>(load_bytes(high + kLineBytes * (Line / 4))),
                                 3 << C.low_bits));
  }
  if constexpr (C.table != Table::none) codes = look_up(table_bytes<C.table, C.zero>(), codes);
  return codes;
}

// Does the level's dot product take these codes less their zero, so that no compensation is due?
template <Coding C>
constexpr bool kDotSubtracts = C.zero == 128 && kWideDotSubtracts128;

// Minus the sum of the codes that half `H` of a part (or the whole) is multiplied with.
template <int Halves, int H>
HOMENODE_INLINE int32_t minus_sum(const EncodedPart* part) {
  if constexpr (Halves == 1) return part->minus_sum;
  return part->minus_half_sum[H];
}

// The same in units of the activations: what a minimum is multiplied with. Exact.
template <int Halves, int H>
HOMENODE_INLINE Floats minus_total(const EncodedPart* part) {
  if constexpr (Halves == 1) return broadcast_float(&part->minus_total);
  return multiply(broadcast_float(&part->scale), to_floats(broadcast_int(part->minus_half_sum[H])));
}

template <int M>
using Sums = Ints[M][kVectors];

template <Coding C, int M, int H>
HOMENODE_INLINE void start_sums(const uint8_t* x, size_t stride, Sums<M>& sums) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const auto* part = reinterpret_cast<const EncodedPart*>(x + m * stride);
    Ints start = zero_ints();
    if constexpr (C.zero != 0 && !kDotSubtracts<C>)
      start = shift_left32<__builtin_ctz(C.zero | 256)>(broadcast_int(minus_sum<halves_of(C), H>(part)));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[m][v] = start;
  }
}

template <Coding C>
constexpr int kLargestWeight =
    C.zero == 128 ? 255 : (1 << (C.low_bits + C.high_bits)) - 1 + (C.table == Table::none ? 0 : C.zero);

constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Lines of a sum, and how many have their products summed before the level widens them.
template <Coding C>
constexpr int kSumLines = 8 / halves_of(C);
template <Coding C>
constexpr int kRunLines = smaller(run_lines(kLargestWeight<C>), kSumLines<C>);

// Prefetches weights that will be wanted later (see SpreadPrefetch), on the way through line `Step` of a part.
template <Coding C, int Step>
HOMENODE_INLINE void prefetch_step(const SpreadPrefetch& prefetch) {
  constexpr int kLines = (Packed<C>::bytes / C.parts + kCacheLine - 1) / kCacheLine;
  if (Step >= prefetch.steps) return;
  constexpr int kFirst = kLines * Step / 8, kPast = kLines * (Step + 1) / 8;
  if (prefetch.into_l2) {
#pragma GCC unroll 8
    for (int i = kFirst; i < kPast; ++i) __builtin_prefetch(prefetch.from + kCacheLine * i, 0, 2);
  } else {
#pragma GCC unroll 8
    for (int i = kFirst; i < kPast; ++i) __builtin_prefetch(prefetch.from + kCacheLine * i, 0, 3);
  }
}

// Lines to prefetch in each of `times` equal shares of a part's work, where its lines are gone through more than once.
template <Coding C>
HOMENODE_INLINE int lines_of_share(const SpreadPrefetch& prefetch, int times) {
  constexpr int kLines = (Packed<C>::bytes / C.parts + kCacheLine - 1) / kCacheLine;
  return (kLines * prefetch.steps / 8 + times - 1) / times;
}

// Adds the products of the lines of a sum. Lines that share bytes follow each other.
template <Coding C, int M, int H, int Step = 0>
HOMENODE_INLINE void add_lines(const uint8_t* lines, const uint8_t* x, size_t stride, Sums<M>& run, Sums<M>& sums,
                               const SpreadPrefetch& prefetch) {
  prefetch_step<C, Step + H * kSumLines<C>>(prefetch);
  constexpr int line = halves_of(C) == 2 ? 4 * H + Step : C.low_bits == 4 ? Step / 2 + 4 * (Step % 2) : Step;
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
      if constexpr (Step % kRunLines<C> == 0) run[m][v] = begin_run(sums[m][v]);
      run[m][v] = C.zero == 128 ? add_wide_products(run[m][v], w[v], codes) : add_products(run[m][v], w[v], codes);
      if constexpr ((Step + 1) % kRunLines<C> == 0) sums[m][v] = end_run(sums[m][v], run[m][v]);
    }
  }
  if constexpr (Step + 1 < kSumLines<C>) add_lines<C, M, H, Step + 1>(lines, x, stride, run, sums, prefetch);
}

// 16-bit scales of the rows of one vector.
template <Coding C>
HOMENODE_INLINE Floats load_scales(const uint8_t* p) {
  if constexpr (C.scale_bf16) return as_floats(shift_left32<16>(load_unsigned16(p)));
  return load_halves(p);
}

// What one block says of the rows of a vector: the scale, and the minimum with the sign that makes its product with
// minus_total one to add.
struct BlockScale {
  Floats d, minimum;
};

template <Coding C>
HOMENODE_INLINE BlockScale block_scale(const uint8_t* block, int v) {
  BlockScale scale{load_scales<C>(block + 2 * kLanes * v), zero_floats()};
  if constexpr (C.minimum != Minimum::none) scale.minimum = load_halves(block + 2 * kGroupRows + 2 * kLanes * v);
  if constexpr (C.minimum == Minimum::added) scale.minimum = subtract(zero_floats(), scale.minimum);
  return scale;
}

// The scale and the minimum of half `h` (or the whole) of the part at `at`, times the block's. A simple block has but
// one.
template <Coding C>
HOMENODE_INLINE Floats part_scale(const BlockScale& block, const uint8_t* at, int h, int v) {
  const uint8_t* s = at + kGroupRows * h + kLanes * v;
  if constexpr (C.scales == 0) return block.d;
  else if constexpr (C.minimum == Minimum::paired)
    return multiply(block.d, to_floats(bit_and(load_unsigned8(s), broadcast_int(15))));
  else return multiply(block.d, to_floats(load_signed8(s)));
}
template <Coding C>
HOMENODE_INLINE Floats part_minimum(const BlockScale& block, const uint8_t* at, int h, int v) {
  const uint8_t* m = at + kGroupRows * h + kLanes * v;
  if constexpr (C.scales == 0) return block.minimum;
  else if constexpr (C.minimum == Minimum::paired)
    return multiply(block.minimum, to_floats(shift_right16<4>(load_unsigned8(m))));
  else return multiply(block.minimum, to_floats(load_unsigned8(m + Packed<C>::scale)));
}

// One sum of a part: f += (integer sum * d_row) * scale.
template <Coding C, int M, int H>
HOMENODE_INLINE void add_sum(const BlockScale (&block)[kVectors], const uint8_t* at, const uint8_t* x, size_t stride,
                             Block<M>& f, const SpreadPrefetch& prefetch) {
  Sums<M> sums, run;
  start_sums<C, M, H>(x, stride, sums);
  add_lines<C, M, H>(at + Packed<C>::scale + Packed<C>::minimum, x, stride, run, sums, prefetch);
  Floats scale[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) scale[v] = part_scale<C>(block[v], at, H, v);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Floats row = broadcast_float(&reinterpret_cast<const EncodedPart*>(x + m * stride)->scale);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) f[m][v] = fma(multiply(to_floats(sums[m][v]), row), scale[v], f[m][v]);
  }
}

template <Coding C, int M, int H>
HOMENODE_INLINE void add_minimum(const BlockScale (&block)[kVectors], const uint8_t* at, const uint8_t* x,
                                 size_t stride, Block<M>& f) {
  Floats minimum[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) minimum[v] = part_minimum<C>(block[v], at, H, v);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Floats row = minus_total<halves_of(C), H>(reinterpret_cast<const EncodedPart*>(x + m * stride));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) f[m][v] = fma(minimum[v], row, f[m][v]);
  }
}

template <Coding C, int M>
void tile_coded(const uint8_t* packed, int64_t columns, const uint8_t* x, size_t stride, float* total,
                SpreadPrefetch prefetch) {
  using At = Packed<C>;
  constexpr bool kMinimum = C.minimum != Minimum::none, kTwo = halves_of(C) == 2;
  Block<M> f;
  load_sums<M>(total, f);
  for (; columns > 0; columns -= At::columns, packed += At::bytes) {
    BlockScale block[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) block[v] = block_scale<C>(packed, v);
    for (const uint8_t* at = packed + At::head; at < packed + At::bytes; at += At::part, x += sizeof(EncodedPart)) {
      add_sum<C, M, 0>(block, at, x, stride, f, prefetch);
      if constexpr (kTwo) add_sum<C, M, 1>(block, at, x, stride, f, prefetch);
      if constexpr (kMinimum) add_minimum<C, M, 0>(block, at, x, stride, f);
      if constexpr (kMinimum && kTwo) add_minimum<C, M, 1>(block, at, x, stride, f);
      prefetch.from += prefetch.advance;
    }
  }
  store_sums<M>(f, total);
}

}  // namespace
}  // namespace homenode
