#include "kernels/attention_chosen.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/operation.h"

namespace homenode {
namespace {

constexpr float kLog2E = 1.44269504f;  // scores of attention are in base 2
constexpr int kFewRows = 8;            // work items of fewer query heads would read keys too often

int32_t number_at(const float* row, int i) {
  int32_t number;
  std::memcpy(&number, row + i, sizeof number);
  return number;
}

// A key among others: elements of all `of` keys lie `Unit` bytes of each key beside each other.
template <class Unit>
void copy_units(const std::byte* from, int of, int key, std::byte* to, int to_of, int place, int64_t count) {
  const auto* source = reinterpret_cast<const Unit*>(from) + key;
  auto* target = reinterpret_cast<Unit*>(to) + place;
  for (int64_t i = 0; i < count; ++i) target[i * to_of] = source[i * of];
}

// Key `key` of a tile of `of` keys becomes key `place` of one of `to_of`: kTileKeys, or 1, a key by itself.
void copy_key(const KvShape& shape, const std::byte* from, int of, int key, std::byte* to, int to_of, int place) {
  const int64_t width = shape.head_dim;
  switch (shape.type) {
    case KvType::f32: return copy_units<uint32_t>(from, of, key, to, to_of, place, width);
    case KvType::bf16: return copy_units<uint32_t>(from, of, key, to, to_of, place, width / 2);
    case KvType::int8: break;
  }
  copy_units<uint16_t>(from, of, key, to, to_of, place, width / 2);
  constexpr int64_t kScale = sizeof(float);  // those of a key by itself may lie anywhere
  std::memcpy(to + to_of * width + place * kScale, from + of * width + key * kScale, kScale);
}

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

// What threads share: some query heads of one KV head of a token, and where they are many, its chunks as well.
struct ChosenPieces {
  int tokens, rows, of_head;  // pieces of so many rows, so many for each KV head
  bool by_chunk;

  ChosenPieces(const Step& step, const AttentionShape& shape, int threads)
      : tokens(shape.sampled_only ? step.sampled : step.tokens), rows(std::min(kQueryRows, shape.group)) {
    const int64_t heads = int64_t(tokens) * shape.kv_heads, wanted = 2 * int64_t(threads);
    while (rows >= 2 * kFewRows && heads * (shape.group / rows) < wanted) rows /= 2;
    of_head = (shape.group + rows - 1) / rows;
    by_chunk = threads > 1 && step.tokens <= kFewTokens && heads * of_head < wanted;
  }
};

// Of one token and KV head the query heads first .. first + rows - 1; `number` among all pieces.
struct ChosenPiece {
  int token, kv_head, first, rows, number;
};

// Calls take(piece, part) for the share of a thread of the pieces, each in so many parts: those of the heads at its
// home.
template <class Take>
void each_piece(const Step& step, const AttentionShape& shape, const ChosenPieces& pieces, int parts, int thread,
                int threads, const Take& take) {
  int head = 0, past_head = shape.kv_heads;
  for (int first_head = 0, first_thread = 0; const HeadGroup& group : shape.groups) {
    if (thread >= first_thread && thread < group.past_thread) {
      head = first_head, past_head = group.past_head;
      thread -= first_thread, threads = group.past_thread - first_thread;
      break;
    }
    first_head = group.past_head, first_thread = group.past_thread;
  }
  const int heads = past_head - head;
  const RowRange mine = rows_of(pieces.tokens * heads * pieces.of_head * parts, thread, threads);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int piece = i / parts % pieces.of_head, at = i / parts / pieces.of_head, index = at / heads,
              kv_head = head + at % heads, first = piece * pieces.rows;
    take(ChosenPiece{shape.sampled_only ? step.sample_rows[static_cast<size_t>(index)] : index, kv_head, first,
                     std::min(pieces.rows, shape.group - first),
                     (index * shape.kv_heads + kv_head) * pieces.of_head + piece},
         i % parts);
  }
}

int chunks_of(int keys) { return (keys + kChunkKeys - 1) / kChunkKeys; }

// The tiles of one chunk of a token's keys.
struct ChosenChunk {
  const void *tiles[kChunkTiles], *values[kChunkTiles];
  int keys;
};

// A result of up to kQueryRows rows.
struct PartialResult {
  float *largest, *sum, *out;
  explicit PartialResult(float* memory) : largest(memory), sum(memory + kQueryRows), out(memory + 2 * kQueryRows) {}
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
        shape_(shape),
        kernels_(kernels),
        kv_(call.cache->kernels(kernels)),
        padded_(padded_head(shape.value_dim())),
        queries_(reinterpret_cast<float*>(scratch.own)),
        scores_(queries_ + kQueryRows * padded_head(shape.head_dim)),
        merged_(scores_ + kQueryRows * kChunkKeys),
        chunk_(merged_.out + kQueryRows * padded_),
        transformed_(chunk_.out + kQueryRows * padded_),
        turned_(shape.value_columns ? transformed_ + padded_head(shape.head_dim) : nullptr),
        tiles_(turned_ ? reinterpret_cast<std::byte*>(turned_) + kTurnedBytes : nullptr),
        gathered_(scratch.gathered) {}

