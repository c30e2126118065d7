#include "attention/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace homenode {
namespace {

// A result of up to kQueryRows rows: largest score, sum of weights, weighted values.
struct Rows {
  float *largest, *sum, *out;
  Rows(float* memory) : largest(memory), sum(memory + kQueryRows), out(memory + 2 * kQueryRows) {}
};

constexpr int kFewTiles = kChunkTiles / 2;  // too short a chunk to ask for a whole one meanwhile
constexpr int64_t kNearBytes = 512 << 10;  // half of the second cache of the processors with wide vectors

// Where the queries and outputs of a tile's row lie.
struct RowPlace {
  int64_t token, head;
};

// Tiles of a chunk's keys and values; those of a block lie one behind the other, `run[i]` of them where tile i is the
// chunk's first of a block.
struct ChunkTiles {
  const void *keys[kChunkTiles], *values[kChunkTiles];
  int run[kChunkTiles];
  int count = 0;
};

ChunkTiles find_tiles(const AttentionCall& call, const Step& step, const AttentionTile& tile, int chunk) {
  const KvCache& cache = *call.cache;
  const int block_size = cache.shape().block_size,
            last = std::min((chunk + 1) * kChunkKeys, step.context_len[static_cast<size_t>(tile.sequence)]);
  int position = chunk * kChunkKeys, slot = position % block_size;
  const int32_t* block =
      &step.block_table[static_cast<size_t>(tile.sequence * step.table_width + position / block_size)];
  ChunkTiles tiles;
  while (position < last) {
    const std::byte* keys = cache.keys(call.layer, *block, tile.kv_head, slot);
    const int64_t to_values = cache.shape().sides == 2 ? cache.shape().block_size / kTileKeys * cache.tile_bytes() : 0;
    const int first = tiles.count;
    for (; slot < block_size && position < last; slot += kTileKeys, position += kTileKeys, keys += cache.tile_bytes()) {
      tiles.keys[tiles.count] = keys;
      tiles.values[tiles.count++] = keys + to_values;
    }
    tiles.run[first] = tiles.count - first;
    slot = 0;
    ++block;
  }
  return tiles;
}

// What is to be asked for while a chunk is computed. `beside`: values lie behind the keys of their block.
class Wanted {
 public:
  explicit Wanted(bool beside) : beside_(beside) {}
  void add(const void* from, int64_t bytes) {
    PrefetchRange* last = count_ ? &ranges_[count_ - 1] : nullptr;
    if (last && static_cast<const char*>(last->from) + last->bytes == from) last->bytes += bytes;
    else ranges_[count_++] = {from, bytes};
  }
  void add_values(const ChunkTiles& tiles, int64_t tile_bytes) {
    for (int i = 0; beside_ && i < tiles.count; i += tiles.run[i]) add(tiles.values[i], tiles.run[i] * tile_bytes);
  }
  // In the order of memory: of a block first keys, then values, which lie behind them. Memory gives the more the longer
  // it is read in one piece.
  void add_chunk(const ChunkTiles& tiles, int64_t tile_bytes) {
    for (int i = 0; i < tiles.count; i += tiles.run[i]) {
      add(tiles.keys[i], tiles.run[i] * tile_bytes);
      if (beside_) add(tiles.values[i], tiles.run[i] * tile_bytes);
    }
  }
  const PrefetchRange* ranges() const { return ranges_; }
  int count() const { return count_; }

 private:
  bool beside_;
  PrefetchRange ranges_[5 * kChunkTiles + 2 * kQueryRows];
  int count_ = 0;
};

// One tile as one thread works on it.
class TileWork {
 public:
  TileWork(const AttentionCall& call, const Step& step, const AttentionPlan& plan, const Kernels& kernels,
           float* memory)
      : call_(call),
        step_(step),
        plan_(plan),
        shape_(plan.shape()),
        kernels_(kernels),
        padded_(padded_head(plan.shape().value_dim())),
        queries_(memory),
        scores_(memory + kQueryRows * padded_head(plan.shape().head_dim)),
        merged_(scores_ + kQueryRows * kChunkKeys),
        chunk_(merged_.out + kQueryRows * padded_),
        transformed_(chunk_.out + kQueryRows * padded_),
        turned_(shape_.value_columns ? transformed_ + padded_head(shape_.head_dim) : nullptr) {}

