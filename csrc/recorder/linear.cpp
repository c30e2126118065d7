#include <string>

#include "operations/linear.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

std::optional<Error> Recorder::check_linear(const Tensor& x, const std::vector<std::shared_ptr<const Weight>>& weights,
                                            const std::vector<Tensor>& biases) {
  if (auto error = check_input(x, "linear")) return error;
  if (weights.empty()) return misuse("linear: no weights");
  if (!biases.empty() && biases.size() != weights.size()) {
    return misuse("linear: " + to_string(biases.size()) + " biases for " + to_string(weights.size()) + " weights");
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& w = *weights[i];
    if (w.columns != x.columns)
      return misuse("linear: a weight of " + to_string(w.columns) + " columns for rows of " + to_string(x.columns));
    const Tensor* bias = biases.empty() || !biases[i].value ? nullptr : &biases[i];
    if (bias && (bias->rows != RowKind::fixed || bias->fixed_rows != 1 || bias->columns != w.rows)) {
      return misuse("linear: a bias of " + to_string(bias->columns) + " for a weight of " + to_string(w.rows) +
                    " rows; wanted a parameter of that length");
    }
  }
  return {};
}

Result<Tensor> Recorder::linear(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights,
                                const std::vector<Tensor>& biases, const Tensor* residual, Precision precision) {
  if (auto error = check_linear(x, weights, biases)) return *error;
  int64_t columns = 0;
  for (const auto& weight : weights) columns += weight->rows;
  const RowKind kind = rows_made_of(x);
  std::vector<Tensor> inputs{x};
  if (residual) {
    if (auto error = check_input(*residual, "linear")) return *error;
    if (residual->columns != columns || rows_made_of(*residual) != kind) {
      return misuse("linear: a residual of " + to_string(residual->columns) + " columns for " + to_string(columns) +
                    " outputs, or of other rows");
    }
    inputs.push_back(*residual);
  }
  const Tensor out = make(columns, kind);
  return append(std::make_unique<LinearOperation>(x, std::move(weights), biases, residual, out, precision), out,
                inputs);
}

}  // namespace homenode
