#include <string>

#include "operations/indexed.h"
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

Tensor Recorder::adapter_index() {
  const Tensor out = make(1, RowKind::tokens);
  return append(std::make_unique<AdapterIndexOperation>(out), out, {});
}

std::optional<Error> Recorder::check_indexed(const Tensor& x, const std::vector<std::shared_ptr<const Weight>>& weights,
                                             const Tensor& index) {
  for (const Tensor* t : {&x, &index}) {
    if (auto error = check_input(*t, "linear_indexed")) return error;
  }
  if (index.columns != 1 || (rows_made_of(index) == RowKind::sampled && rows_made_of(x) != RowKind::sampled))
    return misuse("linear_indexed: an index of " + to_string(index.columns) +
                  " columns, or of selected rows for those that are not; wanted a number of each row");
  const Weight* one = nullptr;
  for (const auto& weight : weights) {
    if (!weight) continue;
    one = one ? one : weight.get();
    if (weight->rows != one->rows || weight->columns != one->columns || weight->format != one->format)
      return misuse("linear_indexed: weights that are not all of one shape and format");
  }
  if (!one) return misuse("linear_indexed: no weights");
  if (one->columns != x.columns)
    return misuse("linear_indexed: weights of " + to_string(one->columns) + " columns for rows of " +
                  to_string(x.columns));
  return {};
}

Result<Tensor> Recorder::linear_indexed(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights,
                                        const Tensor& index, const Tensor* residual, int64_t first) {
  if (auto error = check_indexed(x, weights, index)) return *error;
  const RowKind kind = rows_made_of(x);
  int64_t columns = 0;
  for (const auto& weight : weights) columns = weight ? weight->rows : columns;
  if (!residual) {
    if (first) return misuse("linear_indexed: a first column, and no residual");
    const Tensor out = make(columns, kind);
    return append(std::make_unique<LinearIndexedOperation>(x, std::move(weights), index, out, false), out,
                  {{x, index}});
  }
  if (auto error = check_input(*residual, "linear_indexed")) return *error;
  if (residual->rows != kind || first < 0 || columns > residual->columns || first > residual->columns - columns)
    return misuse("linear_indexed: " + to_string(columns) + " columns from " + to_string(first) + " on of rows of " +
                  to_string(residual->columns) + ", or some selected and others not");
  if (residual->value->uses || residual->value == x.value || residual->value == index.value)
    return misuse("linear_indexed: a residual that something else reads already");
  Tensor part = *residual;
  part.begin += first, part.columns = columns;
  // No use of what it is added to, whose readers are those of the sum: nobody takes over what made it, as this did.
  return append(std::make_unique<LinearIndexedOperation>(x, std::move(weights), index, part, true), *residual,
                {{x, index}});
}

}  // namespace homenode
