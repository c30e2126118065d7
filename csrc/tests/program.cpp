#include "recorder/recorder.h"
#include "recorder/row_operations.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <thread>

#include "host/rank_group.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int kVocabulary = 70, kMaxTokens = 160, kBlocks = 24, kMaxSequences = 4;

// A small model of random shape: what is recorded from it, and the KV memory, differ from pool to pool, the numbers do
// not.
struct Shape {
  int hidden, heads, kv_heads, head_dim, inner, window, block_size;
  float softcap;
  bool qk_norm;
  int experts;  // 0: an MLP
  std::vector<int32_t> here;  // experts of which there are matrices; empty: all
  KvType kv;
  Format format;
  bool early;  // rows are selected behind the attention, else at the end
  uint64_t seed;
};

Shape random_shape(Random& random) {
  const int group = random.between(1, 4), kv_heads = random.between(1, 3), head_dim = 2 * random.between(1, 40);
  const int experts = random.one_in(2) ? random.between(1, 9) : 0;
  std::vector<int32_t> here;
  for (int32_t e = random.between(0, 9); e < experts; e += random.between(1, 4)) here.push_back(e);
  return {32 * random.between(1, 4),
          group * kv_heads,
          kv_heads,
          head_dim,
          32 * random.between(1, 4),
          random.one_in(2) ? random.between(1, 300) : 0,
          32 * random.between(1, 2),
          random.one_in(3) ? 5.0f : 0.0f,
          random.one_in(2),
          experts,
          here,
          random.of<KvType>({KvType::f32, KvType::bf16, KvType::int8}),
          random.of<Format>({Format::f32, Format::bf16, Format::q8_0, Format::q4_0}),
          random.one_in(2),
          random.bits()};
}

// Records the model for one pool, one of several ranks if there is a group, and keeps what it needs.
class Model {
 public:
  Model(const Shape& shape, std::shared_ptr<ThreadPool> pool, Level level, bool fuse, std::shared_ptr<RankGroup> group)
      : shape_(shape), pool_(std::move(pool)), random_(shape.seed) {
    cache_ = taken(KvCache::create(*pool_, {1, shape.kv_heads, shape.head_dim, shape.block_size, shape.kv}, kBlocks));
    Recorder r(pool_, level, {kMaxTokens, kMaxSequences, kMaxTokens, kBlocks}, fuse, group);
    // All but the first and the last few rows: ids elsewhere give zeros.
    Tensor x = taken(r.embedding(weight(kVocabulary - 9, shape.hidden), 4, kVocabulary));
    x = taken(r.place_rows(x, 0, 2 * shape.hidden));
    x = taken(r.sum(attention(r, x)));
    if (!shape.early) x = taken(r.place_rows(x, shape.hidden, 2 * shape.hidden, true));
    x = taken(r.sum(feed_forward(r, x)));
    x = taken(r.rms_norm(selected(r, x, !shape.early), parameter(shape.hidden), 1e-6f));
    const Tensor logits = adapted(r, x, taken(r.linear(x, {weight(kVocabulary, shape.hidden)}, {}, nullptr)));
    const Tensor all =
        taken(r.gather(logits, std::vector<int64_t>(group ? static_cast<size_t>(group->size()) : 1, kVocabulary)));
    program_ = taken(r.finish(shape.softcap > 0 ? taken(r.rows(SoftCap{all, 30})) : all));
  }

  std::vector<float> run(const StepInput& input) {
    const Output out = taken(program_->run(input));
    std::vector<float> values;
    for (int64_t r = 0; r < out.rows; ++r)
      values.insert(values.end(), out.data + r * out.stride, out.data + r * out.stride + out.columns);
    return values;
  }

 private:
  std::shared_ptr<const Weight> weight(int rows, int columns) {
    const Exact<float> values = reals(random_, static_cast<size_t>(rows) * static_cast<size_t>(columns), 0.3f);
    return taken(weight_from_rows(*pool_, values.get(), {shape_.format, rows, columns}));
  }
  Tensor parameter(int columns) {
    const Exact<float> values = reals(random_, static_cast<size_t>(columns));
    return taken(constant(values.get(), 1, columns));
  }