  // Goes on to an item, whose rows are loaded as the scores are computed from them. `next`: the item after it, or null.
  void enter(const AttentionItem& item, const AttentionItem* next) {
    tile_ = &plan_.tiles()[static_cast<size_t>(item.tile)];
    item_ = &item, next_item_ = next;
    const int first = first_position(step_, tile_->sequence);
    context_ = step_.context_len[static_cast<size_t>(tile_->sequence)];
    place_rows(*tile_, places_);
    for (int r = 0; r < tile_->rows; ++r)
      positions_[r] =
          first + static_cast<int>(places_[r].token) - step_.query_start[static_cast<size_t>(tile_->sequence)];
    load_queries();
  }

  void compute_chunk(int chunk, const Rows& result) {
    const int first = chunk * kChunkKeys;
    const bool found = here_tile_ == tile_ && here_chunk_ == chunk;  // and asked for, by the chunk before
    if (!found) next_ = find_tiles(call_, step_, *tile_, chunk);
    std::swap(here_, next_);
    Wanted wanted(!shape_.value_columns);
    if (!found && !stays_near(*tile_)) wanted.add_values(here_, call_.cache->tile_bytes());
    prefetch_chunk(chunk, wanted);
    int begin[kQueryRows], end[kQueryRows], apart[kQueryRows];
    float slopes[kQueryRows];
    const float* biases[kQueryRows];
    for (int r = 0; r < tile_->rows; ++r) {
      const int p = positions_[r];
      apart[r] = first - p;
      if (call_.slopes) slopes[r] = call_.slopes[places_[r].head] * kLog2E;
      if (call_.biases) biases[r] = call_.biases + int64_t(places_[r].head) * (2 * call_.reach + 1);
      const int token = static_cast<int>(places_[r].token);
      begin[r] = std::max(first_visible(step_, token, p, shape_) - first, 0);
      end[r] = std::min(past_visible(step_, token, shape_, p, context_) - first, kChunkKeys);
    }
    call_.cache->kernels(kernels_).attend({tile_->rows,
                                           shape_.head_dim,
                                           shape_.value_dim(),
                                           queries_,
                                           query_scales_,
                                           call_.softcap * kLog2E,
                                           here_.keys,
                                           here_.values,
                                           begin,
                                           end,
                                           first,
                                           scores_,
                                           result.largest,
                                           result.sum,
                                           result.out,
                                           padded_,
                                           turned_,
                                           wanted.ranges(),
                                           wanted.count(),
                                           call_.slopes ? slopes : nullptr,
                                           apart,
                                           call_.biases ? biases : nullptr,
                                           call_.reach});
  }

  // A chunk that is the first of every row, straight into the merged result; any other beside it, then merged.
  void compute_and_merge(int chunk) {
    Merge how[kQueryRows];
    if (merge_kinds(chunk, how)) return compute_chunk(chunk, merged_);
    compute_chunk(chunk, chunk_);
    merge(chunk_, how);
  }

  void merge_chunk(int chunk, const Rows& result) {
    Merge how[kQueryRows];
    merge_kinds(chunk, how);
    merge(result, how);
  }

  void write_out() {
    for (int r = 0; r < tile_->rows; ++r) {
      float sum = merged_.sum[r];
      if (call_.sinks) sum += std::exp2(call_.sinks[places_[r].head] * kLog2E - merged_.largest[r]);
      kernels_.divide(merged_.out + r * padded_, sum, out(places_[r]), shape_.value_dim());
    }
  }

