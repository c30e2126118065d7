// linear_multiply and linear_multiply_gated: the sums of runs of groups (see linear_share.h), and where they go.
#include <algorithm>
#include <optional>

#include "kernels/kernels.h"
#include "kernels/linear_group.h"
#include "kernels/linear_share.h"

namespace homenode {
namespace {

// The outputs of one weight's rows.
class PlainSums {
 public:
  PlainSums(const LinearArgs& a, const LinearTable& table, int thread) : a_(a), table_(table), thread_(thread) {}

  void multiply(const Run& run) {
    if (run.weight != weight_) enter(run.weight);
    const Weight::Piece& piece = a_.weights[weight_]->pieces[run.piece];
    const float* bias = a_.biases ? a_.biases[weight_] : nullptr;
    const uint8_t* groups = a_.weights[weight_]->data(run.piece, thread_);
    for (int64_t group = run.group_begin; group < run.group_end; ++group) {
      const uint8_t* packed = groups + group * product_->group_bytes();
      const int64_t row = piece.row_begin + group * kGroupRows, place = column_ + row;
      for (int64_t first = run.token_begin; first < run.token_end; first += kTokensAtOnce) {
        const int64_t n = std::min(kTokensAtOnce, run.token_end - first);
        const Outputs to{a_.out + first * a_.out_stride + place, a_.out_stride,
                         a_.residual ? a_.residual + first * a_.residual_stride + place : nullptr, a_.residual_stride,
                         bias ? bias + row : nullptr, std::min<int64_t>(kGroupRows, piece.row_end - row)};
        const Destination lines{to.out, size_t(to.out_stride) * sizeof(float), size_t(to.rows) * sizeof(float)};
        product_->multiply(packed, first, n, sums_, lines);
        table_.store(sums_, n, to);
      }
    }
  }

 private:
  void enter(int weight) {
    weight_ = weight, column_ = 0;
    for (int i = 0; i < weight; ++i) column_ += a_.weights[i]->rows;
    product_.emplace(*a_.weights[weight], rows_for(a_, *a_.weights[weight], table_), table_);
  }

  const LinearArgs& a_;
  const LinearTable& table_;
  int thread_, weight_ = -1;
  int64_t column_ = 0;  // of the weight's first output
  std::optional<GroupProduct> product_;
  alignas(64) float sums_[kTokensAtOnce * kGroupRows];
};

// gated(gate) * up of the same rows of two weights.
class GatedSums {
 public:
  GatedSums(const LinearArgs& a, const PreparedRows& to, Activation gate, const LinearTable& table, int thread)
      : a_(a), to_(to), table_(table), thread_(thread), gate_mul_(gate_kernel(gate, current_level())),
        gates_(*a.weights[0], rows_for(a, *a.weights[0], table), table), ups_(*a.weights[1], rows_for(a, *a.weights[1], table), table) {}

  void multiply(const Run& run) {
    const Weight::Piece& gate = a_.weights[0]->pieces[run.piece];  // up's has the same rows
    const uint8_t *gate_groups = a_.weights[0]->data(run.piece, thread_), *up_groups = a_.weights[1]->data(run.piece, thread_);
    // Gates of several groups and then ups: a change from one to the other costs about a microsecond, until reading is at full speed again.
    const int64_t tokens = std::min(kTokensAtOnce, run.token_end - run.token_begin), at_once = kTokensAtOnce / tokens;
    for (int64_t group = run.group_begin; group < run.group_end; group += at_once) {
      const int64_t groups = std::min(at_once, run.group_end - group), row = gate.row_begin + group * kGroupRows;
      for (int64_t first = run.token_begin; first < run.token_end; first += kTokensAtOnce) {
        const int64_t n = std::min(kTokensAtOnce, run.token_end - first), sums = n * kGroupRows;
        for (int64_t g = 0; g < groups; ++g) gates_.multiply(gate_groups + (group + g) * gates_.group_bytes(), first, n, gate_ + g * sums);
        for (int64_t g = 0; g < groups; ++g) {
          ups_.multiply(up_groups + (group + g) * ups_.group_bytes(), first, n, up_ + g * sums, destination(first, row + g * kGroupRows));
        }
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t at = row + g * kGroupRows;
          store(first, n, at, std::min<int64_t>(kGroupRows, gate.row_end - at), gate_ + g * sums, up_ + g * sums);
        }
      }
    }
  }

 private:
  // Where the encoded parts of 32 outputs go.
  Destination destination(int64_t first, int64_t row) const {
    if (!to_.encoded) return {};
    return {to_.encoded + first * to_.encoded_stride + row / kPartColumns, size_t(to_.encoded_stride) * sizeof(EncodedPart), sizeof(EncodedPart)};
  }

  // The sums of n tokens and up to 32 rows.
  void store(int64_t first, int64_t n, int64_t row, int64_t rows, float* gate, float* up) {
    if (a_.biases) {
      add_bias(gate, a_.biases[0], n, row, rows);
      add_bias(up, a_.biases[1], n, row, rows);
    }
    gate_mul_(gate, up, gate, n * kGroupRows);
    store_part(to_, table_, first, n, row, gate, rows);
  }

  static void add_bias(float* sums, const float* bias, int64_t n, int64_t row, int64_t rows) {
    for (int64_t t = 0; bias && t < n; ++t) {
      for (int64_t i = 0; i < rows; ++i) sums[t * kGroupRows + i] += bias[row + i];
    }
  }

  const LinearArgs& a_;
  const PreparedRows& to_;
  const LinearTable& table_;
  int thread_;
  GateKernel gate_mul_;
  GroupProduct gates_, ups_;
  alignas(64) float gate_[kTokensAtOnce * kGroupRows];
  alignas(64) float up_[kTokensAtOnce * kGroupRows];
};

}  // namespace

void linear_multiply(const LinearArgs& a, int thread, int threads) {
  if (a.tokens < 1) return;
  const LinearTable& table = linear_table(current_level());
  PlainSums sums(a, table, thread);
  work_through(a, a.count, table, thread, threads, [&](const Run& run) { sums.multiply(run); });
}

GateKernel gate_kernel(Activation gate, Level level) {
  return gate == Activation::gelu ? kernels(level).gelu_mul : kernels(level).silu_mul;
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
  GatedSums sums(a, rows, to.gate, table, thread);
  work_through(a, 1, table, thread, threads, [&](const Run& run) { sums.multiply(run); });  // the pieces of gate stand for those of up
}

}  // namespace homenode