  // Of the second and later of one head more than there are.
  RelativeBias bias() { return {parameter(2 * (shape_.heads + 1)), {0, 1, 1, 0, 1}, shape_.heads + 1, 1}; }

  Tensor attention(Recorder& r, const Tensor& x) {
    const int queries = shape_.heads * shape_.head_dim, keys = shape_.kv_heads * shape_.head_dim;
    const Tensor normed = taken(r.rms_norm(x, parameter(shape_.hidden), 1e-6f));
    const Tensor qkv = taken(
        r.linear(normed, {weight(queries, shape_.hidden), weight(keys, shape_.hidden), weight(keys, shape_.hidden)},
                 {parameter(queries), Tensor{}, parameter(keys)}, nullptr));
    const std::vector<int64_t> widths = {queries, keys, keys};
    auto parts = taken(r.split(qkv, widths));
    if (shape_.qk_norm) parts[0] = taken(r.rms_norm(parts[0], parameter(shape_.head_dim), 1e-6f));
    const auto pairs = static_cast<size_t>(shape_.head_dim / 2);
    std::vector<int> axes(pairs);
    for (size_t i = 0; i < pairs; ++i) axes[i] = static_cast<int>(i % kRopeAxes);
    const Tensor angles = taken(r.rope_angles(std::vector<float>(pairs, 0.1f), 1, 0, axes));
    const Tensor q = taken(r.rope(parts[0], angles, shape_.head_dim)),
                 k = taken(r.rope(parts[1], angles, shape_.head_dim));
    const Tensor attended =
        taken(r.attention(q, k, parts[2], cache_,
                          {.layer = 0,
                           .scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim)),
                           .window = shape_.window,
                           .softcap = shape_.softcap,
                           .sinks = shape_.early ? parameter(shape_.heads) : Tensor{},
                           .slopes = shape_.softcap == 0 ? parameter(shape_.heads) : Tensor{},
                           .window_kind = shape_.qk_norm ? WindowKind::chunked : WindowKind::sliding,
                           .spans = !shape_.qk_norm,
                           .bias = shape_.softcap == 0 && shape_.early ? bias() : RelativeBias{}}));
    const Tensor residual = selected(r, x, shape_.early);
    return taken(r.linear(selected(r, attended, shape_.early), {weight(shape_.hidden, queries)}, {}, &residual));
  }

  // With pairs of low rank of some adapters, of which one lacks each half, added to some columns of y.
  Tensor adapted(Recorder& r, const Tensor& x, const Tensor& y) {
    constexpr int kRank = 32, kFirst = 4, kColumns = kVocabulary - 9;
    const Tensor index = r.adapter_index();
    const Tensor inner = taken(
        r.linear_indexed(x, {weight(kRank, shape_.hidden), nullptr, weight(kRank, shape_.hidden)}, index, nullptr, 0));
    return taken(
        r.linear_indexed(inner, {weight(kColumns, kRank), weight(kColumns, kRank), nullptr}, index, &y, kFirst));
  }

  static Tensor selected(Recorder& r, const Tensor& x, bool here) { return here ? taken(r.select(x)) : x; }

  Tensor feed_forward(Recorder& r, const Tensor& x) {
    const Tensor normed = taken(r.rms_norm(x, parameter(shape_.hidden), 1e-6f));
    if (shape_.experts) return moe(r, normed, x);
    if (shape_.window && shape_.early) return plain(r, normed, x);
    const Tensor both = taken(
        r.linear(normed, {weight(shape_.inner, shape_.hidden), weight(shape_.inner, shape_.hidden)}, {}, nullptr));
    const std::shared_ptr<const Weight> down = weight(shape_.hidden, shape_.inner);
    if (!shape_.qk_norm) return taken(r.linear(taken(r.silu_mul(both)), {down}, {}, &x));
    const Tensor out = taken(r.linear(taken(r.gelu_mul(both)), {down}, {}, nullptr));
    return taken(r.rows(Scale{taken(r.add(x, taken(r.rms_norm(out, parameter(shape_.hidden), 1e-6f)))), {0.9f}}));
  }

  // An MLP without a gate.
  Tensor plain(Recorder& r, const Tensor& normed, const Tensor& x) {
    const Activation how = shape_.qk_norm ? Activation::relu : Activation::gelu_erf;
    const Tensor up =
        taken(r.linear(normed, {weight(shape_.inner, shape_.hidden)}, {parameter(shape_.inner)}, nullptr));
    const Tensor inner = taken(r.rows(ReluAbove{taken(r.activate(up, how)), 0.1f}));
    const Tensor out = taken(r.linear(inner, {weight(shape_.hidden, shape_.inner)}, {}, nullptr));
    const Tensor by = taken(r.linear(normed, {weight(1, shape_.hidden)}, {}, nullptr));
    const Tensor mixes = taken(r.linear(normed, {weight(8, shape_.hidden)}, {}, nullptr));
    const Tensor streams = taken(r.rows(StreamWeights{mixes, {parameter(3)}, {parameter(8)}, 2, 3, 1e-6f}));
    const Tensor joins = taken(r.split(streams, std::vector<int64_t>{1, 7}))[0];
    const Tensor joined = taken(r.rows(AddWeighted{out, taken(r.rows(Clamp{out, 2})), joins, shape_.hidden, 0}));
    const Tensor sized = taken(r.rows(MatchMagnitude{joined, normed, 1e-5f}));
    return taken(r.add(taken(r.rows(AddWeighted{x, sized, by, shape_.hidden, 1})),
                       taken(r.activate(sized, Activation::exp_rest))));
  }

  Tensor moe(Recorder& r, const Tensor& normed, const Tensor& x) {
    ExpertWeights experts{{}, {}, {}, shape_.here};
    const bool gated = shape_.early || !shape_.window;
    if (!gated) experts.activation = Activation::relu2;
    for (int e = 0; e < (shape_.here.empty() ? shape_.experts : static_cast<int>(shape_.here.size())); ++e) {
      if (gated) experts.gate.push_back(weight(shape_.inner, shape_.hidden));
      experts.up.push_back(weight(shape_.inner, shape_.hidden));
      experts.down.push_back(weight(shape_.hidden, shape_.inner));
      if (!shape_.early) continue;
      experts.gate_bias.push_back(parameter(shape_.inner)), experts.up_bias.push_back(parameter(shape_.inner));
      experts.down_bias.push_back(parameter(shape_.hidden));
    }
    const Tensor logits = taken(r.linear(normed, {weight(shape_.experts, shape_.hidden)}, {}, nullptr));
    Routing routing{.chosen = (shape_.experts + 1) / 2, .normalise = shape_.qk_norm, .scale = 1.5f};
    routing.score = shape_.window ? ExpertScore::sigmoid : ExpertScore::softmax;
    if (!gated && shape_.qk_norm) routing.score = ExpertScore::sparsemixer, routing.jitter = 0.1f;
    else if (!gated) routing.score = ExpertScore::sqrt_softplus;
    if (shape_.experts % 2 == 0) routing.groups = 2, routing.best_two = !shape_.early;
    const Tensor bias = parameter(shape_.experts);
    if (shape_.early) experts.scales = parameter(shape_.experts), experts.activation = Activation::clamped;
    const Tensor gate = taken(r.linear(normed, {weight(1, shape_.hidden)}, {}, nullptr));
    const Tensor shared = taken(r.rows(AddGated{x, normed, gate}));
    const Tensor added = taken(
        r.moe(normed, logits, experts, routing, shape_.qk_norm ? nullptr : &shared, shape_.early ? &bias : nullptr));
    return shape_.qk_norm ? taken(r.rows(AddGated{shared, added, gate})) : added;
  }

  Shape shape_;
  std::shared_ptr<ThreadPool> pool_;
  Random random_;
  std::shared_ptr<KvCache> cache_;
  std::shared_ptr<Program> program_;
};

