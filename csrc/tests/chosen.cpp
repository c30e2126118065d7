#include "kernels/attention_chosen.h"

#include <algorithm>
#include <numeric>

#include "kernels/kv_write.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int kBlocks = 12;

// The last tokens of a sequence, which attend to `count` tokens at most: those whose keys have the highest scores.
struct Chosen {
  AttentionShape shape;
  int block_size, context, tokens, count, index_heads, index_width;
  KvType kv;
  Step step;
  std::vector<int32_t> table;

  explicit Chosen(Random& random)
      : shape{1, random.between(1, 70), 2 * random.between(1, 40), 0},
        block_size(32 * random.between(1, 2)),
        context(random.between(1, kBlocks * block_size)),
        tokens(random.between(1, std::min(context, 20))),
        count(random.one_in(4) ? context : random.between(1, context)),
        index_heads(random.between(1, 40)),
        index_width(2 * random.between(1, 20)),
        kv(random.of<KvType>({KvType::f32, KvType::bf16, KvType::int8})),
        table(kBlocks) {
    shape.value_columns = random.between(1, shape.head_dim);
    std::iota(table.rbegin(), table.rend(), 0);
  }

  void take(int first, int end) {
    std::vector<int32_t> positions(static_cast<size_t>(end - first));
    std::iota(positions.begin(), positions.end(), first);
    const std::vector<int32_t> ids(positions.size(), 0), start = {0, end - first}, length = {end};
    const StepLimits limits{kBlocks * block_size, 1, 1, kBlocks};
    const auto error =
        step.assign({ids, positions, start, length, table, kBlocks, {}}, {limits, 1, kBlocks, block_size});
    require(!error, error ? error->message : "");
  }

  // Keys alone of the whole context.
  std::shared_ptr<KvCache> kept(ThreadPool& pool, const Exact<float>& keys, int width, const Kernels& table_of) {
    auto cache = taken(KvCache::create(pool, {1, 1, width, block_size, kv, 1}, kBlocks));
    take(0, context);
    write_keys_values({keys.get(), width, nullptr, 0, cache.get(), 0, {}}, step, table_of, 0, context, 0, 1);
    take(context - tokens, context);
    return cache;
  }
};

// Scores of one token, from all chunks at once and from each by itself.
Exact<float> scored(const Chosen& of, const ScoreCall& call, const Kernels& table, int token) {
  const int seen = of.step.positions[static_cast<size_t>(token)] + 1, chunks = (seen - 1) / kChunkKeys + 1;
  const Exact<float> together(static_cast<size_t>(seen)), apart(static_cast<size_t>(seen));
  const Exact<std::byte> scratch(score_scratch_bytes(call.cache->shape(), of.index_heads));
  score_tokens(call, of.step, table, token, 0, chunks, together.get(), scratch.get());
  for (int chunk = chunks - 1; chunk >= 0; --chunk)
    score_tokens(call, of.step, table, token, chunk, chunk + 1, apart.get(), scratch.get());
  require(!std::memcmp(together.get(), apart.get(), together.size() * sizeof(float)),
          "a score does not depend on how chunks are divided");
  Exact<float> found(static_cast<size_t>(seen));
  std::copy_n(together.get(), seen, found.get());
  return found;
}

// Of equal scores the earliest.
std::vector<int32_t> highest(const Exact<float>& scores, int count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  std::sort(order.begin(), order.end());
  return order;
}

Exact<float> choices(const Chosen& of, const ScoreCall& call, const Kernels& table) {
  const auto width = static_cast<size_t>(of.count);
  Exact<float> positions(static_cast<size_t>(of.tokens) * width);
  for (int token = 0; token < of.tokens; ++token) {
    const Exact<float> scores = scored(of, call, table, token);
    float* row = positions.get() + static_cast<size_t>(token) * width;
    choose_highest(scores.get(), static_cast<int>(scores.size()), of.count, row);
    const std::vector<int32_t> wanted = highest(scores, of.count);
    require(!std::memcmp(row, wanted.data(), wanted.size() * sizeof(int32_t)), "the highest scores are chosen");
  }
  return positions;
}