 private:
  void load_queries() {
    const KvKernels& kv = call_.cache->kernels(kernels_);
    std::byte* loaded = reinterpret_cast<std::byte*>(queries_);
    for (int r = 0; r < tile_->rows; ++r, loaded += int64_t(shape_.head_dim) * kv.query_bytes) {
      const float* q =
          call_.query_transform.apply(kernels_, query(places_[r]), places_[r].token, shape_.head_dim, transformed_);
      query_scales_[r] = kv.load_query(q, shape_.head_dim, call_.scale * kLog2E, loaded);
    }
  }

  // The chunk after this one, or the next item's first and its queries and outputs. While a last chunk of few keys is
  // computed there would be no time to ask for as much, so that is done a chunk before.
  void prefetch_chunk(int chunk, Wanted& wanted) {
    here_tile_ = nullptr;
    if (chunk + 1 < item_->chunk_end) {
      here_tile_ = tile_, here_chunk_ = chunk + 1;
      next_ = find_tiles(call_, step_, *here_tile_, here_chunk_);
      if (!stays_near(*tile_)) wanted.add_chunk(next_, call_.cache->tile_bytes());
      if (chunk + 2 == item_->chunk_end && next_item_ && next_.count <= kFewTiles) {
        prefetch_next(
            find_tiles(call_, step_, plan_.tiles()[static_cast<size_t>(next_item_->tile)], next_item_->chunk_begin),
            wanted);
      }
    } else if (next_item_) {
      here_tile_ = &plan_.tiles()[static_cast<size_t>(next_item_->tile)], here_chunk_ = next_item_->chunk_begin;
      next_ = find_tiles(call_, step_, *here_tile_, here_chunk_);
      if (prefetched_ != next_item_) prefetch_next(next_, wanted);
    }
  }

  // The first chunk of the next item, and the queries and outputs of another tile.
  void prefetch_next(const ChunkTiles& chunk, Wanted& wanted) {
    prefetched_ = next_item_;
    const AttentionTile& tile = plan_.tiles()[static_cast<size_t>(next_item_->tile)];
    if (&tile != tile_) {
      RowPlace places[kQueryRows];
      place_rows(tile, places);
      constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
      for (int r = 0; r < tile.rows; ++r) wanted.add(query(places[r]), shape_.head_dim * kBytes);
      for (int r = 0; r < tile.rows; ++r) wanted.add(out(places[r]), shape_.value_dim() * kBytes);
    }
    if (!stays_near(tile)) wanted.add_chunk(chunk, call_.cache->tile_bytes());
  }

  // Will a tile's keys and values be in the second cache anyway, since other tiles of a short sequence have read them?
  bool stays_near(const AttentionTile& tile) const {
    const auto s = static_cast<size_t>(tile.sequence);
    const int64_t bytes = int64_t(step_.context_len[s]) * shape_.kv_heads * call_.cache->shape().sides *
                          call_.cache->tile_bytes() / kTileKeys;
    return (step_.query_start[s + 1] - step_.query_start[s]) * shape_.group >= 4 * kQueryRows && bytes <= kNearBytes;
  }

  // What a chunk is to each row; returns whether it is the first one to all.
  bool merge_kinds(int chunk, Merge* how) const {
    bool first_of_all = true;
    for (int r = 0; r < tile_->rows; ++r) {
      const int p = positions_[r], token = static_cast<int>(places_[r].token),
                first = first_visible(step_, token, p, shape_) / kChunkKeys,
                last = (past_visible(step_, token, shape_, p, context_) - 1) / kChunkKeys;
      how[r] = chunk < first || chunk > last ? Merge::leave : chunk == first ? Merge::take : Merge::add;
      first_of_all &= how[r] == Merge::take;
    }
    return first_of_all;
  }

  void merge(const Rows& result, const Merge* how) {
    kernels_.merge(
        {tile_->rows, padded_, how, merged_.largest, merged_.sum, merged_.out, result.largest, result.sum, result.out});
  }