// Sequences that grow step by step, with blocks dealt out in any order.
class Histories {
 public:
  Histories(Random& random, int block_size, int columns)
      : random_(random),
        block_size_(block_size),
        columns_(columns),
        context_(static_cast<size_t>(random.between(1, kMaxSequences)), 0) {
    std::vector<int32_t> free(kBlocks);
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i)
      std::swap(free[i - 1], free[static_cast<size_t>(random.between(0, static_cast<int>(i) - 1))]);
    width_ = kBlocks / static_cast<int>(context_.size());
    table_.assign(free.begin(), free.begin() + width_ * static_cast<int>(context_.size()));
  }

  // Valid until the next call.
  StepInput next() {
    ids_.clear(), positions_.clear(), rows_.clear(), places_.clear(), turned_.clear(), spans_.clear();
    adapters_.clear();
    const bool brings_rows = random_.one_in(2), has_spans = random_.one_in(2), has_adapters = random_.one_in(2);
    start_.assign(1, 0);
    for (size_t s = 0; s < context_.size(); ++s) {
      const int room = std::min(width_ * block_size_ - context_[s], kMaxTokens / static_cast<int>(context_.size()));
      const int count = std::min(room, random_.one_in(2) ? 1 : random_.between(1, kMaxTokens));
      require(count > 0, "room for a step");
      const int first = context_[s] + random_.between(0, count - 1);
      const int past = first + random_.between(1, context_[s] + count - first);  // of a picture
      for (int i = 0; i < count; ++i) {
        const bool inside = has_spans && context_[s] >= first && context_[s] < past;
        spans_.push_back(inside ? first : 0), spans_.push_back(inside ? past : 0);
        ids_.push_back(random_.between(0, kVocabulary - 1)), positions_.push_back(context_[s]++);
        if (brings_rows && random_.one_in(3)) places_.push_back(static_cast<int32_t>(ids_.size()) - 1);
        if (i + 1 == count || random_.one_in(5)) rows_.push_back(static_cast<int32_t>(ids_.size()) - 1);
      }
      start_.push_back(static_cast<int32_t>(ids_.size()));
      if (has_adapters) adapters_.push_back(random_.between(-1, 3));
    }
    given_.emplace(reals(random_, places_.size() * static_cast<size_t>(columns_)));
    StepInput input{ids_, positions_, start_, context_, table_, width_, rows_};
    input.row_places = places_, input.input_rows = given_->get(), input.input_columns = columns_;
    if (has_spans) input.seen_spans = spans_;
    for (size_t i = 0; brings_rows && i < kRopeAxes * ids_.size(); ++i) turned_.push_back(random_.between(0, 99));
    input.rope_positions = turned_;
    input.adapters = adapters_;
    return input;
  }

 private:
  Random& random_;
  int block_size_, columns_, width_;
  std::vector<int32_t> context_, table_, ids_, positions_, start_, rows_, places_, turned_, spans_, adapters_;
  std::optional<Exact<float>> given_;  // no more than the rows that a step brings
};

}  // namespace

void check_program(Random& random) {
  const Shape shape = random_shape(random);
  for (const Level level : levels()) {
    std::shared_ptr<RankGroup> ranks[2];  // the models are each other's other rank, or none
    if (random.one_in(2)) {
      const auto memory = taken(RankMemory::create(2, 8192));
      for (int rank = 0; rank < 2; ++rank) ranks[rank] = taken(RankGroup::join(memory, rank, 60, rank * 20));
    }
    Model several(shape, pool_of(random.between(2, 4)), level, true, ranks[0]),
        alone(shape, pool_of(1), level, false, ranks[1]);
    Histories histories(random, shape.block_size, 2 * shape.hidden);
    for (int step = random.between(2, 4); step > 0; --step) {  // few enough for the blocks of any sequence
      const StepInput input = histories.next();
      std::vector<float> found, wanted;
      std::thread other([&] { wanted = alone.run(input); });
      found = several.run(input);
      other.join();
      require(found.size() == wanted.size() && !std::memcmp(found.data(), wanted.data(), found.size() * sizeof(float)),
              std::string("several threads compute what one does operation by operation, at ") + level_name(level));
      for (const float value : found) require(std::isfinite(value), "logits are numbers");
    }
  }
}

}  // namespace homenode::checks
