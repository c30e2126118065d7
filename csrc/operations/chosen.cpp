#include "operations/chosen.h"

#include <algorithm>
#include <limits>

namespace homenode {
namespace {

bool chooses(const Step& step, int token, int most) { return step.positions[static_cast<size_t>(token)] >= most; }

// Where the chunks of a token's context lie: in blocks, of which a home has some.
struct ChunkPlaces {
  const KvCache& cache;
  const int32_t* table;  // the blocks of the token's sequence
  int64_t chunk_tokens;

  size_t home_of(int chunk) const {
    return cache.block_homes().of(table[chunk * chunk_tokens / cache.shape().block_size]);
  }
};

// Runs of a token's chunks that a thread scores: its part of all, or, where keys lie at homes, of those at its own.
template <class Score>
void each_run(const ChunkPlaces& places, int chunks, int thread, int threads, const Score& score) {
  const BlockHomes& homes = places.cache.block_homes();
  if (!homes.stripe) {
    const RowRange mine = rows_of(chunks, thread, threads);
    if (mine.begin < mine.end) score(mine.begin, mine.end);
    return;
  }
  const size_t home = homes.of_thread(thread);
  const int first = home ? homes.past_thread[home - 1] : 0, beside = homes.past_thread[home] - first;
  int found = 0;  // chunks at this home
  for (int chunk = 0; chunk < chunks; ++chunk) found += places.home_of(chunk) == home;
  const RowRange mine = rows_of(found, thread - first, beside);
  for (int chunk = 0, at = 0; chunk < chunks; ++chunk) {
    if (places.home_of(chunk) != home) continue;
    if (at >= mine.begin && at < mine.end) score(chunk, chunk + 1);
    ++at;
  }
}

}  // namespace

ScoreCall ChooseOperation::call() const {
  const View queries(q);
  ScoreCall found{queries.row(0), queries.stride(), nullptr, 0, heads(), cache.get(), layer, of_windows()};
  if (!weights.value) return found;
  const View factors(weights);
  found.weights = factors.row(0), found.weight_stride = factors.stride();
  return found;
}

void ChooseOperation::score(const Step& step, const Kernels& table, const TokenChunks& chunks, float* scores,
                            int64_t longest, std::byte* scratch) const {
  if (weights.value) score_tokens(call(), step, table, chunks, scores, scratch);
  else score_blocks(call(), choice.block, step, table, chunks, scores, longest, scratch);
}

void ChooseOperation::lower(Lowering& to) {
  const KvShape& shape = cache->shape();
  const Kernels* table = &kernels(to.level());
  const int64_t tokens = int64_t(to.limits().max_blocks_per_sequence) * shape.block_size / choice.ratio,
                longest = (tokens + choice.block - 1) / choice.block, each = longest * rows_of_scores(),
                chunk_tokens = int64_t(kChunkKeys) * choice.ratio;
  const auto row_bytes = static_cast<size_t>(each) * sizeof(float);
  const size_t scoring = (score_scratch_bytes(shape, heads(), of_windows()) + 63) / 64 * 64;
  const auto chunks = [this](const Step& step, int token) {
    return chunks_of(call().seen(step.positions[static_cast<size_t>(token)]));
  };
  const int most = choice.most();
  Memory* own = to.own_scratch(scoring + row_bytes);
  Memory* shared = to.scratch(kFewTokens * row_bytes);
  const bool alone = to.threads() == 1;
  const auto few = [=, this](const Step& step) {
    return !alone && step.tokens <= kFewTokens && !chooses_all(step, most);
  };
  std::vector<Memory*> touched{memory_of(q), own, shared};
  if (weights.value) touched.push_back(memory_of(weights));
  to.phase({"index keys",
            [=, this](const Step& step, int thread, int threads) {
              const View keys(k);
              const RowRange rows = tokens_to_write(*cache, step, thread, threads);
              if (of_windows()) {
                std::byte* scratch = own->data + own->own_bytes * static_cast<size_t>(thread);
                windows.write(keys.row(0), keys.stride(), step, *table, rows.begin, rows.end, scratch);
                return;
              }
              const KvWrite write{keys.row(0), keys.stride(), nullptr, 0, cache.get(), layer, {}};
              write_keys_values(write, step, *table, rows.begin, rows.end, 0, 1);
            },
            true},
           {memory_of(k), own});
  to.phase({"choose",  // like the one below: where there are many tokens, these are scored there
            [=, this](const Step& step, int thread, int threads) {
              std::byte* scratch = own->data + own->own_bytes * static_cast<size_t>(thread);
              auto* rows = reinterpret_cast<float*>(shared->data);
              for (int token = 0; token < step.tokens; ++token) {
                if (!chooses(step, token, most)) continue;
                const auto sequence = static_cast<size_t>(sequence_of(step, token) * step.table_width);
                each_run({*cache, step.block_table.data() + sequence, chunk_tokens}, chunks(step, token), thread,
                         threads, [&](int first, int past) {
                           score(step, *table, {token, first, past}, rows + token * each, longest, scratch);
                         });
              }
            },
            false, few},
           touched);
  touched.push_back(memory_of(out));
  to.phase({"choose",
            [=, this, y = View(out)](const Step& step, int thread, int threads) {
              std::byte* scratch = own->data + own->own_bytes * static_cast<size_t>(thread);
              const bool scored = few(step);
              // Tokens in turn: later ones have more to score
              for (int token = thread; token < step.tokens; token += threads) {
                auto* scores = reinterpret_cast<float*>(scored ? shared->data : scratch + scoring);
                if (scored) scores += token * each;
                else if (chooses(step, token, most))
                  score(step, *table, {token, 0, chunks(step, token)}, scores, longest, scratch);
                const int seen = choice.seen(step.positions[static_cast<size_t>(token)]), ratio = choice.ratio;
                for (int row = 0; row < rows_of_scores(); ++row, scores += longest) {
                  const int forced = std::min(local, seen);
                  std::fill_n(scores + seen - forced, forced, std::numeric_limits<float>::infinity());
                  choose_highest(scores, seen, choice.count, y.row(token) + int64_t(row) * choice.count, ratio);
                }
              }
            },
            false, [=](const Step& step) { return !chooses_all(step, most); }},
           touched);
}

}  // namespace homenode
