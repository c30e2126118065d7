#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "sampling/sampling.h"

namespace homenode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr int64_t kBlock = 256;   // values whose largest is kept
constexpr int64_t kPiece = 2048;  // values whose weights are summed before one of them is chosen
constexpr size_t kFew = 8192;     // tokens of a mask that are drawn from as a row of their own

// All bits of each of four values that a part of a mask keeps.
constexpr auto kKeptBits = [] {
  std::array<std::array<uint32_t, 4>, 16> kept{};
  for (size_t part = 0; part < 16; ++part) {
    for (size_t i = 0; i < 4; ++i) kept[part][i] = part >> i & 1 ? ~uint32_t{0} : 0;
  }
  return kept;
}();

bool better(const TokenValue& a, const TokenValue& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

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

// The largest of each block of a row, so that afterwards only blocks that hold something wanted are looked at one value
// at a time. Sixteen independent maxima, which every compiler turns into vectors.
void find_maxima(const float* values, int64_t count, std::vector<float>& maxima) {
  maxima.clear();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    float best[16];
    std::fill(best, best + 16, -kInfinity);
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      for (int j = 0; j < 16; ++j) best[j] = values[i + j] > best[j] ? values[i + j] : best[j];
    }
    for (; i < end; ++i) best[0] = std::max(best[0], values[i]);
    maxima.push_back(*std::max_element(best, best + 16));
  }
}

// Appends all values of at least `least`, in the order of their tokens.
void collect(const float* values, int64_t count, float least, const std::vector<float>& maxima,
             std::vector<TokenValue>& found) {
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < least) continue;
    const int64_t begin = static_cast<int64_t>(b) * kBlock, end = std::min(count, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) {
      if (values[i] >= least) found.push_back({values[i], static_cast<int32_t>(i)});
    }
  }
}

struct Distribution {
  const float* values;
  int64_t count;
  float largest, factor;
};

double total(const float* weights, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += weights[i];
  return sum;
}

// Where the target falls on the line of weights laid end to end.
size_t pick(const float* weights, size_t count, double target) {
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

// Plain sampling: sums of pieces first, then the weights of the piece the target falls into.
int32_t pick_from_all(const Distribution& d, SamplingScratch& s, const Kernels& kernels, double u) {
  s.sums.clear();
  double whole = 0;
  for (int64_t i = 0; i < d.count; i += kPiece) {
    s.sums.push_back(kernels.sum_exponentials(d.values + i, std::min(kPiece, d.count - i), d.largest, d.factor));
    whole += s.sums.back();
  }
  double target = u * whole;
  size_t piece = 0;
  while (piece + 1 < s.sums.size() && target >= s.sums[piece]) target -= s.sums[piece++];
  while (s.sums[piece] == 0) --piece;  // rounding went past the last weight there is
  const int64_t begin = static_cast<int64_t>(piece) * kPiece, length = std::min(kPiece, d.count - begin);
  kernels.exponentials(d.values + begin, s.weights.data(), length, d.largest, d.factor);
  return static_cast<int32_t>(begin) +
         static_cast<int32_t>(pick(s.weights.data(), static_cast<size_t>(length), target));
}

// A value below all that weigh at least `weight`. A little lower than need be, so that rounding leaves none of them
// out.
float least_value(const Distribution& d, double weight) {
  if (weight <= 0) return -kInfinity;
  return static_cast<float>(d.largest + (std::log(weight) - 1e-3) / d.factor - 1e-5 * std::abs(d.largest));
}

// Keeps the best that together hold `share`, the one that reaches it included, without sorting: halves by rank, of
// which the first is kept whole or the second is dropped whole. `candidates` stay in their order.
void keep_share(const Distribution& d, double share, SamplingScratch& s, const Kernels& kernels) {
  s.ranked = s.candidates;
  const auto at = [&](size_t i) { return s.ranked.begin() + static_cast<std::ptrdiff_t>(i); };
  size_t begin = 0, end = s.ranked.size();  // the one that reaches the share is in there, if any does
  double kept = 0;
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), better);
    for (size_t i = begin; i < middle; ++i) s.edited[i - begin] = s.ranked[i].value;
    kernels.exponentials(s.edited.data(), s.weights.data(), static_cast<int64_t>(middle - begin), d.largest, d.factor);
    const double half = total(s.weights.data(), middle - begin);
    if (kept + half >= share) {
      end = middle;
    } else {
      kept += half;
      begin = middle;
    }
  }
  const TokenValue last = s.ranked[begin];
  std::erase_if(s.candidates, [&](const TokenValue& c) { return better(last, c); });
}

