// linear_multiply and linear_multiply_gated: the sums of runs of groups (see linear/share.h), and where they go.
#include <algorithm>
#include <optional>

#include "kernels/kernels.h"
#include "linear/gated.h"
#include "linear/group.h"
#include "linear/share.h"

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
    const int64_t at_once = product_->groups_at_once(std::min(kTokensAtOnce, run.token_end - run.token_begin));
    for (int64_t group = run.group_begin; group < run.group_end; group += at_once) {
      const int64_t count = std::min(at_once, run.group_end - group);
      const int64_t row = piece.row_begin + group * kGroupRows;
      const size_t bytes = size_t(std::min(count * kGroupRows, piece.row_end - row)) * sizeof(float);
      for (int64_t first = run.token_begin; first < run.token_end; first += kTokensAtOnce) {
        const int64_t n = std::min(kTokensAtOnce, run.token_end - first);
        const Destination lines{a_.out + first * a_.out_stride + column_ + row, size_t(a_.out_stride) * sizeof(float),
                                bytes, kGroupRows * sizeof(float)};
        product_->multiply(groups + group * product_->group_bytes(), count, first, n, sums_, lines);
        for (int64_t g = 0; g < count; ++g)
          store(first, n, sums_ + g * n * kGroupRows, row + g * kGroupRows, piece.row_end, bias);
      }
    }
  }

 private:
  // The sums of the group whose rows begin at `row` go where its outputs lie.
  void store(int64_t first, int64_t n, const float* sums, int64_t row, int64_t row_end, const float* bias) const {
    const int64_t place = column_ + row;
    const Outputs to{a_.out + first * a_.out_stride + place,
                     a_.out_stride,
                     a_.residual ? a_.residual + first * a_.residual_stride + place : nullptr,
                     a_.residual_stride,
                     bias ? bias + row : nullptr,
                     std::min<int64_t>(kGroupRows, row_end - row)};
    a_.residual_picked ? store_picked(first, n, sums, place, to) : table_.store(sums, n, to);
    for (int64_t i = 0; a_.activation && i < n; ++i) {
      float* row_of = to.out + i * to.out_stride;
      a_.activation(row_of, nullptr, row_of, to.rows);
    }
  }

  // The residuals lie anywhere: each token is stored with its own.
  void store_picked(int64_t first, int64_t n, const float* sums, int64_t place, Outputs to) const {
    for (int64_t i = 0; i < n; ++i, to.out += to.out_stride) {
      to.residual = a_.residual + a_.residual_picked[first + i] * a_.residual_stride + place;
      table_.store(sums + i * kGroupRows, 1, to);
    }
  }

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
  alignas(64) float sums_[(kGroupsAtOnce * kTokensAtOnce + kSpareRows) * kGroupRows];
};

}  // namespace

void linear_multiply(const LinearArgs& a, int thread, int threads) {
  if (a.tokens < 1) return;
  const LinearTable& table = linear_table(current_level());
  PlainSums sums(a, table, thread);
  work_through(a, a.count, table, thread, threads, [&](const Run& run) { sums.multiply(run); });
}

GateKernel gate_kernel(Activation gate, Level level) { return kernels(level).gate(gate); }

bool can_gate(const Weight& gate, const Weight& up) {
  const auto same = [](const Weight::Piece& a, const Weight::Piece& b) {
    return a.row_begin == b.row_begin && a.row_end == b.row_end;
  };
  return std::equal(gate.pieces.begin(), gate.pieces.end(), up.pieces.begin(), up.pieces.end(), same);
}

void linear_multiply_gated(const LinearArgs& a, const GatedRows& to, int thread, int threads) {
  if (a.tokens < 1) return;
  const LinearTable& table = linear_table(current_level());
  PreparedRows rows;
  if (to.reader) rows = prepared_rows(*to.reader, table);
  else rows.floats = to.out, rows.float_stride = to.out_stride;
  const Weight &gate = *a.weights[0], &up = *a.weights[1];
  const GroupProduct gates(gate, rows_for(a, gate, table), table), ups(up, rows_for(a, up, table), table);
  GatedGroups groups(gates, &ups, rows, gate_kernel(to.gate, current_level()), table, a.biases);
  work_through(a, 1, table, thread, threads, [&](const Run& run) {  // the pieces of gate stand for those of up
    const Weight::Piece& piece = gate.pieces[run.piece];
    groups.multiply({gate.data(run.piece, thread), up.data(run.piece, thread), piece.row_begin, piece.row_end},
                    run.group_begin, run.group_end, run.token_begin, run.token_end);
  });
}

}  // namespace homenode
