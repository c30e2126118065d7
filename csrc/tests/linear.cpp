#include <algorithm>
#include <cmath>

#include "linear/group.h"
#include "linear/share.h"
#include "linear/tuning.h"
#include "tests/matrices.h"

namespace homenode::checks {
namespace {

void check_embedding(Random& random, ThreadPool& pool, const Matrix& table) {
  const int64_t tokens = random.between(1, 9), columns = table.weight->columns, stride = columns + random.between(0, 5);
  Exact<int32_t> ids(static_cast<size_t>(tokens));
  // Rows before and after those of the table
  const auto rows = static_cast<int>(table.weight->rows), elsewhere = random.of<int>({0, 3});
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = random.between(0, rows + 2 * elsewhere - 1);
  Exact<float> out(static_cast<size_t>((tokens - 1) * stride + columns));
  pool.run([&](int thread) {
    embedding_rows(*table.weight, elsewhere, ids.get(), tokens, out.get(), stride, thread, pool.size());
  });
  for (int64_t t = 0; t < tokens; ++t) {
    const int row = ids[static_cast<size_t>(t)] - elsewhere;
    const std::vector<float> zeros(static_cast<size_t>(columns));
    const float* wanted = row >= 0 && row < rows ? table.values.data() + row * columns : zeros.data();
    require(!std::memcmp(out.get() + t * stride, wanted, static_cast<size_t>(columns) * sizeof(float)),
            std::string("an embedded row is the stored one, ") + format_name(table.weight->format));
  }
}

void check_format(Random& random, Format format) {
  const auto pool = pool_of(random.between(1, 3));
  const int64_t columns = random_columns(random, format), tokens = random_tokens(random),
                stride = columns + random.between(0, 40);
  std::vector<Matrix> matrices;
  std::vector<Exact<float>> kept;
  std::vector<const Weight*> weights;
  std::vector<const float*> biases;
  int64_t outputs = 0;
  for (int i = random.between(1, 3); i > 0; --i) {
    matrices.push_back(random_matrix(random, *pool, format, random.between(1, 100), columns));
    weights.push_back(matrices.back().weight.get());
    kept.push_back(reals(random, static_cast<size_t>(weights.back()->rows)));
    biases.push_back(random.one_in(2) ? kept.back().get() : nullptr);
    outputs += weights.back()->rows;
  }
  check_embedding(random, *pool, matrices.front());
  const Exact<float> x = reals(random, static_cast<size_t>((tokens - 1) * stride + columns)),
                     residual = reals(random, static_cast<size_t>(tokens * outputs));
  const bool adds = random.one_in(2);
  for (const Level level : levels()) {
    const Product product{weights, biases, columns, outputs, level};
    const Exact<float> all = product.of(*pool, x.get(), stride, tokens, adds ? residual.get() : nullptr);
    const int64_t one = random.between(0, static_cast<int>(tokens) - 1);
    const Exact<float> alone = product.of(*pool_of(2 + random.between(0, 1)), x.get() + one * stride, stride, 1,
                                          adds ? residual.get() + one * outputs : nullptr);
    require(!std::memcmp(all.get() + one * outputs, alone.get(), static_cast<size_t>(outputs) * sizeof(float)),
            std::string("a row alone is the row of a batch, ") + format_name(format) + " at " + level_name(level));
    require(std::all_of(all.get(), all.get() + all.size(), [](float v) { return std::isfinite(v); }),
            "every result was written");
  }
}

// As no processor wants it otherwise.
LinearTable untuned(LinearTable table) {
  table.prefetch_into_l2 = false;
  table.float_slice_bytes = table.slice_bytes;
  for (Tiles& tiles : table.floats) tiles.prefetch_from_tokens = 1;
  for (CodedTiles& tiles : table.coded) tiles.prefetch_from_tokens = tiles.min_prefetch_tile = 1;
  return table;
}

// Some rows of activations and a weight of some groups, to be multiplied by a GroupProduct at any level.
class Rows {
 public:
  Rows(Random& random, Format format, int64_t tokens, int64_t groups)
      : columns_(random_columns(random, format)),
        tokens_(tokens),
        groups_(groups),
        pool_(pool_of(1)),
        matrix_(random_matrix(random, *pool_, format, static_cast<int>(groups * kGroupRows), columns_)),
        x_(reals(random, static_cast<size_t>(tokens * columns_))),
        scratch_(linear_scratch_bytes(tokens, columns_, &weight_, 1)) {
    std::fill_n(scratch_.get(), scratch_.size(), uint8_t(0));
  }

  // Once at each level, before the rows are multiplied.
  void prepare() const { linear_prepare(call(), 0, 1); }