  void attend(const ChosenPiece& piece) {
    load_queries(piece);
    const Positions keys(chosen_, step_, piece.token, piece.kv_head);
    for (int key = 0; key < keys.count(); key += kChunkKeys) {
      add(find_chunk(piece, keys, key), 0, piece.rows, key == 0);
    }
    write_out(call_, shape_, kernels_, piece, merged_);
  }

  // Keys of a window of tokens, where they lie, then those of pooled windows.
  void attend_to_both(const ChosenPiece& piece, const PooledRows& pooled) {
    load_queries(piece);
    const int position = step_.positions[static_cast<size_t>(piece.token)], begin = first_visible(position, shape_),
              from = begin / kTileKeys * kTileKeys, seen = (position + 1) / pooled.ratio;
    for (int key = from; key <= position; key += kChunkKeys) {
      const int keys = std::min(kChunkKeys, position + 1 - key);
      add(tiles_from(piece.token, key, keys), std::max(begin - key, 0), piece.rows, key == from);
    }
    const bool all = !pooled.chosen || seen <= pooled.count;
    const float* row = all ? nullptr : pooled.chosen + piece.token * pooled.stride;
    const int count = all ? seen : pooled.count;
    for (int key = 0; key < count; key += kChunkKeys)
      add(bring_together(piece.token, pooled, row, key, std::min(kChunkKeys, count - key)), 0, piece.rows, false);
    const float* sinks = call_.sinks ? call_.sinks + int64_t(piece.kv_head) * shape_.group + piece.first : nullptr;
    for (int r = 0; sinks && r < piece.rows; ++r) merged_.sum[r] += std::exp2(sinks[r] * kLog2E - merged_.largest[r]);
    write_out(call_, shape_, kernels_, piece, merged_);
  }

  // One chunk alone, which may be behind the token's last.
  void attend_chunk(const ChosenPiece& piece, int chunk, float* result) {
    const Positions keys(chosen_, step_, piece.token, piece.kv_head);
    if (chunk >= chunks_of(keys.count())) return;
    load_queries(piece);
    compute(find_chunk(piece, keys, chunk * kChunkKeys), 0, piece.rows, PartialResult(result));
  }

  static void merge(const Kernels& kernels, int rows, int64_t padded, const PartialResult& to,
                    const PartialResult& from) {
    Merge how[kQueryRows];
    std::fill_n(how, rows, Merge::add);
    kernels.merge({rows, padded, how, to.largest, to.sum, to.out, from.largest, from.sum, from.out});
  }

  static void write_out(const AttentionCall& call, const AttentionShape& shape, const Kernels& kernels,
                        const ChosenPiece& piece, const PartialResult& from) {
    const int width = shape.value_dim();
    float* out = call.out + piece.token * call.out_stride + int64_t(piece.kv_head * shape.group + piece.first) * width;
    for (int r = 0; r < piece.rows; ++r, out += width)
      kernels.divide(from.out + r * padded_head(width), from.sum[r], out, width);
  }

 private:
  // Into the merged result, whose first chunk it may be. The keys before `begin` of it are not seen.
  void add(const ChosenChunk& chunk, int begin, int rows, bool first) {
    compute(chunk, begin, rows, first ? merged_ : chunk_);
    if (!first) merge(kernels_, rows, padded_, merged_, chunk_);
  }

