#include <string>
#include <utility>

#include "operations/delta.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

namespace {

// The values of vectors beside each other.
Result<std::vector<float>> joined(const std::vector<Tensor>& vectors, const char* operation) {
  std::vector<float> values;
  for (const Tensor& vector : vectors) {
    if (!vector.value || vector.rows != RowKind::fixed || vector.fixed_rows != 1)
      return misuse(std::string(operation) + ": weights that are no parameter vectors");
    const float* row = View(vector).row(0);
    values.insert(values.end(), row, row + vector.columns);
  }
  return values;
}

// [channels, width] as [width, channels].
std::vector<float> by_tap(const std::vector<float>& weights, size_t width) {
  const size_t channels = weights.size() / width;
  std::vector<float> turned(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) turned[i % width * channels + i / width] = weights[i];
  return turned;
}

}  // namespace

std::optional<Error> Recorder::check_state(const StateMemory* memory, int layer, const char* operation) {
  if (!memory || layer < 0 || layer >= static_cast<int>(memory->layers().size()))
    return misuse(std::string(operation) + ": no layer " + to_string(layer) + " of the state memory");
  StepBounds& bounds = program_->bounds_;
  if (bounds.state_slots && bounds.state_slots != memory->slots())
    return misuse(std::string(operation) + ": state memories with different slots in one program");
  bounds.state_slots = memory->slots();
  return {};
}

Result<Tensor> Recorder::short_convolution(const Tensor& x, const std::vector<Tensor>& weights,
                                           const std::vector<Tensor>& biases, std::shared_ptr<StateMemory> memory,
                                           int layer, bool silu) {
  const char* const name = "short_convolution";
  if (auto error = check_input(x, name)) return *error;
  if (auto error = check_state(memory.get(), layer, name)) return *error;
  const StateShape& shape = memory->layers()[static_cast<size_t>(layer)];
  auto values = joined(weights, name), added = joined(biases, name);
  if (!values) return values.error();
  if (!added) return added.error();
  const auto channels = static_cast<size_t>(x.columns), width = static_cast<size_t>(shape.taps) + 1;
  if (x.rows != RowKind::tokens || shape.channels != x.columns || values.value().size() != channels * width ||
      (!added.value().empty() && added.value().size() != channels)) {
    return misuse("short_convolution: rows of " + to_string(x.columns) + ", " + to_string(values.value().size()) +
                  " weights and " + to_string(added.value().size()) + " biases with a state of " +
                  to_string(shape.channels) + " channels and " + to_string(shape.taps) + " taps");
  }
  const Tensor out = make(x.columns, RowKind::tokens);
  return append(std::make_unique<ConvolutionOperation>(x, by_tap(values.value(), width), std::move(added.value()), silu,
                                                       std::move(memory), layer, out),
                out, {{x}});
}

Result<Tensor> Recorder::delta_rule(const Tensor& qkv, const Tensor& beta, const Tensor& decay,
                                    const Tensor& decay_weight, const Tensor& decay_bias,
                                    std::shared_ptr<StateMemory> memory, const DeltaParams& params) {
  const char* const name = "delta_rule";
  for (const Tensor* t : {&qkv, &beta, &decay}) {
    if (auto error = check_input(*t, name)) return *error;
    if (t->rows != RowKind::tokens) return misuse("delta_rule: rows that are not the step's tokens");
  }
  if (auto error = check_state(memory.get(), params.layer, name)) return *error;
  const StateShape& shape = memory->layers()[static_cast<size_t>(params.layer)];
  const bool by_row = decay.columns == shape.heads * shape.key_width;
  for (const auto& [t, count] : {std::pair(&decay_weight, shape.heads),
                                 std::pair(&decay_bias, by_row ? shape.heads * shape.key_width : shape.heads)}) {
    if (!t->value || t->rows != RowKind::fixed || t->fixed_rows != 1 || t->columns != count)
      return misuse("delta_rule: parameters that are not a number for each of " + to_string(shape.heads) +
                    " heads, or of each decay");
  }
  const int64_t keys = params.key_heads;
  if (keys < 1 || !shape.heads || shape.heads % keys || beta.columns != shape.heads ||
      (decay.columns != shape.heads && !by_row) ||
      qkv.columns != 2 * keys * shape.key_width + shape.heads * shape.value_width) {
    return misuse("delta_rule: " + to_string(keys) + " key heads, rows of " + to_string(qkv.columns) + ", " +
                  to_string(beta.columns) + " and " + to_string(decay.columns) + " with a state of " +
                  to_string(shape.heads) + " heads of " + to_string(shape.key_width) + " x " +
                  to_string(shape.value_width));
  }
  const Tensor out = make(shape.heads * shape.value_width, RowKind::tokens);
  return append(
      std::make_unique<DeltaOperation>(qkv, beta, decay, decay_weight, decay_bias, params, std::move(memory), out), out,
      {{qkv, beta, decay}});
}

}  // namespace homenode
