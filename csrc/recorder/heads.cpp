#include <string>

#include "operations/heads.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

Result<Tensor> Recorder::linear_heads(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights) {
  if (auto error = check_input(x, "linear_heads")) return *error;
  if (weights.empty()) return misuse("linear_heads: no weights");
  const Weight& one = *weights[0];
  for (const auto& weight : weights) {
    if (weight->rows != one.rows || weight->columns != one.columns || weight->format != one.format)
      return misuse("linear_heads: weights that are not all of one shape and format");
  }
  const auto heads = static_cast<int64_t>(weights.size());
  if (x.columns != heads * one.columns) {
    return misuse("linear_heads: " + to_string(heads) + " weights of " + to_string(one.columns) +
                  " columns for rows of " + to_string(x.columns));
  }
  const Tensor out = make(heads * one.rows, rows_made_of(x));
  return append(std::make_unique<LinearHeadsOperation>(x, std::move(weights), out), out, {{x}});
}

}  // namespace homenode
