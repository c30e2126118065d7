#include "sampling/sampling.h"

#include <algorithm>
#include <limits>

#include "tests/cases.h"

namespace homenode::checks {
namespace {

// Settings of some rows, of every kind.
struct Settings {
#define HOMENODE_FIELD(type, name, least, most) std::vector<type> name;
  HOMENODE_SAMPLING_SETTINGS(HOMENODE_FIELD)
#undef HOMENODE_FIELD
  std::vector<float> bias_value;
  std::vector<int32_t> bias_start{0}, bias_token, seen_start{0}, seen_token, seen_count;
  std::vector<uint64_t> seed, counter;
  std::vector<int32_t> mask_row;
  std::vector<uint32_t> masks;
  int64_t mask_words;

  Settings(Random& random, int rows, int vocabulary) : mask_words((vocabulary + 31) / 32) {
    for (int64_t i = 2 * mask_words; i > 0; --i)
      masks.push_back(random.one_in(3) ? ~uint32_t{0} : random.one_in(2) ? 0 : static_cast<uint32_t>(random.bits()));
    for (int r = 0; r < rows; ++r) {
      temperature.push_back(random.one_in(3) ? 0 : 1 + random.real());
      top_n_sigma.push_back(random.one_in(2) ? 0 : 1 + random.real());
      dynatemp_range.push_back(random.one_in(2) ? 0 : random.real() + 1);
      dynatemp_exponent.push_back(random.one_in(2) ? 1 : 0.5f + random.real() / 2);
      typical_p.push_back(random.one_in(2) ? 1 : 0.5f + random.real() / 2);
      max_surprise.push_back(random.one_in(2) ? 0 : 4 + 3 * random.real());
      xtc_probability.push_back(random.one_in(2) ? 0 : 0.5f + random.real() / 2);
      xtc_threshold.push_back(random.one_in(2) ? 0 : 0.1f + random.real() / 20);
      top_p.push_back(random.one_in(2) ? 1 : 0.5f + random.real() / 2);
      min_p.push_back(random.one_in(2) ? 0 : 0.5f + random.real() / 2);
      top_k.push_back(random.one_in(2) ? 0 : random.between(1, 2 * vocabulary));
      repetition_penalty.push_back(random.one_in(2) ? 1 : 1.5f + random.real());
      frequency_penalty.push_back(random.one_in(2) ? 0 : random.real());
      presence_penalty.push_back(random.one_in(2) ? 0 : random.real());
      seed.push_back(random.bits()), counter.push_back(random.bits());
      mask_row.push_back(random.between(-1, 1));
      for (int i = random.between(0, 4); i > 0; --i) {
        bias_token.push_back(random.between(0, vocabulary - 1)), bias_value.push_back(random.real() * 50);
        seen_token.push_back(random.between(0, vocabulary - 1)), seen_count.push_back(random.between(1, 9));
      }
      bias_start.push_back(static_cast<int32_t>(bias_token.size())),
          seen_start.push_back(static_cast<int32_t>(seen_token.size()));
    }
  }

  SamplingInput input() const {
    return {
#define HOMENODE_ARRAY(type, name, least, most) .name = name,
        HOMENODE_SAMPLING_SETTINGS(HOMENODE_ARRAY)
#undef HOMENODE_ARRAY
            .seed = seed,
        .counter = counter,
        .bias_start = bias_start,
        .bias_token = bias_token,
        .bias_value = bias_value,
        .seen_start = seen_start,
        .seen_token = seen_token,
        .seen_count = seen_count,
        .mask_row = mask_row,
        .masks = masks,
        .mask_words = mask_words,
    };
  }
};

}  // namespace

void check_sampling(Random& random) {
  const int rows = random.between(1, 9),
            vocabulary = random.one_in(4) ? random.between(16000, 40000) : random.between(1, 700);
  const int64_t stride = vocabulary + random.between(0, 17);
  const Exact<float> logits = reals(random, static_cast<size_t>((rows - 1) * stride + vocabulary), 8);
  if (random.one_in(3))
    logits[static_cast<size_t>(random.between(0, vocabulary - 1))] =
        std::numeric_limits<float>::infinity() * (random.one_in(2) ? -1 : 1);
  const Output output{logits.get(), rows, vocabulary, stride};
  const Settings settings(random, rows, vocabulary);
  const int logprobs = random.between(-1, 20);
  std::vector<int32_t> all(static_cast<size_t>(rows)), targets(static_cast<size_t>(rows));
  for (int r = 0; r < rows; ++r)
    all[static_cast<size_t>(r)] = r, targets[static_cast<size_t>(r)] = random.between(0, vocabulary - 1);
  for (const Level level : levels()) {
    Sampler alone(pool_of(1), level), several(pool_of(random.between(2, 4)), level);
    const Drawn wanted = taken(alone.sample(output, settings.input(), logprobs)),
                found = taken(several.sample(output, settings.input(), logprobs));
    require(wanted.tokens == found.tokens && wanted.top_tokens == found.top_tokens,
            std::string("several threads draw what one does, at ") + level_name(level));
    for (size_t r = 0; r < wanted.tokens.size(); ++r) {
      if (settings.mask_row[r] < 0 || wanted.tokens[r] < 0) continue;
      const auto token = static_cast<size_t>(wanted.tokens[r]);
      const size_t first = static_cast<size_t>(settings.mask_row[r]) * static_cast<size_t>(settings.mask_words);
      require(settings.masks[first + token / 32] >> (token % 32) & 1, "a token is drawn that the mask has");
    }
    const Drawn scored = taken(several.score(output, all, targets, std::max(0, logprobs)));
    require(scored.tokens.size() == targets.size(), "every target has a score");
  }
}

}  // namespace homenode::checks