  void load_queries(const ChosenPiece& piece) {
    auto* loaded = reinterpret_cast<std::byte*>(queries_);
    const int64_t first_head = int64_t(piece.kv_head) * shape_.group + piece.first;
    const float* q = call_.queries + piece.token * call_.query_stride + first_head * shape_.head_dim;
    for (int r = 0; r < piece.rows; ++r, q += shape_.head_dim, loaded += int64_t(shape_.head_dim) * kv_.query_bytes) {
      const float* head = call_.query_transform.apply(kernels_, q, piece.token, shape_.head_dim, transformed_);
      scales_[r] = kv_.load_query(head, shape_.head_dim, call_.scale * kLog2E, loaded);
    }
  }

  ChosenChunk find_chunk(const ChosenPiece& piece, const Positions& keys, int first) {
    const int sequence = sequence_of(step_, piece.token);
    const KvCache& cache = *call_.cache;
    const KvShape& kept = cache.shape();
    const int64_t to_values = kept.sides == 2 ? kept.block_size / kTileKeys * cache.tile_bytes() : 0;
    ChosenChunk chunk{{}, {}, std::min(kChunkKeys, keys.count() - first)};
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
            copy_key(kept, gathered_ + at, 1, 0, to, kTileKeys, i);
          } else {
            const std::byte* from = tile_at(cache, call_.layer, step_, sequence, position);
            copy_key(kept, from, kTileKeys, position % kTileKeys, to, kTileKeys, i);
          }
        }
        to += cache.tile_bytes();
      }
      chunk.tiles[key / kTileKeys] = tile;
      chunk.values[key / kTileKeys] = tile + to_values;
    }
    return chunk;
  }

  // Keys from a position on that begins a tile.
  ChosenChunk tiles_from(int token, int first, int keys) {
    const int sequence = sequence_of(step_, token);
    ChosenChunk chunk{{}, {}, keys};
    for (int key = 0; key < keys; key += kTileKeys) {
      chunk.tiles[key / kTileKeys] = tile_at(*call_.cache, call_.layer, step_, sequence, first + key);
      chunk.values[key / kTileKeys] = chunk.tiles[key / kTileKeys];
    }
    return chunk;
  }

  // Keys of pooled windows: those whose positions `row` has, or all.
  ChosenChunk bring_together(int token, const PooledRows& pooled, const float* row, int first, int keys) {
    const int sequence = sequence_of(step_, token);
    ChosenChunk chunk{{}, {}, keys};
    std::byte* to = tiles_;
    for (int key = 0; key < keys; ++key) {
      if (key && key % kTileKeys == 0) to += call_.cache->tile_bytes();
      const int position = row ? number_at(row, first + key) : (first + key + 1) * pooled.ratio - 1;
      copy_key(call_.cache->shape(), tile_at(*call_.cache, pooled.layer, step_, sequence, position), kTileKeys,
               position % kTileKeys, to, kTileKeys, key % kTileKeys);
      chunk.tiles[key / kTileKeys] = chunk.values[key / kTileKeys] = to;
    }
    return chunk;
  }

  // The keys before `from` of the chunk are not seen.
  void compute(const ChosenChunk& chunk, int from, int rows, const PartialResult& result) {
    int begin[kQueryRows], end[kQueryRows];
    std::fill_n(begin, rows, from);
    std::fill_n(end, rows, chunk.keys);
    kv_.attend({rows, shape_.head_dim, shape_.value_dim(), queries_, scales_, call_.softcap * kLog2E, chunk.tiles,
                chunk.values, begin, end, scores_, result.largest, result.sum, result.out, padded_, turned_});
  }

  const AttentionCall& call_;
  const ChosenTokens chosen_;
  const Step& step_;
  const AttentionShape& shape_;
  const Kernels& kernels_;
  const KvKernels& kv_;
  int64_t padded_;
  float *queries_, *scores_;
  PartialResult merged_, chunk_;
  float *transformed_, *turned_;
  std::byte* tiles_;           // of keys that are brought together
  const std::byte* gathered_;  // see ChosenScratch
  float scales_[kQueryRows];
};

