// linear_multiply and linear_multiply_gated: which groups a thread multiplies with which tokens, and where the sums go.
#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
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

// The sums of a group of the gate and of the same rows of up, and what becomes of them.
class GatedSums {
 public:
  GatedSums(const LinearArgs& a, const PreparedRows& to, const LinearTable& table)
      : biases_(a.biases), to_(to), table_(table), silu_mul_(kernels(current_level()).silu_mul) {}

  float* gate() { return gate_; }
  float* up() { return up_; }

  // silu(gate) * up of `rows` rows from `row` on, n tokens from `first` on, into their places; the sums become 0.
  void store(int64_t first, int64_t n, int64_t row, int64_t rows) {
    if (biases_) {
      add_bias(gate_, biases_[0], n, row, rows);
      add_bias(up_, biases_[1], n, row, rows);
    }
    silu_mul_(gate_, up_, gate_, n * kGroupRows);
    for (int64_t t = 0; t < n; ++t) store_columns(to_, table_, first + t, row, gate_ + t * kGroupRows, rows);
    std::memset(gate_, 0, size_t(n) * kGroupRows * sizeof(float));
    std::memset(up_, 0, size_t(n) * kGroupRows * sizeof(float));
  }

 private:
  static void add_bias(float* sums, const float* bias, int64_t n, int64_t row, int64_t rows) {
    for (int64_t t = 0; bias && t < n; ++t) {
      for (int64_t i = 0; i < rows; ++i) sums[t * kGroupRows + i] += bias[row + i];
    }
  }

  const float* const* biases_;
  const PreparedRows& to_;
  const LinearTable& table_;
  void (*silu_mul_)(const float*, const float*, float*, int64_t);
  alignas(64) float gate_[kTokensAtOnce * kGroupRows] = {};
  alignas(64) float up_[kTokensAtOnce * kGroupRows] = {};
};

void multiply_gated_piece(const LinearArgs& a, size_t p, const PreparedRows& to, const LinearTable& table) {
  const Weight::Piece &gate = a.weights[0]->pieces[p], &up = a.weights[1]->pieces[p];
  const GroupProduct gates(*a.weights[0], rows_for(a, *a.weights[0], table), table), ups(*a.weights[1], rows_for(a, *a.weights[1], table), table);
  GatedSums sums(a, to, table);
  const int64_t block = block_tokens(a.tokens, int64_t(std::max(gates.rows().stride, ups.rows().stride)));
  for (int64_t begin = 0; begin < a.tokens; begin += block) {
    const int64_t end = std::min(begin + block, a.tokens);
    for (int64_t row = gate.row_begin; row < gate.row_end; row += kGroupRows) {
      const int64_t group = (row - gate.row_begin) / kGroupRows;
      for (int64_t first = begin; first < end; first += kTokensAtOnce) {
        const int64_t n = std::min(kTokensAtOnce, end - first);
        gates.multiply(gate.data + group * gates.group_bytes(), first, n, sums.gate());
        ups.multiply(up.data + group * ups.group_bytes(), first, n, sums.up());
        sums.store(first, n, row, std::min<int64_t>(kGroupRows, gate.row_end - row));
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

bool can_gate(const Weight& gate, const Weight& up) {
  const auto same = [](const Weight::Piece& a, const Weight::Piece& b) { return a.row_begin == b.row_begin && a.row_end == b.row_end; };
  return std::equal(gate.pieces.begin(), gate.pieces.end(), up.pieces.begin(), up.pieces.end(), same);
}

void linear_multiply_gated(const LinearArgs& a, const GatedRows& to, int thread, int threads) {
  if (a.tokens < 1) return;
  const LinearTable& table = linear_table(current_level());
  PreparedRows rows;
  if (to.reader) rows = prepared_rows(*to.reader, table);
  else rows.floats = to.out, rows.float_stride = to.out_stride;
  for (size_t p = size_t(thread); p < a.weights[0]->pieces.size(); p += size_t(threads)) multiply_gated_piece(a, p, rows, table);
}

}  // namespace homenode
