#include <algorithm>
#include <limits>

#include "kernels/sampling.h"

namespace homenode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool better(const TokenValue& a, const TokenValue& b) { return a.value > b.value || (a.value == b.value && a.token < b.token); }

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool penalised(const RowSampling& how) {
  return how.repetition_penalty != 1 || how.frequency_penalty != 0 || how.presence_penalty != 0;
}

void edit(std::vector<float>& row, const RowSampling& how) {
  for (size_t i = 0; i < how.bias_token.size(); ++i) row[static_cast<size_t>(how.bias_token[i])] += how.bias_value[i];
  if (!penalised(how)) return;
  for (size_t i = 0; i < how.seen_token.size(); ++i) {
    float& x = row[static_cast<size_t>(how.seen_token[i])];
    const auto count = static_cast<float>(how.seen_count[i]);
    if (how.repetition_penalty != 1) x = x > 0 ? x / how.repetition_penalty : x * how.repetition_penalty;
    x -= how.frequency_penalty * count;
    if (how.seen_count[i] > 0) x -= how.presence_penalty;
  }
}

// The best `k` by a heap whose top is the worst kept: most values fall to one comparison.
void select_by_heap(const float* values, int64_t count, size_t k, std::vector<TokenValue>& best) {
  for (int64_t i = 0; i < count; ++i) {
    if (best.size() == k && !(values[i] > best.front().value)) continue;  // an equal value with a higher token is worse
    if (best.size() == k) {
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
    best.push_back({values[i], static_cast<int32_t>(i)});
    std::push_heap(best.begin(), best.end(), better);
  }
  std::sort_heap(best.begin(), best.end(), better);
}

// Sorts as much of the front as holds `share` of the total weight, and cuts the rest off. `weight` maps a candidate to its weight.
template <class Weight>
void keep_share(std::vector<TokenValue>& candidates, double share, const Weight& weight) {
  double kept = 0;
  size_t sorted = 0;
  for (size_t piece = 64; sorted < candidates.size(); piece *= 4) {
    const size_t end = std::min(candidates.size(), sorted + piece);
    const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(sorted), middle = candidates.begin() + static_cast<std::ptrdiff_t>(end);
    std::partial_sort(begin, middle, candidates.end(), better);
    for (; sorted < end; ++sorted) {
      kept += weight(candidates[sorted]);
      if (kept >= share) return candidates.resize(sorted + 1);
    }
  }
}

struct Distribution {
  const float* values;
  int64_t count;
  float largest, factor;
};

void compute_weights(const Distribution& d, std::vector<float>& weights, const Kernels& kernels) {
  kernels.exponentials(d.values, weights.data(), d.count, d.largest, d.factor);
}

double total(const float* weights, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += weights[i];
  return sum;
}

// Where u falls on the line of weights laid end to end.
size_t pick(const float* weights, size_t count, double u) {
  const double target = u * total(weights, count);
  double sum = 0;
  size_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    if (weights[i] == 0) continue;
    last = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return last;
}

// min-p: the largest weight is 1, so weights are relative to it already.
void drop_light(float* weights, size_t count, float min_p) {
  if (min_p <= 0) return;
  for (size_t i = 0; i < count; ++i) weights[i] = weights[i] < min_p ? 0.0f : weights[i];
}

// Fills scratch.candidates according to top-k and top-p, most likely first. May overwrite the row in scratch.edited.
void narrow(const Distribution& d, const RowSampling& how, SamplingScratch& s, const Kernels& kernels) {
  s.candidates.clear();
  const bool few = how.top_k > 0 && how.top_k < d.count;
  if (few) {
    select_best(d.values, d.count, how.top_k, s.candidates);
    if (how.top_p >= 1) return;
    std::vector<float>& values = s.edited;  // no longer needed as a row: the candidates hold their values
    for (size_t i = 0; i < s.candidates.size(); ++i) s.weights[i] = s.candidates[i].value;
    kernels.exponentials(s.weights.data(), values.data(), static_cast<int64_t>(s.candidates.size()), d.largest, d.factor);
    const double share = how.top_p * total(values.data(), s.candidates.size());
    double kept = 0;
    for (size_t i = 0; i < s.candidates.size(); ++i) {
      kept += values[i];
      if (kept >= share) return s.candidates.resize(i + 1);
    }
    return;
  }
  compute_weights(d, s.weights, kernels);
  const double sum = total(s.weights.data(), static_cast<size_t>(d.count));
  // All tokens lighter than this together weigh less than 1 - top_p of the whole, so the share is reached before them.
  const double floor = (1.0 - how.top_p) * sum / static_cast<double>(d.count);
  for (int64_t i = 0; i < d.count; ++i) {
    if (s.weights[static_cast<size_t>(i)] >= floor) s.candidates.push_back({d.values[i], static_cast<int32_t>(i)});
  }
  keep_share(s.candidates, how.top_p * sum, [&](const TokenValue& c) { return s.weights[static_cast<size_t>(c.token)]; });
}

// The draw runs over the surviving tokens in the order of their numbers, so it does not matter how they were found.
int32_t pick_candidate(const Distribution& d, const RowSampling& how, SamplingScratch& s, const Kernels& kernels, double u) {
  std::sort(s.candidates.begin(), s.candidates.end(), [](const TokenValue& a, const TokenValue& b) { return a.token < b.token; });
  const size_t count = s.candidates.size();
  for (size_t i = 0; i < count; ++i) s.edited[i] = s.candidates[i].value;
  kernels.exponentials(s.edited.data(), s.weights.data(), static_cast<int64_t>(count), d.largest, d.factor);
  drop_light(s.weights.data(), count, how.min_p);
  return s.candidates[pick(s.weights.data(), count, u)].token;
}

}  // namespace