// Whether the longest sequence is attended to as a whole.
bool never_chooses(const KvCache& cache, const Choice& choice, const StepLimits& limits) {
  return choice.most() >= int64_t(limits.max_blocks_per_sequence) * cache.shape().block_size;
}

}  // namespace

const std::byte* tile_at(const KvCache& cache, int layer, const Step& step, int sequence, int position, int head) {
  const int size = cache.shape().block_size;
  const int32_t block = step.block_table[static_cast<size_t>(sequence * step.table_width + position / size)];
  return cache.keys(layer, block, head, position % size);
}

int sequence_of(const Step& step, int token) {
  const auto after = std::upper_bound(step.query_start.begin(), step.query_start.begin() + step.sequences + 1, token);
  return static_cast<int>(after - step.query_start.begin()) - 1;
}

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

// Of the most pieces that are divided by chunks: fewer than two for each thread, of fewer than 2 * kFewRows rows where
// there are more.
size_t ChosenScratch::partial_bytes(const AttentionShape& shape, const KvCache& cache, const Choice& choice,
                                    const StepLimits& limits, int threads) {
  if (threads == 1 || never_chooses(cache, choice, limits)) return 0;
  const int64_t heads = int64_t(std::min(kFewTokens, limits.max_tokens)) * shape.kv_heads,
                pieces = std::min(2 * int64_t(threads), heads * (shape.group / kFewRows + 1));
  const int rows = std::min(2 * kFewRows, shape.group);
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
        copy_key(cache.shape(), tile_at(cache, call.layer, step, sequence, position), kTileKeys, position % kTileKeys,
                 gathered + gathered_at(cache, chosen.choice, token, key), 1, 0);
      }
    }
  }
}

void attend_chosen(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
                   const Kernels& kernels, const ChosenScratch& scratch, int thread, int threads) {
  const ChosenPieces pieces(step, shape, threads);
  ChosenWork work(call, chosen, step, shape, kernels, scratch);
  if (!pieces.by_chunk || !scratch.partials)
    return each_piece(step, shape, pieces, 1, thread, threads, [&](const ChosenPiece& it, int) { work.attend(it); });
  const int chunks = chunks_of(chosen.choice.most());
  const int64_t floats = floats_of_result(pieces.rows, shape);
  each_piece(step, shape, pieces, chunks, thread, threads, [&](const ChosenPiece& it, int chunk) {
    work.attend_chunk(it, chunk, scratch.partials + (int64_t(it.number) * chunks + chunk) * floats);
  });
}

void attend_pooled(const AttentionCall& call, const PooledRows& pooled, const Step& step, const AttentionShape& shape,
                   const Kernels& kernels, std::byte* own, int thread, int threads) {
  ChosenWork work(call, {}, step, shape, kernels, {own, nullptr, nullptr});
  each_piece(step, shape, ChosenPieces(step, shape, threads), 1, thread, threads,
             [&](const ChosenPiece& it, int) { work.attend_to_both(it, pooled); });
}

bool divides_chunks(const Step& step, const AttentionShape& shape, int threads) {
  return ChosenPieces(step, shape, threads).by_chunk;
}

void merge_chosen(const AttentionCall& call, const ChosenTokens& chosen, const Step& step, const AttentionShape& shape,
                  const Kernels& kernels, float* partials, int thread, int threads) {
  const ChosenPieces pieces(step, shape, threads);
  const int chunks = chunks_of(chosen.choice.most());
  const int64_t floats = floats_of_result(pieces.rows, shape);
  each_piece(step, shape, pieces, 1, thread, threads, [&](const ChosenPiece& it, int) {
    const int past = chunks_of(Positions(chosen, step, it.token, it.kv_head).count());
    float* first = partials + int64_t(it.number) * chunks * floats;
    for (int chunk = 1; chunk < past; ++chunk)
      ChosenWork::merge(kernels, it.rows, padded_head(shape.value_dim()), PartialResult(first),
                        PartialResult(first + chunk * floats));
    ChosenWork::write_out(call, shape, kernels, it, PartialResult(first));
  });
}

}  // namespace homenode
