// Sums of products of some rows' factors with vectors of lanes, in registers: the inner loops of attention over float
// keys and values.
//
// Each sum is one chain of multiply-adds, which takes some four steps an addition; so a block wants eight chains and
// more, and as many as the level has registers for: few rows stand beside several vectors of lanes (lanes_beside).
#pragma once
#include <cstdint>

#define HOMENODE_ATTEND inline __attribute__((always_inline))

namespace homenode {
namespace {

// Rows beside a single vector of lanes, where fewer are left than a block takes at once: that happens once a chunk, so
// it is not worth loops of its own for every number of rows.
constexpr int kRowsBesideOne = 4;

// Calls block.operator()<R>(row) for the R that `count` is, at most `Most`.
template <int Most, class Block>
inline void compute_block(int count, int row, const Block& block) {
  if (count == Most) return block.template operator()<Most>(row);
  if constexpr (Most > 1) compute_block<Most - 1>(count, row, block);
}

// Calls block.operator()<R>(first row) for all rows, in as few blocks of at most `Most` as there can be, of about equal
// size.
template <int Most, class Block>
inline void for_row_blocks(int rows, const Block& block) {
  int row = 0;
  for (int blocks = (rows + Most - 1) / Most; blocks; --blocks) {
    const int count = (rows - row + blocks - 1) / blocks;
    compute_block<Most>(count, row, block);
    row += count;
  }
}

template <int R, int T>
HOMENODE_ATTEND void clear_sums(Lanes (&sums)[R][T]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = fill(0);
  }
}

template <int R, int T>
HOMENODE_ATTEND void load_sums(const float* from, int64_t stride, Lanes (&sums)[R][T]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[r][t] = load(from + r * stride + 16 * t);
  }
}

template <int R, int T>
HOMENODE_ATTEND void store_sums(const Lanes (&sums)[R][T], float* to, int64_t stride) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) store(to + r * stride + 16 * t, sums[r][t]);
  }
}

// Where the factors of R rows lie, `stride` apart. Of many rows every third has a pointer of its own, and the address
// of any is a pointer and up to two strides: with a register for each multiple of the stride the compiler runs out of
// them.
template <int R>
struct RowFactors {
  static constexpr int kBeside = R > 6 ? 3 : R;  // rows that a pointer is for
  const float* first[(R + kBeside - 1) / kBeside];
  int64_t stride;
  HOMENODE_ATTEND RowFactors(const float* x, int64_t from_row_to_row) : stride(from_row_to_row) {
    first[0] = x;
#pragma GCC unroll 4
    for (int i = 1; kBeside * i < R; ++i) {
      x += kBeside * stride;
      asm("" : "+r"(x));  // or the compiler finds out what lies between them
      first[i] = x;
    }
  }
  HOMENODE_ATTEND Lanes at(int row, int step) const {
    return fill(first[row / kBeside][row % kBeside * stride + step]);
  }
};

// sums[r][t] += the factor `step` of row r * v[t]: of many rows, for whose factors there are no registers, each factor
// once.
template <int R, int T>
HOMENODE_ATTEND void add_vectors(const RowFactors<R>& x, int step, const Lanes (&v)[T], Lanes (&sums)[R][T]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Lanes factor = x.at(r, step);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) add_in_place(factor, v[t], sums[r][t]);
  }
}

// sums[r][t] += x[r * stride] * lanes at at[t].
template <int R, int T>
HOMENODE_ATTEND void add_floats(const float* x, int64_t stride, const float* const (&at)[T], Lanes (&sums)[R][T]) {
  if constexpr (R > 4) {
    Lanes v[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) v[t] = load(at[t]);
    add_vectors(RowFactors<R>(x, stride), 0, v, sums);
    return;
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const Lanes v = load(at[t]);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) add_product(fill(x[r * stride]), v, sums[r][t]);
  }
}

// sums[r][t] += x[r * stride] * even lanes of the pairs at at[t], then += x[r * stride + 1] * odd ones.
template <int R, int T>
HOMENODE_ATTEND void add_pairs(const float* x, int64_t stride, const uint16_t* const (&at)[T], Lanes (&sums)[R][T]) {
  if constexpr (R > 4) {  // many sums leave no registers for even and odd lanes at once
    const RowFactors<R> factors(x, stride);
    Lanes v[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) v[t] = load_even(at[t]);
    add_vectors(factors, 0, v, sums);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) v[t] = load_odd(at[t]);
    add_vectors(factors, 1, v, sums);
    return;
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    Lanes even, odd;
    load_pairs(at[t], even, odd);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) add_product(fill(x[r * stride]), even, sums[r][t]);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) add_product(fill(x[r * stride + 1]), odd, sums[r][t]);
  }
}

}  // namespace
}  // namespace homenode
