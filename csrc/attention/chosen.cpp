#include "attention/chosen.h"

#include <algorithm>

namespace homenode {
namespace {

// Where keys that are brought together lie, each by itself, from one cache line on.
int64_t key_bytes(const KvCache& cache) { return (cache.tile_bytes() / kTileKeys + 63) / 64 * 64; }
int64_t gathered_at(const KvCache& cache, const Choice& choice, int token, int key) {
  return (int64_t(token) * choice.most() + key) * key_bytes(cache);
}

// The positions that a token attends to, for one KV head.
class Positions {
 public:
  Positions(const ChosenTokens& chosen, const Step& step, int token, int kv_head)
      : blocks_(chosen.blocks + token * chosen.stride + int64_t(kv_head) * chosen.choice.count),
        size_(chosen.choice.block),
        count_(chosen.choice.of(step.positions[static_cast<size_t>(token)])) {}
  int count() const { return count_; }
  int operator[](int key) const { return number_at(blocks_, key / size_) * size_ + key % size_; }
  // Keys of the tile that begins with key `first`.
  int in_tile(int first) const { return std::min(kTileKeys, count_ - first); }
  // Whether these lie beside each other in KV memory, as in a tile.
  bool together(int first) const {
    const int from = (*this)[first], last = in_tile(first) - 1;
    return from % kTileKeys == 0 && (*this)[first + last] == from + last;
  }

 private:
  const float* blocks_;
  int size_, count_;
};

int64_t floats_of_result(int rows, const AttentionShape& shape) {
  return static_cast<int64_t>(AttentionScratch::partial_bytes(rows, shape.value_dim()) / sizeof(float));
}

// Some query heads of one token as one thread works on them.
class ChosenWork {
 public:
  ChosenWork(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
             const Kernels& kernels, const ChosenScratch& scratch)
      : call_(call),
        chosen_(chosen),
        step_(step),
        work_(call, shape, kernels, scratch.own),
        tiles_(shape.value_columns ? scratch.own + AttentionScratch::thread_bytes(shape) : nullptr),
        gathered_(scratch.gathered) {}

  void attend(const QueryPiece& piece) {
    work_.load_queries(piece);
    const Positions keys(chosen_, step_, piece.token, piece.kv_head);
    for (int key = 0; key < keys.count(); key += kChunkKeys)
      work_.add(find_chunk(piece, keys, key), 0, piece.rows, key == 0);
    work_.write_out(piece);
  }

  // One chunk alone, which may be behind the token's last.
  void attend_chunk(const QueryPiece& piece, int chunk, float* result) {
    const Positions keys(chosen_, step_, piece.token, piece.kv_head);
    if (chunk >= chunks_of(keys.count())) return;
    work_.load_queries(piece);
    work_.compute(find_chunk(piece, keys, chunk * kChunkKeys), 0, piece.rows, PartialResult(result));
  }

 private:
  KeyChunk find_chunk(const QueryPiece& piece, const Positions& keys, int first) {
    const int sequence = sequence_of(step_, piece.token);
    const KvCache& cache = *call_.cache;
    const KvShape& kept = cache.shape();
    const int64_t to_values = kept.sides == 2 ? kept.block_size / kTileKeys * cache.tile_bytes() : 0;
    KeyChunk chunk{{}, {}, std::min(kChunkKeys, keys.count() - first), first};
    std::byte* to = tiles_;
    for (int key = 0; key < chunk.keys; key += kTileKeys) {
      const std::byte* tile = to;
      if (keys.together(first + key)) {
        tile = tile_at(cache, call_.layer, step_, sequence, keys[first + key], piece.kv_head);
      } else {
        for (int i = 0; i < keys.in_tile(first + key); ++i) {
          const int position = keys[first + key + i];
          if (gathered_) {
            const int64_t at = gathered_at(cache, chosen_.choice, piece.token, first + key + i);
            copy_key(kept.type, kept.head_dim, gathered_ + at, 1, 0, to, kTileKeys, i);
          } else {
            const std::byte* from = tile_at(cache, call_.layer, step_, sequence, position);
            copy_key(kept.type, kept.head_dim, from, kTileKeys, position % kTileKeys, to, kTileKeys, i);
          }
        }
        to += cache.tile_bytes();
      }
      chunk.tiles[key / kTileKeys] = tile;
      chunk.values[key / kTileKeys] = tile + to_values;
    }
    return chunk;
  }

