#include "attention/attention.h"

#include <numeric>

#include "host/arena.h"
#include "kv/write.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int kBlocks = 12;

// One layer of one sequence, whose last tokens are a step.
struct Layer {
  AttentionShape shape;
  int block_size, context, tokens, half;
  KvType kv;
  std::shared_ptr<ThreadPool> pool = pool_of(1);
  Step step;
  std::vector<int32_t> positions, table;

  explicit Layer(Random& random)
      : shape{random.between(1, 3), random.between(1, 9), 2 * random.between(1, 60),
              random.one_in(3) ? random.between(1, 300) : 0},
        block_size(32 * random.between(1, 2)),
        context(random.between(1, kBlocks * block_size)),
        tokens(random.between(1, std::min(context, 60))),
        half(random.between(1, shape.head_dim / 2)),
        kv(random.of<KvType>({KvType::f32, KvType::bf16, KvType::int8})),
        table(kBlocks) {
    std::iota(table.rbegin(), table.rend(), 0);
    if (random.one_in(2)) shape.value_columns = random.between(1, shape.head_dim);
    if (random.one_in(2)) shape.window_kind = WindowKind::chunked;
  }
  int64_t query_width() const { return int64_t(shape.kv_heads) * shape.group * shape.head_dim; }
  int64_t key_width() const { return int64_t(shape.kv_heads) * shape.head_dim; }

  // A step of the tokens first .. end - 1.
  void take(int first, int end) {
    positions.resize(static_cast<size_t>(end - first));
    std::iota(positions.begin(), positions.end(), first);
    const std::vector<int32_t> ids(positions.size(), 0), start = {0, end - first}, length = {end};
    const StepLimits limits{kBlocks * block_size, 1, 1, kBlocks};
    const auto error =
        step.assign({ids, positions, start, length, table, kBlocks, {}}, {limits, 1, kBlocks, block_size});
    require(!error, error ? error->message : "");
  }
};

// What a pool computes for the step, twice, as two layers would; queries are [tokens, query_width] of exactly that
// size.
Exact<float> attended(const Layer& layer, KvCache& cache, const Exact<float>& queries, const NormRope& transform,
                      const Kernels& table, ThreadPool& pool) {
  const int64_t out_width = layer.query_width() / layer.shape.head_dim * layer.shape.value_dim();
  Exact<float> out(static_cast<size_t>(layer.tokens * out_width));
  const int threads = pool.size();
  AttentionShape shape = layer.shape;
  shape.homes = cache.block_homes();
  AttentionPlan plan(shape, {kBlocks * layer.block_size, 1, 1, kBlocks}, layer.block_size, threads);
  plan.divide(layer.step);
  require(plan.share_begin(0) == 0 && plan.share_begin(threads) == static_cast<int>(plan.items().size()),
          "shares are all items");
  const size_t own_bytes = AttentionScratch::thread_bytes(layer.shape);
  Exact<std::byte> own(own_bytes * static_cast<size_t>(threads));
  Exact<std::byte> partials(static_cast<size_t>(plan.partial_bytes()));
  RunClaims claims(pool.groups());
  const int64_t width = layer.query_width();
  const AttentionCall call{queries.get(), width, out.get(), out_width, &cache, 0, 0.2f, 0, transform};
  const AttentionScratch scratch(own.get(), own_bytes, partials.get(), layer.shape.value_dim());
  for (int times = 0; times < 2; ++times) {
    pool.run(
        [&](int thread) { attend(call, layer.step, plan, scratch, table, threads > 1 ? &claims : nullptr, thread); });
  }
  return out;
}

// Every head of `rows` rows through the two operations a transform stands for.
Exact<float> transformed(const Exact<float>& x, int64_t width, int64_t head_dim, const NormRope& how,
                         const Kernels& table) {
  Exact<float> out(x.size());
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); i += head_dim) {
    table.rms_norm(x.get() + i, how.norm_weight, out.get() + i, head_dim, how.eps);
    table.rotate(out.get() + i, out.get() + i, how.angles + i / width * how.angles_stride, how.half, head_dim);
  }
  return out;
}

void require_same(const Exact<float>& a, const Exact<float>& b, const char* what, Level level) {
  require(a.size() == b.size() && !std::memcmp(a.get(), b.get(), a.size() * sizeof(float)),
          std::string(what) + ", at " + level_name(level));
}

// Rows that go into a layer's attention, and what is done to those of queries and keys on loading.
struct AttentionRows {
  const Exact<float>&q, &k, &v;
  NormRope query, key;
};

// Keys of all tokens, written in two parts cut anywhere; then attention of the step's. `homes`: of the pool's threads.
Exact<float> run(Layer& layer, Random random, const AttentionRows& rows, const Kernels& table, ThreadPool& pool,
                 const Homes* homes = nullptr) {
  const auto cache = taken(KvCache::create(
      pool,
      {1, layer.shape.kv_heads, layer.shape.head_dim, layer.block_size, layer.kv, layer.shape.value_columns ? 1 : 2},
      kBlocks, homes));
  layer.take(0, layer.context);
  const float* values = layer.shape.value_columns ? nullptr : rows.v.get();
  const KvWrite write{rows.k.get(), layer.key_width(), values, layer.key_width(), cache.get(), 0, rows.key};
  const int cut = random.between(0, layer.context), heads = layer.shape.kv_heads;
  write_keys_values(write, layer.step, table, cut, layer.context, 0, heads);
  write_keys_values(write, layer.step, table, 0, cut, 0, heads);
  layer.take(layer.context - layer.tokens, layer.context);
  return attended(layer, *cache, rows.q, rows.query, table, pool);
}

