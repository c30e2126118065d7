#include <string>

#include "operations/moe.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

namespace {

std::optional<Error> check_moe(const Tensor& x, const Tensor& logits, const Experts& experts, const Routing& routing,
                               const Tensor* residual) {
  if (auto error = check_experts(experts)) return error;
  for (const Tensor* t : {&x, &logits, residual}) {
    if (t && rows_made_of(*t) != rows_made_of(x)) return misuse("moe: some rows are selected, others are not");
  }
  if (x.columns != experts.columns() || (residual && residual->columns != experts.columns()) ||
      logits.columns != experts.total()) {
    return misuse("moe: rows of " + to_string(x.columns) + (residual ? " and " + to_string(residual->columns) : "") +
                  " columns, with " + to_string(logits.columns) + " logits, for " + to_string(experts.total()) +
                  " experts of " + to_string(experts.columns()) + " columns");
  }
  return check_routing(routing, experts.total());
}

std::optional<Error> check_parameter(const Tensor& parameter, const char* what, int64_t wanted) {
  if (parameter.rows == RowKind::fixed && parameter.fixed_rows == 1 && parameter.columns == wanted) return {};
  return misuse(std::string("moe: ") + what + " of " + to_string(parameter.columns) + "; wanted a parameter of " +
                to_string(wanted));
}

// Where the biases of the experts are; none where there are none.
Result<std::vector<const float*>> pointers_to(const std::vector<Tensor>& biases, size_t experts, int64_t length) {
  if (!biases.empty() && biases.size() != experts)
    return misuse("moe: " + to_string(biases.size()) + " biases for " + to_string(experts) + " experts");
  std::vector<const float*> pointers;
  for (const Tensor& bias : biases) {
    if (auto error = check_parameter(bias, "a bias", length)) return *error;
    pointers.push_back(View(bias).row(0));
  }
  return pointers;
}

std::optional<Error> add_biases(const ExpertWeights& weights, Experts& experts) {
  const struct {
    const std::vector<Tensor>& from;
    std::vector<const float*>& to;
    int64_t length;
  } kinds[] = {{weights.gate_bias, experts.gate_bias, experts.inner()},
               {weights.up_bias, experts.up_bias, experts.inner()},
               {weights.down_bias, experts.down_bias, experts.columns()}};
  for (const auto& kind : kinds) {
    auto pointers = pointers_to(kind.from, experts.gate.size(), kind.length);
    if (!pointers) return pointers.error();
    kind.to = std::move(pointers.value());
  }
  return {};
}

// Where each of `total` experts is in a list of those that `ids` names.
Result<std::vector<int32_t>> places_of(const std::vector<int32_t>& ids, int64_t total, size_t matrices) {
  if (ids.size() != matrices)
    return misuse("moe: " + to_string(ids.size()) + " ids for the matrices of " + to_string(matrices) + " experts");
  std::vector<int32_t> places(static_cast<size_t>(total), static_cast<int32_t>(matrices));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= total || (i && ids[i] <= ids[i - 1]))
      return misuse("moe: id " + to_string(ids[i]) + " of " + to_string(total) + " experts; wanted them ascending");
    places[static_cast<size_t>(ids[i])] = static_cast<int32_t>(i);
  }
  return places;
}

std::vector<const Weight*> pointers_to(const std::vector<std::shared_ptr<const Weight>>& weights) {
  std::vector<const Weight*> pointers;
  for (const auto& weight : weights) pointers.push_back(weight.get());
  return pointers;
}

}  // namespace

Result<Tensor> Recorder::moe(const Tensor& x, const Tensor& logits, ExpertWeights weights, Routing routing,
                             const Tensor* residual, const Tensor* choice_bias, const Tensor* chosen) {
  std::vector<Tensor> inputs{x, logits};
  for (const Tensor* t : {residual, chosen}) {
    if (t) inputs.push_back(*t);
  }
  for (const Tensor& t : inputs) {
    if (auto error = check_input(t, "moe")) return *error;
  }
  Experts experts{pointers_to(weights.gate), pointers_to(weights.up), pointers_to(weights.down), {}};
  experts.activation = weights.activation;
  if (weights.gate.empty()) {
    if (!is_plain(weights.activation) || !weights.gate_bias.empty())
      return misuse("moe: experts without a gate, which the activation or a bias is of");
    experts.gate = experts.up, experts.gated = false;
    std::swap(weights.gate_bias, weights.up_bias);
  }
  if (!weights.ids.empty()) {
    auto places = places_of(weights.ids, logits.columns, weights.up.size());
    if (!places) return places.error();
    experts.here = std::move(places.value());
  }
  if (choice_bias) {
    if (auto error = check_parameter(*choice_bias, "choice biases", logits.columns)) return *error;
    routing.bias = View(*choice_bias).row(0);
  }
  if (weights.scales.value) {
    if (auto error = check_parameter(weights.scales, "factors", logits.columns)) return *error;
    routing.scales = View(weights.scales).row(0);
  }
  if (auto error = check_moe(x, logits, experts, routing, residual)) return *error;
  const bool scored = routing.score == ExpertScore::sigmoid || routing.score == ExpertScore::sqrt_softplus;
  if (chosen && (chosen->columns != routing.chosen || rows_made_of(*chosen) != rows_made_of(x) || !scored)) {
    return misuse("moe: " + to_string(chosen->columns) + " experts told for " + to_string(routing.chosen) +
                  " of each token, whose scores are to be their own");
  }
  if (auto error = add_biases(weights, experts)) return *error;
  const int64_t most = most_rows(rows_made_of(x), program_->bounds_.limits);
  if (most * routing.chosen > INT32_MAX)
    return misuse("moe: " + to_string(most) + " tokens with " + to_string(routing.chosen) +
                  " experts each are too many");
  const Tensor out = make(x.columns, rows_made_of(x));
  MoeOperation::Inputs from{x, logits, residual ? *residual : Tensor{}, choice_bias ? *choice_bias : Tensor{},
                            chosen ? *chosen : Tensor{}};
  return append(std::make_unique<MoeOperation>(std::move(from), std::move(weights), std::move(experts), routing, out),
                out, inputs);
}

}  // namespace homenode