// Fills scratch.candidates according to top-k and top-p, in the order of their tokens. May overwrite the row in
// scratch.edited.
void narrow(const Distribution& d, const RowSampling& how, SamplingScratch& s, const Kernels& kernels) {
  s.candidates.clear();
  double sum = 0;
  if (how.top_k > 0 && how.top_k < d.count) {
    select_best(d.values, d.count, how.top_k, kLowest, s);  // what is forbidden is no candidate
    std::sort(s.candidates.begin(), s.candidates.end(),
              [](const TokenValue& a, const TokenValue& b) { return a.token < b.token; });
    if (how.top_p >= 1) return;
    for (size_t i = 0; i < s.candidates.size(); ++i) s.edited[i] = s.candidates[i].value;  // no longer needed as a row
    kernels.exponentials(s.edited.data(), s.weights.data(), static_cast<int64_t>(s.candidates.size()), d.largest,
                         d.factor);
    sum = total(s.weights.data(), s.candidates.size());
  } else {
    // All tokens lighter than the floor together weigh less than 1 - top_p of the whole, so the share is reached before
    // them.
    sum = kernels.sum_exponentials(d.values, d.count, d.largest, d.factor);
    const double floor =
        how.top_p < 1 ? (1.0 - how.top_p) * sum / static_cast<double>(d.count) : static_cast<double>(how.min_p);
    find_maxima(d.values, d.count, s.maxima);
    collect(d.values, d.count, least_value(d, floor), s.maxima, s.candidates);
  }
  if (how.top_p < 1) keep_share(d, how.top_p * sum, s, kernels);
}

// The draw runs over the surviving tokens in the order of their numbers, so it does not matter how they were found.
int32_t pick_candidate(const Distribution& d, const RowSampling& how, SamplingScratch& s, const Kernels& kernels,
                       double u) {
  const size_t count = s.candidates.size();
  for (size_t i = 0; i < count; ++i) s.edited[i] = s.candidates[i].value;
  kernels.exponentials(s.edited.data(), s.weights.data(), static_cast<int64_t>(count), d.largest, d.factor);
  // min-p: the largest weight is 1, so weights are relative to it already.
  for (size_t i = 0; i < count; ++i) s.weights[i] = s.weights[i] < how.min_p ? 0.0f : s.weights[i];
  return s.candidates[pick(s.weights.data(), count, u * total(s.weights.data(), count))].token;
}

// What top-k leaves, in the order of the tokens, through the samplers that look at probabilities.
int32_t pick_chained(const Distribution& d, const RowSampling& how, SamplingScratch& s, const Kernels& kernels,
                     double u) {
  if (how.top_k > 0 && how.top_k < d.count) {
    select_best(d.values, d.count, how.top_k, kLowest, s);
    std::sort(s.candidates.begin(), s.candidates.end(),
              [](const TokenValue& a, const TokenValue& b) { return a.token < b.token; });
  } else {
    s.candidates.clear();
    find_maxima(d.values, d.count, s.maxima);
    collect(d.values, d.count, kLowest, s.maxima, s.candidates);
  }
  const size_t count = s.candidates.size();
  for (size_t i = 0; i < count; ++i) s.edited[i] = s.candidates[i].value;
  kernels.exponentials(s.edited.data(), s.weights.data(), static_cast<int64_t>(count), d.largest, d.factor);
  keep_chain(std::span(s.weights).first(count), how, s);
  return s.candidates[pick(s.weights.data(), count, u * total(s.weights.data(), count))].token;
}