void SamplingScratch::reserve(int64_t vocabulary) {
  const auto n = static_cast<size_t>(vocabulary);
  if (weights.size() >= n) return;
  edited.resize(n);
  weights.resize(n);
  candidates.reserve(n);
}

double uniform(uint64_t seed, uint64_t counter) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return static_cast<double>(mix(seed + (counter + 1) * kGolden) >> 11) * 0x1p-53;
}

void select_best(const float* values, int64_t count, int64_t k, std::vector<TokenValue>& best) {
  best.clear();
  k = std::min(k, count);
  if (k <= 0) return;
  if (k <= count / 16) return select_by_heap(values, count, static_cast<size_t>(k), best);
  for (int64_t i = 0; i < count; ++i) best.push_back({values[i], static_cast<int32_t>(i)});
  const auto end = best.begin() + k;
  if (k < count) std::nth_element(best.begin(), end, best.end(), better);
  std::sort(best.begin(), end, better);
  best.resize(static_cast<size_t>(k));
}

int32_t draw(const float* logits, int64_t vocabulary, const RowSampling& how, const Largest* known, SamplingScratch& s, const Kernels& kernels) {
  const bool edits = !how.bias_token.empty() || (!how.seen_token.empty() && penalised(how));
  const float* row = logits;
  if (edits) {
    std::copy(logits, logits + vocabulary, s.edited.begin());
    edit(s.edited, how);
    row = s.edited.data();
  }
  const Largest largest = edits || !known ? kernels.find_largest(row, vocabulary) : *known;
  if (largest.nan || !(largest.value > -kInfinity && largest.value < kInfinity)) return -1;
  if (how.temperature < kGreedyBelow) return static_cast<int32_t>(largest.index);

  const Distribution d{row, vocabulary, largest.value, 1.0f / how.temperature};
  const double u = uniform(how.seed, how.counter);
  if ((how.top_k > 0 && how.top_k < vocabulary) || how.top_p < 1) {
    narrow(d, how, s, kernels);
    return pick_candidate(d, how, s, kernels, u);
  }
  compute_weights(d, s.weights, kernels);
  drop_light(s.weights.data(), static_cast<size_t>(vocabulary), how.min_p);
  return static_cast<int32_t>(pick(s.weights.data(), static_cast<size_t>(vocabulary), u));
}

}  // namespace homenode
