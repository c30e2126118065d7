#include "attention/pooled.h"

#include <algorithm>

namespace homenode {
namespace {

// Chunks of rows that are kept for a thread's next piece, and that threads share: those of a context behind them are
// brought together for each piece again.
constexpr int kKeptChunks = 2, kSharedChunks = 4;

int64_t chunk_bytes(const WindowRows& rows) { return kChunkTiles * rows.tile_bytes(); }

// Where the shared rows of a token begin.
int64_t shared_at(const WindowRows& rows, int windows, int token) {
  return token * chunk_bytes(rows) * std::min(kSharedChunks, chunks_of(windows));
}

class PooledWork {
 public:
  PooledWork(const AttentionCall& call, const PooledRows& pooled, const Step& step, const AttentionShape& shape,
             const Kernels& kernels, const PooledScratch& scratch)
      : call_(call),
        pooled_(pooled),
        step_(step),
        shape_(shape),
        work_(call, shape, kernels, scratch.own),
        kept_(scratch.own + AttentionScratch::thread_bytes(shape)),
        most_kept_(std::min(kKeptChunks, chunks_of(scratch.windows)) * kChunkKeys),
        loose_(kept_ + most_kept_ / kChunkKeys * chunk_bytes(pooled.rows)),
        shared_(scratch.shared),
        windows_(scratch.windows) {}

  void attend(const QueryPiece& piece) {
    work_.load_queries(piece);
    const int position = step_.positions[static_cast<size_t>(piece.token)], begin = first_visible(position, shape_),
              from = begin / kTileKeys * kTileKeys, count = pooled_.of(position);
    for (int key = from; key <= position; key += kChunkKeys) {
      const int keys = std::min(kChunkKeys, position + 1 - key);
      work_.add(tokens_from(piece.token, key, keys, key - from), std::max(begin - key, 0), piece.rows, key == from);
    }
    for (int key = 0; key < count; key += kChunkKeys)
      work_.add(rows_from(piece.token, key, std::min(kChunkKeys, count - key)), 0, piece.rows, false);
    work_.add_sinks(call_.sinks, piece);
    work_.write_out(piece);
  }

 private:
  // Keys of tokens, where they lie, from a position on that begins a tile.
  KeyChunk tokens_from(int token, int first, int keys, int first_key) const {
    const int sequence = sequence_of(step_, token);
    KeyChunk chunk{{}, {}, keys, first_key};
    for (int key = 0; key < keys; key += kTileKeys) {
      chunk.tiles[key / kTileKeys] = tile_at(*call_.cache, call_.layer, step_, sequence, first + key);
      chunk.values[key / kTileKeys] = chunk.tiles[key / kTileKeys];
    }
    return chunk;
  }

  KeyChunk rows_from(int token, int first, int keys) {
    const std::byte* at = found(token, first, keys);
    KeyChunk chunk{{}, {}, keys, first};
    for (int key = 0; key < keys; key += kTileKeys)
      chunk.tiles[key / kTileKeys] = chunk.values[key / kTileKeys] = at + key / kTileKeys * pooled_.rows.tile_bytes();
    return chunk;
  }

  // The tiles of one chunk of a token's rows.
  const std::byte* found(int token, int first, int keys) {
    const int64_t behind = first / kChunkKeys * chunk_bytes(pooled_.rows);
    if (shared_ && first < kSharedChunks * kChunkKeys)
      return shared_ + shared_at(pooled_.rows, windows_, token) + behind;
    const int sequence = sequence_of(step_, token);
    const float* numbers = pooled_.numbers(token, step_.positions[static_cast<size_t>(token)]);
    if (first >= most_kept_) {
      pooled_.rows.bring(step_, sequence, numbers, first, first + keys, loose_, 0);
      return loose_;
    }
    // All rows of a sequence are those of its earlier tokens and some more; chosen ones are a token's own
    const int owner = numbers ? token : -1 - sequence;
    if (owner != owner_) owner_ = owner, count_ = 0;
    if (first + keys > count_) {
      pooled_.rows.bring(step_, sequence, numbers, count_, first + keys, kept_, count_);
      count_ = first + keys;
    }
    return kept_ + behind;
  }

  const AttentionCall& call_;
  const PooledRows& pooled_;
  const Step& step_;
  const AttentionShape& shape_;
  PieceWork work_;
  std::byte* kept_;  // rows 0 .. count_ - 1 of a token, or of a sequence
  int most_kept_, owner_ = 0, count_ = 0;
  std::byte *loose_, *shared_;
  int windows_;
};

}  // namespace

// Tiles are read past their end as those of KV memory are.
size_t PooledScratch::own_bytes(const AttentionShape& shape, const WindowRows& rows, int windows) {
  const int chunks = chunks_of(windows);
  return AttentionScratch::thread_bytes(shape) +
         static_cast<size_t>((std::min(kKeptChunks, chunks) + (chunks > kKeptChunks)) * chunk_bytes(rows) + kKvSlack);
}

size_t PooledScratch::shared_bytes(const WindowRows& rows, int windows, int tokens) {
  return static_cast<size_t>(shared_at(rows, windows, std::min(kFewTokens, tokens)) + kKvSlack);
}

void share_rows(const PooledRows& pooled, const Step& step, std::byte* shared, int windows, int thread, int threads) {
  const WindowRows& rows = pooled.rows;
  const BlockHomes& homes = rows.cache->block_homes();
  const size_t home = homes.stripe ? homes.of_thread(thread) : 0;
  const int first = home ? homes.past_thread[home - 1] : 0, past = homes.stripe ? homes.past_thread[home] : threads;
  const int most = kSharedChunks * kChunkKeys, size = rows.cache->shape().block_size;
  for (int token = 0; token < step.tokens; ++token) {
    const int sequence = sequence_of(step, token), own = step.positions[static_cast<size_t>(token)],
              count = std::min(most, pooled.of(own));
    const int32_t* table = &step.block_table[static_cast<size_t>(sequence * step.table_width)];
    const float* numbers = pooled.numbers(token, own);
    std::byte* to = shared + shared_at(rows, windows, token);
    for (int tile = thread - first; tile * kTileKeys < count; tile += past - first) {
      for (int key = tile * kTileKeys; key < std::min(count, (tile + 1) * kTileKeys); ++key) {
        const int position = numbers ? number_at(numbers, key) : rows.last_position(key);
        if (!homes.stripe || homes.of(table[position / size]) == home)
          rows.bring(step, sequence, numbers, key, key + 1, to, key);
      }
    }
  }
}

void attend_pooled(const AttentionCall& call, const PooledRows& pooled, const Step& step, const AttentionShape& shape,
                   const Kernels& kernels, const PooledScratch& scratch, int thread, int threads) {
  PooledWork work(call, pooled, step, shape, kernels, scratch);
  each_piece(step, shape, QueryPieces(step, shape, threads), 1, thread, threads,
             [&](const QueryPiece& it, int) { work.attend(it); });
}

}  // namespace homenode