// The place in a row whose edits are done, which is the one in scratch.edited where it is to be narrowed. `known`: its
// largest value, if that was computed already.
int32_t draw_from(const float* row, int64_t count, const RowSampling& how, const Largest* known, SamplingScratch& s,
                  const Kernels& kernels) {
  if (count == 0) return kNoToken;
  const Largest largest = known ? *known : kernels.find_largest(row, count);
  if (largest.nan || !(largest.value > -kInfinity && largest.value < kInfinity)) return kNoToken;
  if (how.temperature < kGreedyBelow) return static_cast<int32_t>(largest.index);
  const auto values = static_cast<size_t>(count);
  if (how.top_n_sigma > 0) keep_top_n_sigma(std::span(s.edited).first(values), largest.value, how.top_n_sigma);
  const float temperature = how.dynatemp_range > 0
                                ? dynamic_temperature(std::span(row, values), largest.value, how, s, kernels)
                                : how.temperature;
  const Distribution d{row, count, largest.value, 1.0f / temperature};
  const double u = uniform(how.seed, how.counter);
  if (is_chained(how)) return pick_chained(d, how, s, kernels, u);
  if ((how.top_k <= 0 || how.top_k >= count) && how.top_p >= 1 && how.min_p <= 0)
    return pick_from_all(d, s, kernels, u);
  narrow(d, how, s, kernels);
  return pick_candidate(d, how, s, kernels, u);
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

void select_best(const float* values, int64_t count, int64_t k, float least, SamplingScratch& s) {
  s.candidates.clear();
  k = std::min(k, count);
  if (k <= 0) return;
  find_maxima(values, count, s.maxima);
  if (k < static_cast<int64_t>(s.maxima.size())) {  // of k blocks each holds one at least as large
    s.block_order = s.maxima;
    std::nth_element(s.block_order.begin(), s.block_order.begin() + (k - 1), s.block_order.end(), std::greater<>());
    least = std::max(least, s.block_order[static_cast<size_t>(k - 1)]);
  }
  collect(values, count, least, s.maxima, s.candidates);
  k = std::min(k, static_cast<int64_t>(s.candidates.size()));
  const auto end = s.candidates.begin() + k;
  if (end < s.candidates.end()) std::nth_element(s.candidates.begin(), end, s.candidates.end(), better);
  std::sort(s.candidates.begin(), end, better);
  s.candidates.resize(static_cast<size_t>(k));
}

void copy_masked(std::span<const float> from, std::span<const uint32_t> mask, std::span<float> row) {
  constexpr auto kForbidden = std::bit_cast<uint32_t>(-kInfinity);
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    const uint32_t word = mask[begin / 32];
    const size_t count = std::min<size_t>(32, row.size() - begin);
    if (word == 0) {
      std::fill_n(row.begin() + static_cast<std::ptrdiff_t>(begin), count, -kInfinity);
    } else if (count < 32) {
      for (size_t i = begin; i < row.size(); ++i) row[i] = word >> (i - begin) & 1 ? from[i] : -kInfinity;
    } else {
      for (size_t part = 0; part < 8; ++part) {
        const auto& kept = kKeptBits[word >> (4 * part) & 15];
        for (size_t i = 0; i < 4; ++i) {
          const size_t at = begin + 4 * part + i;
          row[at] = std::bit_cast<float>((std::bit_cast<uint32_t>(from[at]) & kept[i]) | (kForbidden & ~kept[i]));
        }
      }
    }
  }
}

bool list_few(std::span<const uint32_t> mask, int64_t vocabulary, std::vector<int32_t>& tokens) {
  tokens.clear();
  for (size_t i = 0; i < mask.size() && tokens.size() <= kFew; ++i) {
    for (uint32_t word = mask[i]; word != 0; word &= word - 1) {
      const auto token = static_cast<int32_t>(i * 32) + std::countr_zero(word);
      if (token < vocabulary) tokens.push_back(token);
    }
  }
  return tokens.size() <= kFew;
}

int32_t draw(const float* logits, int64_t vocabulary, const RowSampling& how, const Largest* known, SamplingScratch& s,
             const Kernels& kernels) {
  const bool edits = !how.bias_token.empty() || (!how.seen_token.empty() && penalised(how)), masked = !how.mask.empty();
  const std::span whole(s.edited.data(), static_cast<size_t>(vocabulary));
  const float* row = logits;
  if (edits || (how.top_n_sigma > 0 && !masked)) {
    std::copy(logits, logits + vocabulary, s.edited.begin());
    if (edits) edit(s.edited, how);
    row = s.edited.data();
  }
  if (!masked) return draw_from(row, vocabulary, how, edits ? nullptr : known, s, kernels);
  if (!list_few(how.mask, vocabulary, s.allowed)) {
    copy_masked({row, whole.size()}, how.mask, whole);
    return draw_from(whole.data(), vocabulary, how, nullptr, s, kernels);
  }
  if (s.allowed.size() == 1) return s.allowed.front();
  for (size_t i = 0; i < s.allowed.size(); ++i) s.edited[i] = row[s.allowed[i]];  // i <= the token: none is lost
  const auto drawn = draw_from(s.edited.data(), static_cast<int64_t>(s.allowed.size()), how, nullptr, s, kernels);
  return drawn < 0 ? drawn : s.allowed[static_cast<size_t>(drawn)];
}

}  // namespace homenode
