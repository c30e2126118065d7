// The short convolution, and the gated delta rule or the recurrence of Mamba 2 behind it: programs over random shapes,
// whose steps cut sequences anywhere.
#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/kernels.h"
#include "recorder/recorder.h"
#include "recorder/row_operations.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int kMaxTokens = 90, kSlots = 5;

struct Shape {
  int keys, each, key_width, value_width, taps;
  bool scans, interleaved, silu, biased, by_row;
  uint64_t seed;

  int heads() const { return keys * each; }
  int channels() const { return 2 * keys * key_width + heads() * value_width; }
  int decays() const { return heads() * (by_row && !scans ? key_width : 1); }
  int columns() const { return channels() + heads() + decays(); }
};

// A program of both operations, its state memory, and the rows that a step brings.
class Layer {
 public:
  Layer(const Shape& shape, std::shared_ptr<ThreadPool> pool, Level level) : shape_(shape) {
    Random random(shape.seed);
    memory_ = taken(StateMemory::create(
        *pool, {{shape.channels(), shape.taps, shape.heads(), shape.key_width, shape.value_width}}, kSlots));
    Recorder r(pool, level, {kMaxTokens, kSlots, 0, 0});
    const int64_t widths[] = {shape.channels(), shape.heads(), shape.decays()};
    const std::vector<Tensor> parts = taken(r.split(taken(r.received(shape.columns())), widths));
    const auto vector = [&](int count) {
      return taken(constant(reals(random, static_cast<size_t>(count)).get(), 1, count));
    };
    const Tensor weights = vector(shape.channels() * (shape.taps + 1)), biases = vector(shape.channels());
    const Tensor qkv = taken(r.short_convolution(parts[0], {weights},
                                                 shape.biased ? std::vector<Tensor>{biases} : std::vector<Tensor>{},
                                                 memory_, 0, shape.silu));
    const Tensor weight = vector(shape.heads()), bias = vector(shape.decays());
    if (shape.scans) {
      const Tensor found =
          taken(r.selective_scan(qkv, parts[1], weight, bias, vector(shape.heads()), memory_, {0, shape.each, 0}));
      const auto inner = static_cast<int>(found.columns);
      program_ = taken(r.finish(
          taken(r.rows(Multiply{found, {taken(r.rows(GroupedNorm{found, {vector(inner)}, shape.keys, 1e-5f}))}}))));
    } else {
      const Tensor found = taken(r.delta_rule(qkv, parts[1], parts[2], weight, bias, memory_,
                                              {0, shape.keys, shape.interleaved, shape.biased ? 2.0f : 1.0f}));
      program_ = taken(r.finish(taken(r.rows(GateRuns{found, parts[1], shape.silu}))));
    }
  }

  // Tokens first .. past - 1 of a sequence in a slot, as rows of the result.
  // `copies`: see StepInput.
  std::vector<float> run(const Exact<float>& rows, int slot, int first, int past,
                         const std::vector<int32_t>& copies = {}) {
    const int count = past - first;
    std::vector<int32_t> ids(static_cast<size_t>(count)), positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), first);
    const std::vector<int32_t> starts = {0, count}, context = {past}, slots = {slot}, fresh = {first == 0};
    StepInput input{ids, positions, starts, context, {}, 0, {}};
    input.state_slot = slots, input.state_fresh = fresh, input.state_copies = copies;
    input.hidden = rows.get() + int64_t(first) * shape_.columns();
    input.hidden_rows = count, input.hidden_columns = shape_.columns();
    const Output out = taken(program_->run(input));
    std::vector<float> found;
    for (int64_t r = 0; r < out.rows; ++r)
      found.insert(found.end(), out.data + r * out.stride, out.data + r * out.stride + out.columns);
    return found;
  }

 private:
  Shape shape_;
  std::shared_ptr<StateMemory> memory_;
  std::shared_ptr<Program> program_;
};

}  // namespace

void check_delta(Random& random) {
  const Shape shape{random.between(1, 3), random.between(1, 3), random.between(1, 40), random.between(1, 40),
                    random.between(1, 6), random.one_in(2),     random.one_in(2),      random.one_in(2),
                    random.one_in(2),     random.one_in(2),     random.bits()};
  const int tokens = random.between(3, kMaxTokens), early = random.between(0, tokens - 3),
            late = random.between(early + 1, tokens - 2);
  const Exact<float> rows = reals(random, static_cast<size_t>(tokens * shape.columns()));
  for (const Level level : levels()) {
    Layer whole(shape, pool_of(1), level), cut(shape, pool_of(random.between(2, 4)), level);
    const std::vector<float> wanted = whole.run(rows, 1, 0, tokens);
    std::vector<float> found;
    for (int at = 0; at < tokens;) {
      const int past = std::min(tokens, at + random.between(1, 40));
      std::vector<int32_t> copies;
      if (at <= early && early < past) copies.insert(copies.end(), {0, 3, early});
      if (at <= late && late < past) copies.insert(copies.end(), {0, 4, late});
      const std::vector<float> part = cut.run(rows, 2, at, past, copies);
      found.insert(found.end(), part.begin(), part.end());
      at = past;
    }
    require(found.size() == wanted.size() && !std::memcmp(found.data(), wanted.data(), found.size() * sizeof(float)),
            "a sequence has the same bits wherever it is cut, on any number of threads");
    for (const auto& [slot, copied] : {std::pair(3, early), std::pair(4, late)}) {
      const std::vector<float> rest = cut.run(rows, slot, copied + 1, tokens);
      require(!std::memcmp(rest.data(), wanted.data() + (wanted.size() - rest.size()), rest.size() * sizeof(float)),
              "a copy of a state goes on as the sequence did");
    }
  }
}

}  // namespace homenode::checks