  void place_rows(const AttentionTile& tile, RowPlace* places) const {
    const int64_t first_head = int64_t(tile.kv_head) * shape_.group;
    int64_t token = step_.query_start[static_cast<size_t>(tile.sequence)] + tile.row_begin / shape_.group,
            head = tile.row_begin % shape_.group;
    for (int r = 0; r < tile.rows; ++r) {
      places[r] = {token, first_head + head};
      if (++head == shape_.group) head = 0, ++token;
    }
  }

  const float* query(const RowPlace& at) const {
    return call_.queries + at.token * call_.query_stride + at.head * shape_.head_dim;
  }
  float* out(const RowPlace& at) const {
    return call_.out + at.token * call_.out_stride + at.head * shape_.value_dim();
  }

  const AttentionCall& call_;
  const Step& step_;
  const AttentionPlan& plan_;
  const AttentionShape& shape_;
  const Kernels& kernels_;
  const AttentionTile* tile_ = nullptr;
  const AttentionItem *item_ = nullptr, *next_item_ = nullptr;
  int64_t padded_;
  float *queries_, *scores_;
  float query_scales_[kQueryRows];
  int positions_[kQueryRows];
  int context_ = 0;  // of the tile's sequence
  RowPlace places_[kQueryRows];
  ChunkTiles here_, next_;
  const AttentionTile* here_tile_ = nullptr;  // whose chunk `next_` is
  int here_chunk_ = 0;
  const AttentionItem* prefetched_ = nullptr;  // whose first chunk has been asked for
  Rows merged_, chunk_;
  float* transformed_;  // [padded head] a query
  float* turned_;       // see AttendArgs
};

void compute_item(TileWork& work, const AttentionItem& item, AttentionPlan& plan, const AttentionScratch& scratch) {
  const AttentionTile& tile = plan.tiles()[static_cast<size_t>(item.tile)];
  if (tile.first_partial < 0) {
    for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) work.compute_and_merge(chunk);
    return work.write_out();
  }
  const auto kept = [&](int chunk) { return Rows(scratch.partial(tile, chunk)); };
  for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) work.compute_chunk(chunk, kept(chunk));
  std::atomic<int>& left = plan.chunks_left(item.tile);
  const int mine = item.chunk_end - item.chunk_begin;
  if (left.fetch_sub(mine, std::memory_order_acq_rel) != mine) return;
  left.store(tile.chunk_end - tile.chunk_begin, std::memory_order_relaxed);  // for the next layer
  for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; ++chunk) work.merge_chunk(chunk, kept(chunk));
  work.write_out();
}

}  // namespace

void attend(const AttentionCall& call, const Step& step, AttentionPlan& plan, const AttentionScratch& scratch,
            const Kernels& kernels, RunClaims* claims, int thread) {
  TileWork work(call, step, plan, kernels, scratch.thread_part(thread));
  const auto compute = [&](int64_t i, int64_t end) {
    const AttentionItem* item = &plan.items()[static_cast<size_t>(i)];
    const AttentionTile& tile = plan.tiles()[static_cast<size_t>(item->tile)];
    if (call.write && item->chunk_end == tile.chunk_end) {
      const int token = step.query_start[static_cast<size_t>(tile.sequence)];
      write_keys_values(*call.write, step, kernels, token, token + 1, tile.kv_head, tile.kv_head + 1);
    }
    work.enter(*item, i + 1 < end ? item + 1 : nullptr);
    compute_item(work, *item, plan, scratch);
  };
  const auto helps = [](int) { return true; };  // to read another home's keys is better than to wait
  each_share(claims, thread, helps, [&](int owner, auto take) {
    const int64_t begin = plan.share_begin(owner), end = plan.share_begin(owner + 1);
    for (int64_t i; (i = begin + take()) < end;) compute(i, end);
  });
}

}  // namespace homenode
