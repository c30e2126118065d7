#include "sampling/sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "host/thread_pool.h"

namespace homenode {
namespace {

using std::to_string;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kScanPiece = 16384;  // logits a thread scans for the largest at once

Error wrong(std::string message) { return Error{Fault::user, 0, "sampling arrays: " + std::move(message)}; }

std::optional<Error> check_lists(std::span<const int32_t> start, std::span<const int32_t> tokens, size_t values,
                                 size_t rows, int64_t vocabulary, const char* name) {
  if (start.size() != rows + 1 || start.front() != 0 || start.back() != static_cast<int64_t>(tokens.size()) ||
      values != tokens.size()) {
    return wrong(std::string(name) + "_start does not describe " + to_string(rows) + " rows of " +
                 to_string(tokens.size()) + " tokens with values");
  }
  for (size_t i = 0; i < rows; ++i) {
    if (start[i] > start[i + 1]) return wrong(std::string(name) + "_start falls after row " + to_string(i));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary)
      return wrong(std::string(name) + "_token " + to_string(token) + " in a vocabulary of " + to_string(vocabulary));
  }
  return {};
}

template <class T>
std::optional<Error> check_setting(std::span<const T> values, T least, T most, size_t rows, const char* name) {
  if (values.size() != rows)
    return wrong(std::string(name) + " has " + to_string(values.size()) + " values for " + to_string(rows) +
                 " rows of logits");
  for (size_t i = 0; i < rows; ++i) {
    if (values[i] >= least && values[i] <= most) continue;  // NaN is in no range
    return wrong("row " + to_string(i) + " has " + name + " " + to_string(values[i]) + "; it must be from " +
                 to_string(least) + " to " + to_string(most));
  }
  return {};
}

std::optional<Error> check_masks(const SamplingInput& in, size_t rows, int64_t vocabulary) {
  if (in.mask_row.size() != rows)
    return wrong("mask_row has " + to_string(in.mask_row.size()) + " values for " + to_string(rows) +
                 " rows of logits");
  const int64_t count = in.mask_words > 0 ? static_cast<int64_t>(in.masks.size()) / in.mask_words : 0;
  for (const int32_t row : in.mask_row) {
    if (row < -1 || row >= count) return wrong("mask_row " + to_string(row) + " of " + to_string(count) + " masks");
    if (row >= 0 && in.mask_words * 32 < vocabulary)
      return wrong("masks of " + to_string(in.mask_words) + " words for a vocabulary of " + to_string(vocabulary));
  }
  return {};
}

std::optional<Error> check(const SamplingInput& in, size_t rows, int64_t vocabulary) {
#define HOMENODE_CHECK(type, name, least, most) \
  if (auto error = check_setting<type>(in.name, least, most, rows, #name)) return error;
  HOMENODE_SAMPLING_SETTINGS(HOMENODE_CHECK)
#undef HOMENODE_CHECK
  if (in.seed.size() != rows || in.counter.size() != rows) {
    return wrong(to_string(in.seed.size()) + " seeds and " + to_string(in.counter.size()) + " counters for " +
                 to_string(rows) + " rows of logits");
  }
  if (auto error = check_lists(in.bias_start, in.bias_token, in.bias_value.size(), rows, vocabulary, "bias"))
    return error;
  if (auto error = check_lists(in.seen_start, in.seen_token, in.seen_count.size(), rows, vocabulary, "seen"))
    return error;
  return check_masks(in, rows, vocabulary);
}

template <class T>
std::span<const T> list_of(std::span<const T> values, std::span<const int32_t> start, size_t row) {
  return values.subspan(static_cast<size_t>(start[row]), static_cast<size_t>(start[row + 1] - start[row]));
}

std::span<const uint32_t> mask_of(const SamplingInput& in, size_t i) {
  if (in.mask_row[i] < 0) return {};
  const auto words = static_cast<size_t>(in.mask_words);
  return in.masks.subspan(static_cast<size_t>(in.mask_row[i]) * words, words);
}

RowSampling row_settings(const SamplingInput& in, size_t i) {
  return {
#define HOMENODE_OF_ROW(type, name, least, most) .name = in.name[i],
      HOMENODE_SAMPLING_SETTINGS(HOMENODE_OF_ROW)
#undef HOMENODE_OF_ROW
          .seed = in.seed[i],
      .counter = in.counter[i],
      .bias_token = list_of(in.bias_token, in.bias_start, i),
      .bias_value = list_of(in.bias_value, in.bias_start, i),
      .seen_token = list_of(in.seen_token, in.seen_start, i),
      .seen_count = list_of(in.seen_count, in.seen_start, i),
      .mask = mask_of(in, i),
  };
}

// The largest of each row, in pieces spread over the pool: one row is work for all.
class LargestScan {
 public:
  LargestScan(const Output& logits, const Kernels& kernels)
      : logits_(logits),
        kernels_(kernels),
        pieces_((logits.columns + kScanPiece - 1) / kScanPiece),
        found_(static_cast<size_t>(logits.rows * pieces_)) {}

  void scan(int thread, int threads) {
    const auto total = static_cast<int64_t>(found_.size());
    for (int64_t i = total * thread / threads; i < total * (thread + 1) / threads; ++i) {
      const int64_t row = i / pieces_, begin = i % pieces_ * kScanPiece;
      Largest& found = found_[static_cast<size_t>(i)];
      found = kernels_.find_largest(logits_.data + row * logits_.stride + begin,
                                    std::min(kScanPiece, logits_.columns - begin));
      found.index += begin;
    }
  }

  Largest of_row(int64_t row) const {
    Largest best = found_[static_cast<size_t>(row * pieces_)];
    for (int64_t p = 1; p < pieces_; ++p) {
      const Largest& next = found_[static_cast<size_t>(row * pieces_ + p)];
      const bool nan = best.nan || next.nan;
      if (next.value > best.value) best = next;
      best.nan = nan;
    }
    return best;
  }

 private:
  const Output& logits_;
  const Kernels& kernels_;
  int64_t pieces_;
  std::vector<Largest> found_;
};

Drawn make_result(size_t rows, int64_t vocabulary, int64_t logprobs) {
  Drawn out;
  out.top = std::clamp<int64_t>(logprobs, 0, vocabulary);
  out.tokens.resize(rows);
  out.logprobs.assign(rows, kNan);
  out.top_tokens.resize(rows * static_cast<size_t>(out.top));
  out.top_logprobs.resize(rows * static_cast<size_t>(out.top));
  return out;
}

bool finite(const Largest& x) { return !x.nan && std::isfinite(x.value); }

}  // namespace

void Sampler::prepare(int64_t vocabulary) {
  scratch_.resize(static_cast<size_t>(pool_->size()));
  for (SamplingScratch& s : scratch_) s.reserve(vocabulary);
}

void Sampler::log_probabilities(const float* row, int64_t vocabulary, const Largest& largest, size_t i, Drawn& out,
                                SamplingScratch& s) const {
  const double sum = kernels(level_).sum_exponentials(row, vocabulary, largest.value, 1.0f);
  const double log_sum = static_cast<double>(largest.value) + std::log(sum);
  const auto log_probability = [&](float logit) { return static_cast<float>(logit - log_sum); };
  out.logprobs[i] = log_probability(row[out.tokens[i]]);
  select_best(row, vocabulary, out.top, -std::numeric_limits<float>::infinity(), s);
  for (size_t j = 0; j < s.candidates.size(); ++j) {
    out.top_tokens[i * static_cast<size_t>(out.top) + j] = s.candidates[j].token;
    out.top_logprobs[i * static_cast<size_t>(out.top) + j] = log_probability(s.candidates[j].value);
  }
}

Result<Drawn> Sampler::sample(const Output& logits, const SamplingInput& in, int64_t logprobs) {
  const auto rows = static_cast<size_t>(logits.rows);
  if (auto error = check(in, rows, logits.columns)) return *error;
  const std::lock_guard<std::mutex> turn(one_call_);
  prepare(logits.columns);
  Drawn out = make_result(rows, logits.columns, logprobs);
  const Kernels& table = kernels(level_);
  LargestScan scan(logits, table);
  std::atomic<size_t> next{0};
  pool_->run([&](int thread) {
    scan.scan(thread, pool_->size());
    pool_->barrier(thread);
    SamplingScratch& s = scratch_[static_cast<size_t>(thread)];
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < rows;) {
      const float* row = logits.data + static_cast<int64_t>(i) * logits.stride;
      const Largest largest = scan.of_row(static_cast<int64_t>(i));
      out.tokens[i] = largest.nan ? kNoToken : draw(row, logits.columns, row_settings(in, i), &largest, s, table);
      if (logprobs >= 0 && out.tokens[i] >= 0 && finite(largest))
        log_probabilities(row, logits.columns, largest, i, out, s);
    }
  });
  return out;
}

Result<Drawn> Sampler::score(const Output& logits, std::span<const int32_t> rows, std::span<const int32_t> targets,
                             int64_t logprobs) {
  if (rows.size() != targets.size())
    return wrong(to_string(targets.size()) + " targets for " + to_string(rows.size()) + " rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= logits.rows)
      return wrong("row " + to_string(rows[i]) + " of " + to_string(logits.rows) + " rows of logits");
    if (targets[i] < 0 || targets[i] >= logits.columns) {
      return wrong("target " + to_string(targets[i]) + " in a vocabulary of " + to_string(logits.columns));
    }
  }
  const std::lock_guard<std::mutex> turn(one_call_);
  prepare(logits.columns);
  Drawn out = make_result(rows.size(), logits.columns, std::max<int64_t>(logprobs, 0));
  std::atomic<size_t> next{0};
  pool_->run([&](int thread) {
    SamplingScratch& s = scratch_[static_cast<size_t>(thread)];
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < rows.size();) {
      const float* row = logits.data + rows[i] * logits.stride;
      const Largest largest = kernels(level_).find_largest(row, logits.columns);
      out.tokens[i] = targets[i];
      if (finite(largest)) log_probabilities(row, logits.columns, largest, i, out, s);
    }
  });
  return out;
}

}  // namespace homenode