  const AttentionCall& call_;
  const ChosenTokens chosen_;
  const Step& step_;
  PieceWork work_;
  std::byte* tiles_;           // of keys that are brought together
  const std::byte* gathered_;  // see ChosenScratch
};

// Whether the longest sequence is attended to as a whole.
bool never_chooses(const KvCache& cache, const Choice& choice, const StepLimits& limits) {
  return choice.most() >= int64_t(limits.max_blocks_per_sequence) * cache.shape().block_size;
}

}  // namespace

bool chooses_all(const Step& step, int count) {
  return std::all_of(step.context_len.begin(), step.context_len.end(),
                     [count](int32_t length) { return length <= count; });
}

// Tiles are read past their end as those of KV memory are. Where values are beside keys nothing is brought together.
size_t ChosenScratch::own_bytes(const AttentionShape& shape, const KvCache& cache) {
  const size_t tiles = static_cast<size_t>(kChunkTiles * cache.tile_bytes() + kKvSlack);
  return AttentionScratch::thread_bytes(shape) + (shape.value_columns ? tiles : 0);
}

size_t ChosenScratch::gathered_bytes(const KvCache& cache, const Choice& choice, const StepLimits& limits) {
  if (cache.shape().sides == 2 || never_chooses(cache, choice, limits)) return 0;
  return static_cast<size_t>(gathered_at(cache, choice, std::min(kFewTokens, limits.max_tokens), 0));
}

// Of the most pieces that are divided by chunks: fewer than two for each thread, of fewer than 2 * kFewHeads rows where
// there are more.
size_t ChosenScratch::partial_bytes(const AttentionShape& shape, const KvCache& cache, const Choice& choice,
                                    const StepLimits& limits, int threads) {
  if (threads == 1 || never_chooses(cache, choice, limits)) return 0;
  const int64_t heads = int64_t(std::min(kFewTokens, limits.max_tokens)) * shape.kv_heads,
                pieces = std::min(2 * int64_t(threads), heads * (shape.group / kFewHeads + 1));
  const int rows = std::min(2 * kFewHeads, shape.group);
  return static_cast<size_t>(pieces * chunks_of(choice.most()) * floats_of_result(rows, shape)) * sizeof(float);
}

void gather_chosen(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
                   std::byte* gathered, int thread, int threads) {
  constexpr int kRun = 4;  // neighbours that are chosen are mostly in the same cache lines
  const KvCache& cache = *call.cache;
  const BlockHomes& homes = cache.block_homes();
  const size_t home = homes.stripe ? homes.of_thread(thread) : 0;
  const int first = home ? homes.past_thread[home - 1] : 0, past = homes.stripe ? homes.past_thread[home] : threads;
  const int tokens = shape.sampled_only ? step.sampled : step.tokens, size = cache.shape().block_size;
  for (int index = 0; index < tokens; ++index) {
    const int token = shape.sampled_only ? step.sample_rows[static_cast<size_t>(index)] : index;
    const int sequence = sequence_of(step, token);
    const int32_t* table = &step.block_table[static_cast<size_t>(sequence * step.table_width)];
    const Positions keys(chosen, step, token, 0);
    for (int run = (thread - first) * kRun; run < keys.count(); run += (past - first) * kRun) {
      if (keys.together(run / kTileKeys * kTileKeys)) continue;
      for (int key = run; key < std::min(run + kRun, keys.count()); ++key) {
        const int position = keys[key];
        if (homes.stripe && homes.of(table[position / size]) != home) continue;
        copy_key(cache.shape().type, cache.shape().head_dim, tile_at(cache, call.layer, step, sequence, position),
                 kTileKeys, position % kTileKeys, gathered + gathered_at(cache, chosen.choice, token, key), 1, 0);
      }
    }
  }
}

void attend_chosen(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
                   const Kernels& kernels, const ChosenScratch& scratch, int thread, int threads) {
  const QueryPieces pieces(step, shape, threads);
  ChosenWork work(call, chosen, step, shape, kernels, scratch);
  if (!pieces.by_chunk || !scratch.partials)
    return each_piece(step, shape, pieces, 1, thread, threads, [&](const QueryPiece& it, int) { work.attend(it); });
  const int chunks = chunks_of(chosen.choice.most());
  const int64_t floats = floats_of_result(pieces.rows, shape);
  each_piece(step, shape, pieces, chunks, thread, threads, [&](const QueryPiece& it, int chunk) {
    work.attend_chunk(it, chunk, scratch.partials + (int64_t(it.number) * chunks + chunk) * floats);
  });
}

bool divides_chunks(const Step& step, const AttentionShape& shape, int threads) {
  return QueryPieces(step, shape, threads).by_chunk;
}

void merge_chosen(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
                  const Kernels& kernels, float* partials, int thread, int threads) {
  const QueryPieces pieces(step, shape, threads);
  const int chunks = chunks_of(chosen.choice.most());
  const int64_t floats = floats_of_result(pieces.rows, shape);
  each_piece(step, shape, pieces, 1, thread, threads, [&](const QueryPiece& it, int) {
    const int past = chunks_of(Positions(chosen, step, it.token, it.kv_head).count());
    float* first = partials + int64_t(it.number) * chunks * floats;
    for (int chunk = 1; chunk < past; ++chunk)
      PieceWork::merge(kernels, it.rows, padded_head(shape.value_dim()), PartialResult(first),
                       PartialResult(first + chunk * floats));
    PieceWork::write_out(call, shape, kernels, it, PartialResult(first));
  });
}

}  // namespace homenode
