#include "attention/token_scores.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "attention/pooled.h"
#include "host/arena.h"
#include "kv/write.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int kBlocks = 12;

// The last tokens of a sequence, which attend to `count` tokens at most, or with a `block` above 1 to so many blocks
// for each KV head: those whose keys have the highest scores.
struct Chosen {
  AttentionShape shape;
  int block_size, context, tokens, block = 1, count, index_heads, index_width;
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
    if (random.one_in(2)) {
      block = random.of<int>({16, 32, 64, 128, 256});
      count = (count - 1) / block + 1;
      shape.kv_heads = index_heads = random.between(1, 5);
    } else {
      shape.value_columns = random.between(1, shape.head_dim);
    }
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

  // Keys of the whole context, of so many heads, and the same as values or nothing beside them.
  std::shared_ptr<KvCache> kept(ThreadPool& pool, const Exact<float>& keys, int width, const Kernels& table_of,
                                int heads = 1, int sides = 1, const Homes* homes = nullptr) {
    auto cache = taken(KvCache::create(pool, {1, heads, width, block_size, kv, sides}, kBlocks, homes));
    const int64_t stride = int64_t(heads) * width;
    take(0, context);
    write_keys_values({keys.get(), stride, sides == 2 ? keys.get() : nullptr, stride, cache.get(), 0, {}}, step,
                      table_of, 0, context, 0, heads);
    take(context - tokens, context);
    return cache;
  }
};

