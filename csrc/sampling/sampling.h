// From logits to tokens. What a row draws depends on its logits, its settings, its seed and its counter, and on nothing
// else.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "graph/step.h"
#include "kernels/kernels.h"
#include "sampling/settings.h"

namespace homenode {

class ThreadPool;

// The settings of one row, from a table (sampling/settings.h), and what else a draw from it needs: see SamplingArrays
// in src/homenode/compute/ops.py.
struct RowSampling {
#define HOMENODE_FIELD(type, name, least, most) type name;
  HOMENODE_SAMPLING_SETTINGS(HOMENODE_FIELD)
#undef HOMENODE_FIELD
  uint64_t seed, counter;
  std::span<const int32_t> bias_token;
  std::span<const float> bias_value;
  std::span<const int32_t> seen_token, seen_count;
  std::span<const uint32_t> mask;  // a bit for each token that may be drawn, lowest first; empty: all may
};

struct TokenValue {
  float value;
  int32_t token;
};

// Work space of one thread, for a vocabulary of the size it was made for.
struct SamplingScratch {
  std::vector<float> edited, weights;
  std::vector<float> maxima, block_order;  // of blocks of a row
  std::vector<double> sums;  // of pieces of a row
  std::vector<TokenValue> candidates, ranked;
  std::vector<int32_t> order;  // of candidates
  std::vector<int32_t> allowed;  // tokens of a mask
  void reserve(int64_t vocabulary);
};

// Uniform in [0, 1): a hash of the two numbers, the same as the NumPy backend's.
double uniform(uint64_t seed, uint64_t counter);

// The k best of a row of at least `least`, best first, lower tokens first among equals, into the candidates of `s`. No
// value may be NaN.
void select_best(const float* values, int64_t count, int64_t k, float least, SamplingScratch& s);

// Copies the values whose bit in the mask is 1; the others are -infinity. `row` may be `from` itself.
void copy_masked(std::span<const float> from, std::span<const uint32_t> mask, std::span<float> row);

// The tokens that a mask leaves, in their order. False where they are too many to be listed.
bool list_few(std::span<const uint32_t> mask, int64_t vocabulary, std::vector<int32_t>& tokens);

// Makes -infinity of all logits below `largest` - n * their standard deviation, those of -infinity not counted; n > 0.
void keep_top_n_sigma(std::span<float> row, float largest, float n);

// Whether a row has samplers that look at the probabilities of what others left.
inline bool is_chained(const RowSampling& how) {
  return how.typical_p < 1 || how.max_surprise > 0 || how.xtc_probability > 0;
}

// Makes 0 of the weights of all tokens that typical-p, top-p, min-p, the bound on surprises and XTC drop, in this
// order. The weights are of what top-k left, in the order of the tokens; one of them is above 0.
void keep_chain(std::span<float> weights, const RowSampling&, SamplingScratch&);

// The temperature of a row, by its entropy; `largest` of its logits. dynatemp_range > 0.
float dynamic_temperature(std::span<const float> row, float largest, const RowSampling&, SamplingScratch&,
                          const Kernels&);

// Temperatures below this are greedy: the quotient would overflow.
constexpr float kGreedyBelow = 1e-5f;

// The token of a row, or -1 when a logit is NaN or none is finite. `known`: the largest of the unedited logits, if it
// was computed already.
int32_t draw(const float* logits, int64_t vocabulary, const RowSampling&, const Largest* known, SamplingScratch&,
             const Kernels&);

// Settings of all rows; lists in CSR form.
struct SamplingInput {
#define HOMENODE_FIELD(type, name, least, most) std::span<const type> name;
  HOMENODE_SAMPLING_SETTINGS(HOMENODE_FIELD)
#undef HOMENODE_FIELD
  std::span<const uint64_t> seed, counter;
  std::span<const int32_t> bias_start, bias_token;
  std::span<const float> bias_value;
  std::span<const int32_t> seen_start, seen_token, seen_count;
  std::span<const int32_t> mask_row;  // of the masks, for each row of logits; -1: all tokens may be drawn
  std::span<const uint32_t> masks;  // of mask_words words each
  int64_t mask_words = 0;
};

constexpr int32_t kNoToken = -1;

struct Drawn {
  std::vector<int32_t> tokens;  // kNoToken for a row with NaN logits or no finite one to draw
  std::vector<float> logprobs;  // NaN where not asked for, and for a row with NaN logits or no finite largest one
  int64_t top = 0;  // columns of the following
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
};

class Sampler {
 public:
  Sampler(std::shared_ptr<ThreadPool> pool, Level level) : pool_(std::move(pool)), level_(level) {}
  // logprobs -1: none; n: of the drawn token and of the n most likely, under the logits as they are.
  Result<Drawn> sample(const Output& logits, const SamplingInput&, int64_t logprobs);
  // The same for given tokens: targets[i] in row rows[i].
  Result<Drawn> score(const Output& logits, std::span<const int32_t> rows, std::span<const int32_t> targets,
                      int64_t logprobs);

 private:
  void prepare(int64_t vocabulary);
  void log_probabilities(const float* row, int64_t vocabulary, const Largest&, size_t i, Drawn&,
                         SamplingScratch&) const;

  std::shared_ptr<ThreadPool> pool_;
  Level level_;
  std::mutex one_call_;
  std::vector<SamplingScratch> scratch_;  // one for each thread
};

}  // namespace homenode