// One token of one sequence, of any length: no thread has much more to do than its part, however few KV heads there
// are.
void check_shares(Random& random) {
  const int threads = random.between(2, 16), block_size = 64, blocks = random.between(1, 1200),
            context = random.between(1, blocks * block_size);
  const AttentionShape shape{random.between(1, 4), random.between(1, kQueryRows), 16, 0};
  const StepLimits limits{blocks * block_size, 1, 1, blocks};
  const std::vector<int32_t> ids = {0}, positions = {context - 1}, start = {0, 1}, length = {context},
                             table(static_cast<size_t>(blocks), 0);
  Step step;
  const auto error = step.assign({ids, positions, start, length, table, blocks, {}}, {limits, 1, blocks, block_size});
  require(!error, error ? error->message : "");
  AttentionPlan plan(shape, limits, block_size, threads);
  plan.divide(step);
  const int chunks = (context + kChunkKeys - 1) / kChunkKeys * shape.kv_heads,
            run = std::max(1, chunks / (4 * threads));
  for (int thread = 0; thread < threads; ++thread) {
    int mine = 0;
    for (int i = plan.share_begin(thread); i < plan.share_begin(thread + 1); ++i) {
      const AttentionItem& item = plan.items()[static_cast<size_t>(i)];
      mine += item.chunk_end - item.chunk_begin;
    }
    require(mine <= chunks / threads + 2 * run,
            "chunks of a thread are about its part: " + std::to_string(mine) + " of " + std::to_string(chunks));
  }
}

// The rows of any number of tokens: as few tiles as can be, of which none is small beside others.
void check_tiles(Random& random) {
  const int block_size = 64, blocks = random.between(1, 8), context = random.between(1, blocks * block_size),
            tokens = random.between(1, context), group = random.between(1, 2 * kQueryRows);
  const AttentionShape shape{random.between(1, 3), group, 16, 0};
  const StepLimits limits{blocks * block_size, 1, 1, blocks};
  std::vector<int32_t> ids(static_cast<size_t>(tokens), 0), positions(ids);
  for (int i = 0; i < tokens; ++i) positions[static_cast<size_t>(i)] = context - tokens + i;
  const std::vector<int32_t> start = {0, tokens}, length = {context}, table(static_cast<size_t>(blocks), 0);
  Step step;
  const auto error = step.assign({ids, positions, start, length, table, blocks, {}}, {limits, 1, blocks, block_size});
  require(!error, error ? error->message : "");
  AttentionPlan plan(shape, limits, block_size, 1);
  plan.divide(step);
  const int rows = tokens * group, wanted = (rows + kQueryRows - 1) / kQueryRows;
  int seen = 0;
  for (const AttentionTile& tile : plan.tiles()) {
    require(tile.rows == rows / wanted || tile.rows == (rows + wanted - 1) / wanted, "tiles are of about equal size");
    seen += tile.rows;
  }
  require(static_cast<int>(plan.tiles().size()) == wanted * shape.kv_heads && seen == rows * shape.kv_heads,
          "each row is in one tile of each KV head, and there are as few tiles as can be");
}

}  // namespace

void check_attention(Random& random) {
  check_shares(random);
  check_tiles(random);
  Layer layer(random);
  const auto tokens = static_cast<size_t>(layer.tokens), context = static_cast<size_t>(layer.context);
  const auto head = static_cast<size_t>(layer.shape.head_dim), half = static_cast<size_t>(layer.half);
  const Exact<float> q = reals(random, tokens * static_cast<size_t>(layer.query_width())),
                     k = reals(random, context * static_cast<size_t>(layer.key_width())), v = reals(random, k.size()),
                     norm = reals(random, head), angles = reals(random, context * 2 * half);
  const int64_t stride = 2 * layer.half;
  const NormRope query{norm.get(), 1e-6f, angles.get(), stride, layer.half},
      key{norm.get(), 1e-5f, angles.get(), stride, layer.half};
  const auto several = pool_of(random.between(2, 4));
  Homes homes{{0}, {}};
  for (int thread = 1; thread < several->size(); ++thread)
    homes.of_thread.push_back(homes.of_thread.back() + (random.one_in(3) ? 0 : 1));
  for (const Level level : levels()) {
    const Kernels& table = kernels(level);
    const AttentionRows rows{q, k, v, query, key};
    const Exact<float> found = run(layer, random, rows, table, *layer.pool);
    require_same(found, run(layer, random, rows, table, *several), "several threads compute what one does", level);
    require_same(found, run(layer, random, rows, table, *several, &homes),
                 "threads at several homes compute what one does", level);
    const Exact<float> rotated_q = transformed(q, layer.query_width(), layer.shape.head_dim, query, table);
    const Exact<float> rotated_k = transformed(k, layer.key_width(), layer.shape.head_dim, key, table);
    require_same(found, run(layer, random, {rotated_q, rotated_k, v, {}, {}}, table, *layer.pool),
                 "norm and rotation on loading are those of whole rows", level);
  }
}

}  // namespace homenode::checks
