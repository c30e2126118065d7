// linear_multiply: which groups a thread multiplies with which tokens, and where the sums go.
#include <algorithm>

#include "kernels/linear_group.h"

namespace homenode {
namespace {

// Asks for the lines of the outputs early: they lie a row apart, and the stores would wait for them.
void expect_outputs(const Outputs& to, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* out = to.out + t * to.out_stride;
    __builtin_prefetch(out, 1);
    __builtin_prefetch(out + to.rows - 1, 1);
  }
}

void multiply_piece(const LinearArgs& a, const Weight& w, const Weight::Piece& piece, const float* bias, int64_t column, const LinearTable& table) {
  alignas(64) float sums[kTokensAtOnce * kGroupRows] = {};
  const GroupProduct product(w, rows_for(a, w, table), table);
  const int64_t block = block_tokens(a.tokens, int64_t(product.rows().stride));
  for (int64_t begin = 0; begin < a.tokens; begin += block) {
    const int64_t end = std::min(begin + block, a.tokens);
    const uint8_t* group = piece.data;
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += product.group_bytes()) {
      for (int64_t first = begin; first < end; first += kTokensAtOnce) {
        const int64_t n = std::min(kTokensAtOnce, end - first), place = column + row;
        const Outputs to{a.out + first * a.out_stride + place, a.out_stride,
                         a.residual ? a.residual + first * a.residual_stride + place : nullptr, a.residual_stride,
                         bias ? bias + row : nullptr, std::min<int64_t>(kGroupRows, piece.row_end - row)};
        expect_outputs(to, n);
        product.multiply(group, first, n, sums);
        table.store(sums, n, to);
      }
    }
  }
}

}  // namespace

void linear_multiply(const LinearArgs& a, int thread, int threads) {
  if (a.tokens < 1) return;
  const LinearTable& table = linear_table(current_level());
  int64_t column = 0;
  for (int i = 0; i < a.count; ++i) {
    const Weight& w = *a.weights[i];
    for (size_t p = size_t(thread); p < w.pieces.size(); p += size_t(threads)) {
      multiply_piece(a, w, w.pieces[p], a.biases ? a.biases[i] : nullptr, column, table);
    }
    column += w.rows;
  }
}

}  // namespace homenode
