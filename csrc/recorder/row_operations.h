// The row operations: see graph/row_fields.h. A new one is a struct here and a line of the list at the end.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "graph/row_fields.h"
#include "moe/identity_weight.h"
#include "recorder/stream_weights.h"

namespace homenode {

constexpr int64_t kRowPiece = 256;  // columns that a thread computes at once where rows are divided

// Sixteen sums side by side: the order of additions depends on the count alone.
template <class Value>
float mean_by(int64_t count, Value&& value) {
  float sums[16] = {};
  for (int64_t i = 0; i < count; i += 16) {
    for (int64_t j = 0; j < 16 && i + j < count; ++j) sums[j] += value(i + j);
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total / static_cast<float>(count);
}

inline float mean_of(const float* x, int64_t count) {
  return mean_by(count, [x](int64_t i) { return x[i]; });
}

inline float mean_square_of(const float* x, int64_t count, float less = 0) {
  return mean_by(count, [=](int64_t i) { return (x[i] - less) * (x[i] - less); });
}

inline std::string widths_of(const Tensor& x, const Tensor& y) {
  return "rows of " + std::to_string(x.columns) + " and " + std::to_string(y.columns) + " columns";
}

struct Clamp {
  static constexpr const char *kName = "clamp", *kPhase = "clamp";
  Tensor x;
  float limit = 0;
  static constexpr auto fields() { return std::tuple(Field("x", &Clamp::x), Field("limit", &Clamp::limit)); }

  std::string problem() const {
    return limit > 0 ? "" : "values limited to " + std::to_string(limit) + "; wanted more than 0";
  }
  void compute(const RowPiece& p) const {
    const float* from = row_of(x, p.row);
    for (int64_t c = 0; c < p.count; ++c) p.out[c] = std::clamp(from[c], -limit, limit);
  }
};

struct Scale {
  static constexpr const char *kName = "scale", *kPhase = "scale";
  Tensor x;
  Number factor;
  static constexpr auto fields() { return std::tuple(Field("x", &Scale::x), Field("factor", &Scale::factor)); }

  void compute(const RowPiece& p) const {
    const float *from = row_of(x, p.row), by = factor.value();
    for (int64_t c = 0; c < p.count; ++c) p.out[c] = from[c] * by;
  }
};

// By 1 + growth * ln(1 + floor((position + ahead) / length)).
struct ScaleByPosition {
  static constexpr const char *kName = "scale_by_position", *kPhase = "scale";
  Tensor x;
  float growth = 0;
  int length = 1, ahead = 0;
  static constexpr auto fields() {
    using Op = ScaleByPosition;
    return std::tuple(Field("x", &Op::x), Field("growth", &Op::growth), Field("length", &Op::length),
                      DefaultedField("ahead", &Op::ahead));
  }

  std::string problem() const {
    if (x.rows == RowKind::sampled) return "rows after select have no positions";
    if (length >= 1 && ahead >= 0 && ahead <= length) return "";
    return "a length of " + std::to_string(length) + ", " + std::to_string(ahead) + " ahead";
  }
  void compute(const RowPiece& p) const {
    const int turns = (p.step.positions[static_cast<size_t>(p.row)] + ahead) / length;
    const auto factor = static_cast<float>(1 + double(growth) * std::log1p(double(turns)));
    const float* from = row_of(x, p.row);
    for (int64_t c = 0; c < p.count; ++c) p.out[c] = from[c] * factor;
  }
};

// x * y.
struct Multiply {
  static constexpr const char *kName = "multiply", *kPhase = "multiply";
  Tensor x;
  RowsOrVector y;
  static constexpr auto fields() { return std::tuple(Field("x", &Multiply::x), Field("y", &Multiply::y)); }

  std::string problem() const { return x.columns == y.tensor.columns ? "" : widths_of(x, y.tensor); }
  void compute(const RowPiece& p) const {
    p.kernels.multiply_rows(row_of(x, p.row), row_of(y.tensor, p.row), p.out, p.count);
  }
};

// x * sigmoid(gate).
struct SigmoidMul {
  static constexpr const char *kName = "sigmoid_mul", *kPhase = "sigmoid gate";
  Tensor x, gate;
  static constexpr auto fields() { return std::tuple(Field("x", &SigmoidMul::x), Field("gate", &SigmoidMul::gate)); }

  std::string problem() const { return x.columns == gate.columns ? "" : widths_of(x, gate); }
  int64_t piece() const { return kRowPiece; }
  void compute(const RowPiece& p) const {
    p.kernels.sigmoid_mul(row_of(gate, p.row) + p.begin, row_of(x, p.row) + p.begin, p.out + p.begin, p.count);
  }
};

// x * sigmoid(gate), or x * ln(1 + e^gate), each column of the gate for a run of columns of x.
struct GateRuns {
  static constexpr const char *kName = "gate_runs", *kPhase = "gate of runs";
  Tensor x, gate;
  bool softplus = false;
  static constexpr auto fields() {
    using Op = GateRuns;
    return std::tuple(Field("x", &Op::x), Field("gate", &Op::gate), DefaultedField("softplus", &Op::softplus));
  }

  std::string problem() const { return gate.columns >= 1 && x.columns % gate.columns == 0 ? "" : widths_of(x, gate); }
  int64_t piece() const { return x.columns / gate.columns; }
  void compute(const RowPiece& p) const {
    const float by = row_of(gate, p.row)[p.begin / p.count], *from = row_of(x, p.row) + p.begin;
    const float factor = softplus ? std::max(by, 0.0f) + std::log1p(std::exp(-std::abs(by))) : 1 / (1 + std::exp(-by));
    for (int64_t c = 0; c < p.count; ++c) p.out[p.begin + c] = from[c] * factor;
  }
};

// x + sigmoid(gate) * y, the gate being one number for each row.
struct AddGated {
  static constexpr const char *kName = "add_gated", *kPhase = "add_gated";
  Tensor x, y, gate;
  static constexpr auto fields() {
    using Op = AddGated;
    return std::tuple(Field("x", &Op::x), Field("y", &Op::y), Field("gate", &Op::gate));
  }

  std::string problem() const {
    if (x.columns == y.columns && gate.columns == 1) return "";
    return widths_of(x, y) + " with gates of " + std::to_string(gate.columns) + "; wanted equal ones and gates of 1";
  }
  void compute(const RowPiece& p) const {
    const float *to = row_of(x, p.row), *from = row_of(y, p.row);
    const float scale = 1.0f / (1.0f + std::exp(-row_of(gate, p.row)[0]));
    for (int64_t c = 0; c < p.count; ++c) p.out[c] = to[c] + scale * from[c];
  }
};

// x * sigmoid(the largest of a row of logits).
struct GateByLargest {
  static constexpr const char *kName = "gate_by_largest", *kPhase = "gate";
  Tensor x, logits;
  static constexpr auto fields() {
    return std::tuple(Field("x", &GateByLargest::x), Field("logits", &GateByLargest::logits));
  }

  std::string problem() const { return logits.columns >= 1 ? "" : "no logits"; }
  void compute(const RowPiece& p) const {
    const float *from = row_of(x, p.row), *by = row_of(logits, p.row);
    const float factor = 1 / (1 + std::exp(-*std::max_element(by, by + logits.columns)));
    for (int64_t c = 0; c < p.count; ++c) p.out[c] = from[c] * factor;
  }
};

// Each run of `width` columns of x plus the sum over those of y of (offset + weight) times the run: a row of weights
// has one for each pair, those of a run of x beside each other; without weights all are 0.
struct AddWeighted {
  static constexpr const char *kName = "add_weighted", *kPhase = "add weighted";
  Tensor x, y;
  std::optional<Tensor> weights;
  int64_t width = 1;
  float offset = 0;
  static constexpr auto fields() {
    using Op = AddWeighted;
    return std::tuple(Field("x", &Op::x), Field("y", &Op::y), Field("weights", &Op::weights),
                      Field("width", &Op::width), DefaultedField("offset", &Op::offset));
  }

  std::string problem() const {
    const bool fit = width >= 1 && x.columns % width == 0 && y.columns % width == 0;
    if (fit && (!weights || weights->columns == x.columns / width * (y.columns / width))) return "";
    return widths_of(x, y) + " with " + std::to_string(weights ? weights->columns : 0) +
           " weights; wanted one for each pair of runs of " + std::to_string(width);
  }
  void compute(const RowPiece& p) const {
    const int64_t runs = x.columns / width, added = y.columns / width;
    const float *to = row_of(x, p.row), *y_row = row_of(y, p.row), *by = weights ? row_of(*weights, p.row) : nullptr;
    for (int64_t run = 0; run < runs; ++run)
      p.kernels.add_weighted(to + run * width, y_row, added, by ? by + run * added : nullptr, offset,
                             p.out + run * width, width);
  }
};

// Each run of x as long as y, made as large as that: x * sqrt(mean(y^2) / max(mean(x^2), floor)).
struct MatchMagnitude {
  static constexpr const char *kName = "match_magnitude", *kPhase = "match magnitude";
  Tensor x, y;
  float floor = 0;
  static constexpr auto fields() {
    using Op = MatchMagnitude;
    return std::tuple(Field("x", &Op::x), Field("y", &Op::y), Field("floor", &Op::floor));
  }

  std::string problem() const {
    if (x.columns % y.columns == 0 && floor > 0) return "";
    return widths_of(x, y) + ", or a floor that is not above 0";
  }
  void compute(const RowPiece& p) const {
    const int64_t width = y.columns;
    const float *row = row_of(x, p.row), wanted = std::sqrt(mean_square_of(row_of(y, p.row), width));
    for (int64_t c = 0; c < p.count; c += width) {
      const float *from = row + c, there = std::max(mean_square_of(from, width), floor);
      const float factor = wanted / std::sqrt(there);
      for (int64_t i = 0; i < width; ++i) p.out[c + i] = from[i] * factor;
    }
  }
};

// max(x - mean - deviations * standard deviation, 0), of all columns of a row.
struct ReluAbove {
  static constexpr const char *kName = "relu_above", *kPhase = "relu above";
  Tensor x;
  float deviations = 0;
  static constexpr auto fields() {
    return std::tuple(Field("x", &ReluAbove::x), Field("deviations", &ReluAbove::deviations));
  }

  void compute(const RowPiece& p) const {
    const float *from = row_of(x, p.row), mean = mean_of(from, p.count);
    const float least = mean + deviations * std::sqrt(mean_square_of(from, p.count, mean));
    for (int64_t c = 0; c < p.count; ++c) p.out[c] = std::max(from[c] - least, 0.0f);
  }
};

// cap * tanh(x / cap).
struct SoftCap {
  static constexpr const char *kName = "soft_cap", *kPhase = "soft cap";
  Tensor x;
  float cap = 0;
  static constexpr auto fields() { return std::tuple(Field("x", &SoftCap::x), Field("cap", &SoftCap::cap)); }

  std::string problem() const {
    return cap > 0 ? "" : "values capped at " + std::to_string(cap) + "; wanted more than 0";
  }
  int64_t piece() const { return kRowPiece; }
  void compute(const RowPiece& p) const {
    p.kernels.soft_cap(row_of(x, p.row) + p.begin, cap, p.out + p.begin, p.count);
  }
};

// An RMS norm of what is left of the values of each group of columns without their mean. The group (0: as long as the
// weight) divides the weight's length.
struct LayerNorm {
  static constexpr const char *kName = "layer_norm", *kPhase = "norm";
  Tensor x;
  Vector weight;
  std::optional<Vector> bias;
  float eps = 0;
  int64_t group = 0;
  static constexpr auto fields() {
    using Op = LayerNorm;
    return std::tuple(Field("x", &Op::x), Field("weight", &Op::weight), Field("bias", &Op::bias),
                      Field("eps", &Op::eps), DefaultedField("group", &Op::group));
  }

  int64_t width() const { return group ? group : weight.columns(); }
  std::string problem() const {
    if (x.columns % weight.columns() || (bias && bias->columns() != weight.columns())) {
      return "a weight of " + std::to_string(weight.columns()) + " for rows of " + std::to_string(x.columns) +
             "; wanted parameters of one length that divides them";
    }
    if (width() >= 1 && weight.columns() % width() == 0) return "";
    return "a mean over " + std::to_string(width()) + " columns; wanted a divisor of the weight's " +
           std::to_string(weight.columns());
  }
  void compute(const RowPiece& p) const {
    const float *row = row_of(x, p.row), *by = weight.data(), *plus = bias ? bias->data() : nullptr;
    const int64_t columns = weight.columns(), width = this->width();
    for (int64_t c = 0; c < p.count; c += width) {
      const float *from = row + c, mean = mean_of(from, width);
      const int64_t at = c % columns;
      float* to = p.out + c;
      for (int64_t i = 0; i < width; ++i) to[i] = from[i] - mean;
      p.kernels.rms_norm(to, by + at, to, width, eps);
      for (int64_t i = 0; plus && i < width; ++i) to[i] += plus[at + i];
    }
  }
};

// x / sqrt(mean(x^2) + eps) over each of so many groups of columns, times a weight for each column of a row.
struct GroupedNorm {
  static constexpr const char *kName = "rms_norm_grouped", *kPhase = "grouped norm";
  Tensor x;
  Vector weight;
  int64_t groups = 1;
  float eps = 0;
  static constexpr auto fields() {
    using Op = GroupedNorm;
    return std::tuple(Field("x", &Op::x), Field("weight", &Op::weight), Field("groups", &Op::groups),
                      Field("eps", &Op::eps));
  }

  std::string problem() const {
    if (weight.columns() == x.columns && groups >= 1 && x.columns % groups == 0) return "";
    return "a weight of " + std::to_string(weight.columns()) + " and " + std::to_string(groups) +
           " groups for rows of " + std::to_string(x.columns);
  }
  int64_t piece() const { return x.columns / groups; }
  void compute(const RowPiece& p) const {
    p.kernels.rms_norm(row_of(x, p.row) + p.begin, weight.data() + p.begin, p.out + p.begin, p.count, eps);
  }
};

// rms_norm(x) * silu(gate) for each run of columns as long as the weight.
struct GatedNorm {
  static constexpr const char *kName = "norm_gated", *kPhase = "gated norm";
  Tensor x;
  Vector weight;
  Tensor gate;
  float eps = 0;
  static constexpr auto fields() {
    using Op = GatedNorm;
    return std::tuple(Field("x", &Op::x), Field("weight", &Op::weight), Field("gate", &Op::gate),
                      Field("eps", &Op::eps));
  }

  std::string problem() const {
    if (x.columns % weight.columns() == 0 && gate.columns == x.columns) return "";
    return "a weight of " + std::to_string(weight.columns()) + " and a gate of " + std::to_string(gate.columns) +
           " for rows of " + std::to_string(x.columns);
  }
  int64_t piece() const { return weight.columns(); }
  void compute(const RowPiece& p) const {
    float* const to = p.out + p.begin;
    p.kernels.rms_norm(row_of(x, p.row) + p.begin, weight.data(), to, p.count, eps);
    p.kernels.gate(Activation::silu)(row_of(gate, p.row) + p.begin, to, to, p.count);
  }
};

// The parts of each group of columns beside the same parts of the other groups.
struct Regroup {
  static constexpr const char *kName = "regroup", *kPhase = "regroup";
  Tensor x;
  std::vector<int64_t> widths;
  static constexpr auto fields() { return std::tuple(Field("x", &Regroup::x), Field("widths", &Regroup::widths)); }

  std::string problem() const {
    for (const int64_t width : widths)
      if (width < 1 || width > x.columns) return "a part of " + std::to_string(width) + " columns";
    if (!widths.empty() && x.columns % piece() == 0) return "";
    return "groups of " + std::to_string(piece()) + " columns in rows of " + std::to_string(x.columns);
  }
  int64_t piece() const {
    int64_t group = 0;
    for (const int64_t width : widths) group += width;
    return group;
  }
  void compute(const RowPiece& p) const {
    const int64_t groups = x.columns / p.count, at = p.begin / p.count;
    const float* part = row_of(x, p.row) + p.begin;
    float* parts = p.out;
    for (const int64_t width : widths) {
      std::memcpy(parts + at * width, part, static_cast<size_t>(width) * sizeof(float));
      part += width, parts += groups * width;
    }
  }
};

// The columns of each head of x, then those of the head of y.
struct JoinHeads {
  static constexpr const char *kName = "join_heads", *kPhase = "join heads";
  Tensor x, y;
  int heads = 1;
  static constexpr auto fields() {
    using Op = JoinHeads;
    return std::tuple(Field("x", &Op::x), Field("y", &Op::y), Field("heads", &Op::heads));
  }

  std::string problem() const {
    if (heads >= 1 && x.columns % heads == 0 && y.columns % heads == 0) return "";
    return widths_of(x, y) + " for " + std::to_string(heads) + " heads";
  }
  int64_t columns() const { return x.columns + y.columns; }
  void compute(const RowPiece& p) const {
    const int64_t first = x.columns / heads, second = y.columns / heads;
    const float *left = row_of(x, p.row), *right = row_of(y, p.row);
    float* at = p.out;
    for (int64_t h = 0; h < heads; ++h, at += first + second) {
      std::memcpy(at, left + h * first, static_cast<size_t>(first) * sizeof(float));
      std::memcpy(at + first, right + h * second, static_cast<size_t>(second) * sizeof(float));
    }
  }
};

// X(operation), of each that is recorded and bound.
#define HOMENODE_ROW_OPERATIONS(X) \
  X(Clamp) \
  X(Scale) \
  X(ScaleByPosition) \
  X(Multiply) \
  X(SigmoidMul) \
  X(GateRuns) \
  X(AddGated) \
  X(GateByLargest) \
  X(AddWeighted) \
  X(MatchMagnitude) \
  X(ReluAbove) \
  X(SoftCap) \
  X(LayerNorm) \
  X(GroupedNorm) \
  X(GatedNorm) \
  X(Regroup) \
  X(JoinHeads) \
  X(IdentityWeight) \
  X(StreamWeights)

}  // namespace homenode