  // The sums of n rows from `first` on, [group][row][32] and some more: `at_once` groups together.
  Exact<float> multiply(const LinearTable& table, int64_t first, int64_t n, int64_t at_once) const {
    Exact<float> found(static_cast<size_t>((groups_ * n + kSpareRows) * kGroupRows));
    const GroupProduct product(*weight_, rows_for(call(), *weight_, table), table);
    for (int64_t group = 0; group < groups_; group += at_once)
      product.multiply(weight_->data(0, 0) + group * product.group_bytes(), std::min(at_once, groups_ - group), first,
                       n, found.get() + group * n * kGroupRows);
    return found;
  }

  // Whether all sums but those of the spare rows are the same bits.
  bool same(const Exact<float>& a, const Exact<float>& b, int64_t n) const {
    return !std::memcmp(a.get(), b.get(), static_cast<size_t>(groups_ * n * kGroupRows) * sizeof(float));
  }

 private:
  LinearArgs call() const {
    return {x_.get(), columns_, tokens_, &weight_, 1, nullptr, nullptr, 0, nullptr, 0, scratch_.get()};
  }

  int64_t columns_, tokens_, groups_;
  decltype(pool_of(1)) pool_;
  Matrix matrix_;
  const Weight* weight_ = matrix_.weight.get();
  Exact<float> x_;
  Exact<uint8_t> scratch_;
};

// How weights are asked for changes no value, and spare rows touch nobody's memory.
void check_tuning(Random& random, Format format) {
  const int64_t tokens = random.between(1, 40), first = random.between(0, static_cast<int>(tokens) - 1);
  const int64_t n = random.one_in(2) ? std::min<int64_t>(random.between(1, 5), tokens - first) : tokens - first;
  const Rows rows(random, format, tokens, 1);
  for (const Level level : levels()) {
    const LevelScope scope(level);
    const LinearTable plain = untuned(linear_table(level));
    rows.prepare();
    const Exact<float> wanted = rows.multiply(plain, first, n, 1),
                       found = rows.multiply(tuned_for(Processor::zen4, plain), first, n, 1);
    require(rows.same(wanted, found, n), std::string("asking for weights in another way changes no value, ") +
                                             format_name(format) + " at " + level_name(level));
  }
}

// Groups multiplied together have the values they have alone, wherever their columns are cut.
void check_groups(Random& random, Format format) {
  const int tokens = random.between(1, 80), n = random.between(1, tokens), first = random.between(0, tokens - n);
  const int64_t groups = random.between(1, static_cast<int>(kGroupsAtOnce));
  const Rows rows(random, format, tokens, groups);
  for (const Level level : levels()) {
    const LevelScope scope(level);
    LinearTable table = linear_table(level);
    rows.prepare();
    const Exact<float> wanted = rows.multiply(table, first, n, 1);
    table.block_bytes = 1;
    table.float_slice_bytes = random.of<int64_t>({1, 4096, table.float_slice_bytes});
    for (Tiles& tiles : table.floats) tiles.depth_bytes = random.of<int64_t>({1, 4096, 1 << 20});
    require(rows.same(wanted, rows.multiply(table, first, n, groups), n),
            std::string("groups together have the values they have alone, ") + format_name(format) + " at " +
                level_name(level));
  }
}

// Threads help those with the same path and nobody else, and who is helped by one helps it.
void check_circles(Random& random) {
  std::vector<GroupPath> paths(static_cast<size_t>(random.between(1, 20)));
  for (GroupPath& path : paths) path = {0, random.between(0, 2)};
  const RunClaims claims(paths);
  const int threads = static_cast<int>(paths.size());
  std::vector<int> helpers(paths.size());
  for (int thread = 0; thread < threads; ++thread) {
    require(claims.circle(thread)[0] == thread, "a thread's own share is first");
    for (const int owner : claims.circle(thread)) {
      if (owner == RunClaims::kNobody) continue;
      require(paths[static_cast<size_t>(owner)] == paths[static_cast<size_t>(thread)], "neighbours share a cache");
      const RunClaims::Circle& back = claims.circle(owner);
      require(std::count(back.begin(), back.end(), thread) == 1, "neighbours help each other");
      ++helpers[static_cast<size_t>(owner)];
    }
  }
  for (int thread = 0; thread < threads; ++thread) {
    const auto mates = std::count(paths.begin(), paths.end(), paths[static_cast<size_t>(thread)]);
    require(helpers[static_cast<size_t>(thread)] > (mates > 1 && mates % RunClaims::kCircle != 1 ? 1 : 0),
            "nobody is left without help who has neighbours");
  }
}

}  // namespace

void check_linear(Random& random) {
  for (int times = 0; times < 20; ++times) check_circles(random);
  for (const Format format : kFormats) {
    require(has_kernel(format), format_name(format));
    check_format(random, format);
    for (int times = 0; times < 4; ++times) check_tuning(random, format), check_groups(random, format);
  }
}

}  // namespace homenode::checks