Exact<float> attended(const Chosen& of, const AttentionCall& to, const Exact<float>& positions, const Kernels& table,
                      ThreadPool& pool) {
  Exact<float> out(static_cast<size_t>(of.tokens * of.shape.group * of.shape.value_dim()));
  AttentionCall call = to;
  call.out = out.get(), call.out_stride = int64_t(of.shape.group) * of.shape.value_dim();
  const size_t own = (chosen_scratch_bytes(of.shape, *call.cache) + 63) / 64 * 64;
  const Exact<std::byte> scratch(own * static_cast<size_t>(pool.size()));
  pool.run([&](int thread) {
    attend_chosen(call, {positions.get(), of.count, of.count}, of.step, of.shape, table,
                  scratch.get() + own * static_cast<size_t>(thread), thread, pool.size());
  });
  return out;
}

Exact<float> attended_to_all(const Chosen& of, const AttentionCall& to, const Kernels& table, ThreadPool& pool) {
  Exact<float> out(static_cast<size_t>(of.tokens * of.shape.group * of.shape.value_dim()));
  AttentionCall call = to;
  call.out = out.get(), call.out_stride = int64_t(of.shape.group) * of.shape.value_dim();
  AttentionPlan plan(of.shape, {kBlocks * of.block_size, 1, 1, kBlocks}, of.block_size, pool.size());
  plan.divide(of.step);
  const size_t own = AttentionScratch::thread_bytes(of.shape);
  const Exact<std::byte> memory(own * static_cast<size_t>(pool.size())),
      partials(static_cast<size_t>(plan.partial_bytes()));
  const AttentionScratch scratch(memory.get(), own, partials.get(), of.shape.value_dim());
  pool.run([&](int thread) { attend(call, of.step, plan, scratch, table, nullptr, thread); });
  return out;
}

}  // namespace

void check_chosen(Random& random) {
  Chosen of(random);
  const auto context = static_cast<size_t>(of.context), tokens = static_cast<size_t>(of.tokens);
  const int64_t query_width = int64_t(of.shape.group) * of.shape.head_dim,
                index_width = int64_t(of.index_heads) * of.index_width;
  const Exact<float> q = reals(random, tokens * static_cast<size_t>(query_width)),
                     k = reals(random, context * static_cast<size_t>(of.shape.head_dim)),
                     index_q = reals(random, tokens * static_cast<size_t>(index_width)),
                     index_k = reals(random, context * static_cast<size_t>(of.index_width)),
                     weights = reals(random, tokens * static_cast<size_t>(of.index_heads));
  if (random.one_in(4)) std::fill_n(weights.get(), weights.size(), 0.0f);  // all scores are equal
  const auto one = pool_of(1), several = pool_of(random.between(2, 4));
  for (const Level level : levels()) {
    const Kernels& table = kernels(level);
    const auto index = of.kept(*one, index_k, of.index_width, table), keys = of.kept(*one, k, of.shape.head_dim, table);
    const Exact<float> positions =
        choices(of, {index_q.get(), index_width, weights.get(), of.index_heads, of.index_heads, index.get(), 0}, table);
    const AttentionCall call{q.get(), query_width, nullptr, 0, keys.get(), 0, 0.2f, 0, {}};
    const Exact<float> found = attended(of, call, positions, table, *one);
    const auto same = [&](const Exact<float>& other) {
      return !std::memcmp(found.get(), other.get(), found.size() * sizeof(float));
    };
    require(same(attended(of, call, positions, table, *several)), "several threads compute what one does");
    if (of.count == of.context)
      require(same(attended_to_all(of, call, table, *several)), "all tokens chosen are all tokens");
  }
}

}  // namespace homenode::checks
