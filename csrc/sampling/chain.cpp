// Samplers that look at the probabilities of what others left: locally typical sampling (Meister and others, 2022,
// "Locally Typical Sampling"), a bound on the surprise (of which Mirostat makes use: Basu and others, 2020), exclusion
// of top choices, and a temperature that follows the entropy.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "sampling/sampling.h"

namespace homenode {
namespace {

double sum_of(std::span<const float> weights) {
  double sum = 0;
  for (const float weight : weights) sum += weight;
  return sum;
}

// Drops what comes after the shortest beginning of `order` that holds `share` of `sum`; at least one stays.
void keep_beginning(std::span<const int32_t> order, double share, double sum, std::span<float> weights) {
  double reached = 0;
  bool whole = false;
  for (const int32_t i : order) {
    float& weight = weights[static_cast<size_t>(i)];
    if (whole) weight = 0;
    reached += weight;
    whole = whole || reached >= share * sum;
  }
}

// The places of `weights` in `order`, by `before`, and among equals the likely before others, lower tokens first.
template <class F>
void sort_order(std::span<const float> weights, std::vector<int32_t>& order, F&& before) {
  order.resize(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto x = static_cast<size_t>(a), y = static_cast<size_t>(b);
    if (const double left = before(x), right = before(y); left != right) return left < right;
    if (weights[x] != weights[y]) return weights[x] > weights[y];
    return a < b;
  });
}

void keep_typical(float typical_p, std::span<float> weights, SamplingScratch& s) {
  const double sum = sum_of(weights);
  const auto surprise = [&](float weight) {
    return -std::log(std::max(static_cast<double>(weight) / sum, std::numeric_limits<double>::min()));
  };
  double entropy = 0;
  for (const float weight : weights) entropy += weight / sum * surprise(weight);
  s.sums.clear();
  for (const float weight : weights) s.sums.push_back(std::abs(surprise(weight) - entropy));
  sort_order(weights, s.order, [&](size_t i) { return s.sums[i]; });
  keep_beginning(s.order, typical_p, sum, weights);
}

void keep_top_p(float top_p, std::span<float> weights, SamplingScratch& s) {
  sort_order(weights, s.order, [](size_t) { return 0.0; });
  keep_beginning(s.order, top_p, sum_of(weights), weights);
}

// Drops all that weigh less than `least` but the heaviest, of which the first stays among equals.
void keep_from(double least, std::span<float> weights) {
  const auto heaviest = std::max_element(weights.begin(), weights.end());
  for (auto weight = weights.begin(); weight != weights.end(); ++weight) {
    if (*weight < least && weight != heaviest) *weight = 0;
  }
}

// Of those that weigh at least `least`, all but the lightest go, the last among equals.
void drop_top_choices(double least, std::span<float> weights) {
  float* lightest = nullptr;
  size_t count = 0;
  for (float& weight : weights) {
    if (weight == 0 || weight < least) continue;
    ++count;
    if (lightest == nullptr || weight <= *lightest) lightest = &weight;
  }
  if (count < 2) return;
  for (float& weight : weights) {
    if (weight >= least && &weight != lightest) weight = 0;
  }
}

}  // namespace

void keep_chain(std::span<float> weights, const RowSampling& how, SamplingScratch& s) {
  if (how.typical_p < 1) keep_typical(how.typical_p, weights, s);
  if (how.top_p < 1) keep_top_p(how.top_p, weights, s);
  if (how.min_p > 0)
    keep_from(how.min_p * static_cast<double>(*std::max_element(weights.begin(), weights.end())), weights);
  if (how.max_surprise > 0) keep_from(sum_of(weights) * std::exp2(-static_cast<double>(how.max_surprise)), weights);
  constexpr uint64_t kOfXtc = 0x5ca1ab1e0ddba11u;  // the draw of whether it takes part is not that of the token
  if (how.xtc_probability > uniform(how.seed ^ kOfXtc, how.counter))
    drop_top_choices(how.xtc_threshold * sum_of(weights), weights);
}

float dynamic_temperature(std::span<const float> row, float largest, const RowSampling& how, SamplingScratch& s,
                          const Kernels& kernels) {
  const auto forbidden = [](float x) { return x == -std::numeric_limits<float>::infinity(); };
  const auto left = row.size() - static_cast<size_t>(std::count_if(row.begin(), row.end(), forbidden));
  if (left < 2) return how.temperature;
  kernels.exponentials(row.data(), s.weights.data(), static_cast<int64_t>(row.size()), largest, 1.0f);
  double sum = 0, moment = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (s.weights[i] == 0) continue;
    sum += s.weights[i];
    moment += static_cast<double>(s.weights[i]) * (static_cast<double>(row[i]) - largest);
  }
  const double entropy = (std::log(sum) - moment / sum) / std::log(static_cast<double>(left));
  const double least = std::max(0.0, static_cast<double>(how.temperature) - how.dynatemp_range);
  const double most = static_cast<double>(how.temperature) + how.dynatemp_range;
  const double place = std::pow(std::clamp(entropy, 0.0, 1.0), static_cast<double>(how.dynatemp_exponent));
  return std::max(kGreedyBelow, static_cast<float>(least + (most - least) * place));
}

}  // namespace homenode
