// Which experts a token has, and what their results are multiplied with.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/kernels.h"
#include "moe/moe.h"

namespace homenode {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The best of some experts by their values, in descending order: of equal values the one that was added first. What is
// not a number comes after those added before it.
class Best {
 public:
  Best(int32_t* experts, float* values, int most) : experts_(experts), values_(values), most_(most) {}
  void add(int32_t expert, float value) {
    int place = found_ < most_ ? found_++ : most_;
    for (; place > 0 && value > values_[place - 1]; --place) {
      if (place == most_) continue;  // the smallest gives way
      values_[place] = values_[place - 1];
      experts_[place] = experts_[place - 1];
    }
    if (place == most_) return;
    values_[place] = value;
    experts_[place] = expert;
  }

 private:
  int32_t* experts_;
  float* values_;
  int most_, found_ = 0;
};

// The best value of a group, or the sum of its best two.
float group_value(const float* values, int count, bool best_two) {
  float first = kLowest, second = kLowest;
  for (int i = 0; i < count; ++i) {
    if (values[i] > first) second = first, first = values[i];
    else if (values[i] > second) second = values[i];
  }
  return best_two && count > 1 ? first + second : first;
}

// Is a group among those that are chosen? Of equal ones the first is better.
bool keeps_group(const float* of_groups, int group, const Routing& how) {
  int better = 0;
  for (int g = 0; g < how.groups; ++g)
    better += of_groups[g] > of_groups[group] || (of_groups[g] == of_groups[group] && g < group);
  return better < how.groups_chosen;
}

void add_all(Best& best, const float* values, int experts, const Routing& how, float* of_groups) {
  const int length = experts / how.groups;
  for (int g = 0; how.groups > 1 && g < how.groups; ++g)
    of_groups[g] = group_value(values + g * length, length, how.best_two);
  for (int g = 0; g < how.groups; ++g) {
    if (how.groups > 1 && !keeps_group(of_groups, g, how)) continue;
    for (int e = g * length; e < (g + 1) * length; ++e) best.add(e, values[e]);
  }
}

void find_scores(const float* logits, int experts, ExpertScore score, float* scores) {
  const Kernels& level = kernels(current_level());
  if (score == ExpertScore::sigmoid) {
    level.exponentials(logits, scores, experts, 0, -1);
    for (int e = 0; e < experts; ++e) scores[e] = logits[e] == kLowest ? 0 : 1 / (1 + scores[e]);
    return;
  }
  if (score == ExpertScore::sqrt_softplus) {
    for (int e = 0; e < experts; ++e)
      scores[e] = std::sqrt(std::max(logits[e], 0.0f) + std::log1p(std::exp(-std::abs(logits[e]))));
    return;
  }
  const float largest = *std::max_element(logits, logits + experts);
  const double total = level.sum_exponentials(logits, experts, largest, 1);
  level.exponentials(logits, scores, experts, largest, 1);
  for (int e = 0; e < experts; ++e) scores[e] = static_cast<float>(scores[e] / total);
}

// Logits of the chosen ones become their softmax, over all or over the chosen ones.
void apply_softmax(const float* logits, int experts, const Routing& how, float* weights) {
  const Kernels& level = kernels(current_level());
  const float largest = how.by_logits() ? weights[0] : *std::max_element(weights, weights + how.chosen);
  level.exponentials(weights, weights, how.chosen, largest, 1);
  const bool over_chosen = how.normalise || how.score == ExpertScore::chosen_softmax,
             over_all = !over_chosen || (how.epsilon != 0 && how.score == ExpertScore::softmax);
  const double all = over_all ? level.sum_exponentials(logits, experts, largest, 1) : 0;
  double total = over_chosen ? how.epsilon * all : all;
  for (int i = 0; over_chosen && i < how.chosen; ++i) total += weights[i];
  for (int i = 0; i < how.chosen; ++i) weights[i] = static_cast<float>(weights[i] / total);
}

// Logits of the chosen ones, descending, become for each the share it has of those near it that come after it.
void apply_softmax_of_near(const float* logits, int experts, const Routing& how, const int32_t* indices,
                           float* weights) {
  for (int i = 0; i < how.chosen; ++i) {
    const float best = weights[i];
    double total = 0;
    for (int e = 0; e < experts; ++e) {
      const bool far = best - logits[e] > 2 * how.jitter * std::max(std::abs(logits[e]), best);
      if (!far && std::find(indices, indices + i, e) == indices + i) total += std::exp(logits[e] - best);
    }
    weights[i] = static_cast<float>(1 / total);
  }
}

// Whether `told` are experts; indices are in any case.
bool take_told(const float* told, int experts, int count, int32_t* indices) {
  bool right = true;
  for (int i = 0; i < count; ++i) {
    const bool known = told[i] >= 0 && told[i] < static_cast<float>(experts) && told[i] == std::floor(told[i]);
    indices[i] = known ? static_cast<int32_t>(told[i]) : 0;
    right = right && known;
  }
  return right;
}

}  // namespace

void choose_experts(const float* logits, int experts, const Routing& how, int32_t* indices, float* weights,
                    float* scratch, const float* told) {
  float *of_groups = scratch, *scores = scratch + how.groups, *biased = scores + experts;
  const bool sparse = how.score == ExpertScore::sparsemixer;
  const bool of_logits = how.by_logits() || how.score == ExpertScore::chosen_softmax || sparse;
  if (!of_logits) find_scores(logits, experts, how.score, scores);
  const float *all = of_logits ? logits : scores, *by = all;
  if (how.bias) {
    for (int e = 0; e < experts; ++e) biased[e] = all[e] + how.bias[e];
    by = biased;
  }
  bool right = true;
  if (told) {
    right = take_told(told, experts, how.chosen, indices);
  } else {
    Best best(indices, weights, how.chosen);
    add_all(best, by, experts, how, of_groups);
  }
  for (int i = 0; i < how.chosen; ++i) weights[i] = all[indices[i]];
  if (sparse) {
    apply_softmax_of_near(logits, experts, how, indices, weights);
  } else if (of_logits) {
    apply_softmax(logits, experts, how, weights);
  } else if (how.normalise) {
    double total = how.epsilon;
    for (int i = 0; i < how.chosen; ++i) total += weights[i];
    for (int i = 0; i < how.chosen; ++i) weights[i] = static_cast<float>(weights[i] / total);
  }
  for (int i = 0; i < how.chosen; ++i) weights[i] *= how.scales ? how.scale * how.scales[indices[i]] : how.scale;
  if (!right) std::fill_n(weights, how.chosen, std::numeric_limits<float>::quiet_NaN());
}

std::optional<Error> check_routing(const Routing& how, int experts) {
  using std::to_string;
  if (how.chosen < 1 || how.chosen > experts) {
    return Error{Fault::user, 0,
                 "moe: " + to_string(how.chosen) + " experts of " + to_string(experts) + " for each token"};
  }
  if (how.groups < 1 || experts % how.groups || how.groups_chosen < 1 || how.groups_chosen > how.groups ||
      how.chosen > experts / how.groups * how.groups_chosen) {
    return Error{Fault::user, 0,
                 "moe: " + to_string(how.chosen) + " experts from " + to_string(how.groups_chosen) + " of " +
                     to_string(how.groups) + " groups of " + to_string(experts) +
                     " experts; wanted groups of equal length with enough of them"};
  }
  return std::nullopt;
}

}  // namespace homenode