// Scores of one token, from all chunks at once and from each by itself.
Exact<float> scored(const Chosen& of, const ScoreCall& call, const Kernels& table, int token) {
  const int seen = of.step.positions[static_cast<size_t>(token)] + 1, chunks = (seen - 1) / kChunkKeys + 1;
  const Exact<float> together(static_cast<size_t>(seen)), apart(static_cast<size_t>(seen));
  const Exact<std::byte> scratch(score_scratch_bytes(call.cache->shape(), of.index_heads));
  score_tokens(call, of.step, table, {token, 0, chunks}, together.get(), scratch.get());
  for (int chunk = chunks - 1; chunk >= 0; --chunk)
    score_tokens(call, of.step, table, {token, chunk, chunk + 1}, apart.get(), scratch.get());
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

// Blocks of each head that one token chooses, by scores from all chunks at once and from each by itself.
void choose_blocks(const Chosen& of, const ScoreCall& call, const Kernels& table, int token, float* row) {
  const int position = of.step.positions[static_cast<size_t>(token)], chunks = position / kChunkKeys + 1,
            seen = position / of.block + 1;
  const Exact<float> together(static_cast<size_t>(of.index_heads * seen)), apart(together.size());
  const Exact<std::byte> scratch(score_scratch_bytes(call.cache->shape(), of.index_heads));
  score_blocks(call, of.block, of.step, table, {token, 0, chunks}, together.get(), seen, scratch.get());
  for (int chunk = chunks - 1; chunk >= 0; --chunk)
    score_blocks(call, of.block, of.step, table, {token, chunk, chunk + 1}, apart.get(), seen, scratch.get());
  require(!std::memcmp(together.get(), apart.get(), together.size() * sizeof(float)),
          "a block's score does not depend on how chunks are divided");
  for (int head = 0; head < of.index_heads; ++head) {
    float* scores = together.get() + int64_t(head) * seen;
    scores[seen - 1] = std::numeric_limits<float>::infinity();
    choose_highest(scores, seen, of.count, row + int64_t(head) * of.count);
  }
}

Exact<float> choices(const Chosen& of, const ScoreCall& call, const Kernels& table) {
  if (of.block > 1) {
    const int64_t stride = int64_t(of.index_heads) * of.count;
    Exact<float> blocks(static_cast<size_t>(of.tokens * stride));
    for (int token = 0; token < of.tokens; ++token)
      choose_blocks(of, call, table, token, blocks.get() + token * stride);
    return blocks;
  }
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

// With room for what threads share, as in steps of few tokens, or without.
Exact<float> attended(const Chosen& of, const AttentionCall& to, const Exact<float>& positions, const Kernels& table,
                      ThreadPool& pool, bool share = false) {
  const int64_t stride = int64_t(of.shape.kv_heads) * of.shape.group * of.shape.value_dim();
  Exact<float> out(static_cast<size_t>(of.tokens * stride));
  AttentionCall call = to;
  call.out = out.get(), call.out_stride = stride;
  const int threads = pool.size();
  const Choice choice{of.count, of.block};
  const StepLimits limits{of.tokens, 1, 1, kBlocks};
  const ChosenTokens chosen{positions.get(), int64_t(of.block > 1 ? of.index_heads : 1) * of.count, choice};
  const size_t own = (ChosenScratch::own_bytes(of.shape, *call.cache) + 63) / 64 * 64;
  const Exact<std::byte> scratch(own * static_cast<size_t>(threads)),
      gathered(ChosenScratch::gathered_bytes(*call.cache, choice, limits)),
      partials(ChosenScratch::partial_bytes(of.shape, *call.cache, choice, limits, threads));
  share = share && of.tokens <= kFewTokens;
  std::byte* keys = share && gathered.size() ? gathered.get() : nullptr;
  auto* results = share && partials.size() ? reinterpret_cast<float*>(partials.get()) : nullptr;
  if (keys) pool.run([&](int thread) { gather_chosen(call, chosen, of.step, of.shape, keys, thread, threads); });
  pool.run([&](int thread) {
    std::byte* mine = scratch.get() + own * static_cast<size_t>(thread);
    attend_chosen(call, chosen, of.step, of.shape, table, {mine, keys, results}, thread, threads);
  });
  if (results && divides_chunks(of.step, of.shape, threads))
    pool.run([&](int thread) { merge_chosen(call, chosen, of.step, of.shape, table, results, thread, threads); });
  return out;
}

// To a window of a few tokens and to rows of every `ratio` tokens, which are keys of the same tokens; `count` chosen by
// the scores of such rows, or all (0).
Exact<float> attended_to_both(const Chosen& of, const AttentionCall& to, const WindowRows& rows, const ScoreCall& index,
                              int count, const Kernels& table, ThreadPool& pool, bool share) {
  const int64_t stride = int64_t(of.shape.group) * of.shape.value_dim();
  Exact<float> out(static_cast<size_t>(of.tokens * stride)), scores(static_cast<size_t>(of.context)),
      positions(static_cast<size_t>(of.tokens * std::max(count, 1)));
  const Exact<std::byte> scoring(score_scratch_bytes(index.cache->shape(), index.heads, index.windows));
  for (int token = 0; count && token < of.tokens; ++token) {
    const int seen = index.seen(of.step.positions[static_cast<size_t>(token)]);
    score_tokens(index, of.step, table, {token, 0, chunks_of(seen)}, scores.get(), scoring.get());
    choose_highest(scores.get(), seen, count, positions.get() + token * count, rows.ratio);
  }
  AttentionCall call = to;
  call.out = out.get(), call.out_stride = stride;
  AttentionShape shape = of.shape;
  shape.window = 3 * rows.ratio;
  const int windows = kBlocks * of.block_size / rows.ratio, most = count ? std::min(count, windows) : windows;
  const PooledRows pooled{rows, count ? positions.get() : nullptr, count, count};
  const size_t own = (PooledScratch::own_bytes(shape, rows, most) + 63) / 64 * 64;
  const Exact<std::byte> scratch(own * static_cast<size_t>(pool.size())),
      shared(PooledScratch::shared_bytes(rows, most, of.tokens));
  std::byte* together = share && of.tokens <= kFewTokens ? shared.get() : nullptr;
  if (together) pool.run([&](int thread) { share_rows(pooled, of.step, together, most, thread, pool.size()); });
  pool.run([&](int thread) {
    std::byte* mine = scratch.get() + own * static_cast<size_t>(thread);
    attend_pooled(call, pooled, of.step, shape, table, {mine, together, most}, thread, pool.size());
  });
  return out;
}

// One thread, and several with their homes.
struct Pools {
  ThreadPool& one;
  ThreadPool& several;
  const Homes& homes;
};

// Rows of windows are kept, scored and attended to alike by one thread and by several, at homes and not.
void check_windows(Chosen& of, const AttentionCall& call, const Exact<float>& keys, const ScoreCall& index,
                   const Exact<float>& index_keys, const Kernels& table, const Pools& pools) {
  const int ratio = 2 + of.count % 40, ends = (kTileKeys + ratio - 1) / ratio;
  const auto kept = [&](ThreadPool& pool, const Exact<float>& from, int width, const Homes* at) {
    const int each = (ends * width + kTileKeys - 1) / kTileKeys, even = each + each % 2;
    auto cache = taken(KvCache::create(pool, {1, 1, even, of.block_size, of.kv, 1}, kBlocks, at));
    const WindowRows rows{cache.get(), 0, ratio, width};
    require(rows.fit(), "rows of windows fit");
    const Exact<std::byte> scratch(static_cast<size_t>(rows.tile_bytes()));
    of.take(0, of.context);
    rows.write(from.get(), width, of.step, table, 0, of.context, scratch.get());
    of.take(of.context - of.tokens, of.context);
    return cache;
  };
  const auto rows = kept(pools.one, keys, of.shape.head_dim, nullptr),
             scored = kept(pools.one, index_keys, of.index_width, nullptr),
             apart = kept(pools.several, keys, of.shape.head_dim, &pools.homes);
  const WindowRows of_rows{rows.get(), 0, ratio, of.shape.head_dim}, of_index{scored.get(), 0, ratio, of.index_width},
      at_homes{apart.get(), 0, ratio, of.shape.head_dim};
  ScoreCall choosing = index;
  choosing.cache = scored.get(), choosing.windows = &of_index;
  for (const int count : {0, 1 + of.count / 7}) {
    const Exact<float> both = attended_to_both(of, call, of_rows, choosing, count, table, pools.one, false);
    for (const WindowRows* from : {&of_rows, &at_homes}) {
      for (const bool share : {false, true}) {
        const Exact<float> other = attended_to_both(of, call, *from, choosing, count, table, pools.several, share);
        require(!std::memcmp(both.get(), other.get(), both.size() * sizeof(float)),
                "several threads attend to rows of windows as one does");
      }
    }
  }
}

Exact<float> attended_to_all(const Chosen& of, const AttentionCall& to, const Kernels& table, ThreadPool& pool) {
  const int64_t stride = int64_t(of.shape.kv_heads) * of.shape.group * of.shape.value_dim();
  Exact<float> out(static_cast<size_t>(of.tokens * stride));
  AttentionCall call = to;
  call.out = out.get(), call.out_stride = stride;
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
  const int heads = of.shape.kv_heads, sides = of.block > 1 ? 2 : 1;
  const int64_t query_width = int64_t(heads) * of.shape.group * of.shape.head_dim,
                index_width = int64_t(of.index_heads) * of.index_width;
  const Exact<float> q = reals(random, tokens * static_cast<size_t>(query_width)),
                     k = reals(random, context * static_cast<size_t>(heads * of.shape.head_dim)),
                     index_q = reals(random, tokens * static_cast<size_t>(index_width)),
                     index_k = reals(random, context * static_cast<size_t>(of.index_width)),
                     weights = reals(random, tokens * static_cast<size_t>(of.index_heads));
  if (random.one_in(4)) std::fill_n(weights.get(), weights.size(), 0.0f);  // all scores are equal
  const auto one = pool_of(1), several = pool_of(random.between(2, 4));
  Homes homes{{0}, {}};
  while (std::ssize(homes.of_thread) < several->size())
    homes.of_thread.push_back(homes.of_thread.back() + (random.one_in(3) ? 0 : 1));
  for (const Level level : levels()) {
    const Kernels& table = kernels(level);
    const auto index = of.kept(*one, index_k, of.index_width, table),
               keys = of.kept(*one, k, of.shape.head_dim, table, heads, sides);
    const Exact<float> positions =
        choices(of, {index_q.get(), index_width, weights.get(), of.index_heads, of.index_heads, index.get(), 0}, table);
    const AttentionCall call{q.get(), query_width, nullptr, 0, keys.get(), 0, 0.2f, 0, {}};
    const Exact<float> found = attended(of, call, positions, table, *one);
    const auto same = [&](const Exact<float>& other) {
      return !std::memcmp(found.get(), other.get(), found.size() * sizeof(float));
    };
    for (const bool share : {false, true})
      require(same(attended(of, call, positions, table, *several, share)), "several threads compute what one does");
    const auto apart = of.kept(*several, k, of.shape.head_dim, table, heads, sides, &homes);
    AttentionCall at_homes = call;
    at_homes.cache = apart.get();
    of.shape.groups = apart->head_groups();
    require(same(attended(of, at_homes, positions, table, *several, true)), "homes compute what one does");
    of.shape.groups.clear();
    if (of.shape.value_columns) {
      const ScoreCall scoring{index_q.get(), index_width, weights.get(), of.index_heads, of.index_heads, nullptr, 0};
      check_windows(of, call, k, scoring, index_k, table, {*one, *several, homes});
    }
    if (of.count * of.block >= of.context)
      require(same(attended_to_all(of, call, table, *several)), "all tokens chosen are all tokens");
  }
}

}  // namespace homenode::checks
