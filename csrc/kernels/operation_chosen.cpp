#include "kernels/operation_chosen.h"

#include <algorithm>

namespace homenode {
namespace {

constexpr int kFewTokens = 16;

int chunks_of(const Step& step, int token) { return step.positions[static_cast<size_t>(token)] / kChunkKeys + 1; }

bool chooses(const Step& step, int token, int count) { return step.positions[static_cast<size_t>(token)] >= count; }

}  // namespace

ScoreCall ChooseOperation::call() const {
  const View queries(q), factors(weights);
  const auto heads = static_cast<int>(weights.columns);
  return {queries.row(0), queries.stride(), factors.row(0), factors.stride(), heads, cache.get(), layer};
}

void ChooseOperation::lower(Lowering& to) {
  const KvShape& shape = cache->shape();
  const Kernels* table = &kernels(to.level());
  const int64_t longest = int64_t(to.limits().max_blocks_per_sequence) * shape.block_size;
  const auto row_bytes = static_cast<size_t>(longest) * sizeof(float);
  const size_t scoring = (score_scratch_bytes(shape, static_cast<int>(weights.columns)) + 63) / 64 * 64;
  Memory* own = to.own_scratch(scoring + row_bytes);
  Memory* shared = to.scratch(kFewTokens * row_bytes);
  const bool alone = to.threads() == 1;
  const auto few = [=, this](const Step& step) {
    return !alone && step.tokens <= kFewTokens && !chooses_all(step, count);
  };
  to.phase({"index keys",
            [=, this](const Step& step, int thread, int threads) {
              const View keys(k);
              const RowRange rows = rows_of(step.tokens, thread, threads);
              const KvWrite write{keys.row(0), keys.stride(), nullptr, 0, cache.get(), layer, {}};
              write_keys_values(write, step, *table, rows.begin, rows.end, 0, 1);
            },
            true},
           {memory_of(k)});
  to.phase({"index scores",
            [=, this](const Step& step, int thread, int threads) {
              std::byte* scratch = own->data + own->own_bytes * static_cast<size_t>(thread);
              auto* rows = reinterpret_cast<float*>(shared->data);
              for (int token = 0; token < step.tokens; ++token) {
                if (!chooses(step, token, count)) continue;
                const RowRange chunks = rows_of(chunks_of(step, token), thread, threads);
                if (chunks.begin < chunks.end)
                  score_tokens(call(), step, *table, token, chunks.begin, chunks.end, rows + token * longest, scratch);
              }
            },
            false, few},
           {memory_of(q), memory_of(weights), own, shared});
  to.phase({"choose",
            [=, this, y = View(out)](const Step& step, int thread, int threads) {
              std::byte* scratch = own->data + own->own_bytes * static_cast<size_t>(thread);
              const bool scored = few(step);
              // Tokens in turn: later ones have more to score
              for (int token = thread; token < step.tokens; token += threads) {
                auto* scores = reinterpret_cast<float*>(scored ? shared->data : scratch + scoring);
                if (scored) scores += token * longest;
                else if (chooses(step, token, count))
                  score_tokens(call(), step, *table, token, 0, chunks_of(step, token), scores, scratch);
                choose_highest(scores, step.positions[static_cast<size_t>(token)] + 1, count, y.row(token));
              }
            },
            false, [=, this](const Step& step) { return !chooses_all(step, count); }},
           {memory_of(q), memory_of(weights), own, shared, memory_of(out)});
}

}  // namespace homenode
