#include "kernels/attention.h"

#include <algorithm>
#include <utility>


namespace homenode {
namespace {

// Query tokens of a sequence are its last ones.
int first_position(const Step& step, int sequence) {
  return step.context_len[sequence] - (step.query_start[sequence + 1] - step.query_start[sequence]);
}

int first_visible(int position, int window) { return window ? std::max(0, position - window + 1) : 0; }

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, const StepLimits& limits, int block_size, int threads) : shape_(shape), threads_(threads) {
  const int64_t longest = int64_t(limits.max_blocks_per_sequence) * block_size;
  max_partials_ = threads == 1 ? 0 : static_cast<int>(std::max<int64_t>(16 * threads, (longest + kChunkKeys - 1) / kChunkKeys));
}

void AttentionPlan::add_sequence(const Step& step, int sequence) {
  const int rows = (step.query_start[sequence + 1] - step.query_start[sequence]) * shape_.group, first = first_position(step, sequence);
  // Later rows see more keys: the longest work first, so that the team ends together.
  for (int begin = (rows - 1) / kQueryRows * kQueryRows; begin >= 0; begin -= kQueryRows) {
    const int count = std::min(kQueryRows, rows - begin);
    const int low = first + begin / shape_.group, high = first + (begin + count - 1) / shape_.group;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      tiles_.push_back({sequence, head, begin, count, first_visible(low, shape_.window) / kChunkKeys, high / kChunkKeys + 1, -1});
    }
  }
}

void AttentionPlan::divide(const Step& step) {
  tiles_.clear();
  items_.clear();
  for (int s = 0; s < step.sequences; ++s) add_sequence(step, s);
  const int tiles = static_cast<int>(tiles_.size()), wanted = 4 * threads_;
  int64_t chunks = 0;
  for (const AttentionTile& tile : tiles_) chunks += tile.chunk_end - tile.chunk_begin;
  const int span = static_cast<int>(std::max<int64_t>(1, chunks / wanted));
  int partials = 0;
  for (int i = 0; i < tiles; ++i) {
    AttentionTile& tile = tiles_[static_cast<size_t>(i)];
    const int count = tile.chunk_end - tile.chunk_begin;
    if (tiles >= wanted || count <= span || partials + count > max_partials_) {
      items_.push_back({i, tile.chunk_begin, tile.chunk_end});
      continue;
    }
    tile.first_partial = partials;
    partials += count;
    for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; chunk += span) items_.push_back({i, chunk, std::min(chunk + span, tile.chunk_end)});
  }
  if (chunks_left_.size() < tiles_.size()) chunks_left_ = std::vector<std::atomic<int>>(std::max(tiles_.size(), 2 * chunks_left_.size()));
  for (int i = 0; i < tiles; ++i) {
    const AttentionTile& tile = tiles_[static_cast<size_t>(i)];
    chunks_left(i).store(tile.chunk_end - tile.chunk_begin, std::memory_order_relaxed);
  }
}

size_t AttentionScratch::partial_floats(int head_dim) { return static_cast<size_t>(kQueryRows * (2 + padded_head(head_dim))); }

// Queries, scores, and two results: the chunk's and the merged one.
size_t AttentionScratch::thread_floats(int head_dim) {
  return static_cast<size_t>(kQueryRows * padded_head(head_dim) + kQueryRows * kChunkKeys) + 2 * partial_floats(head_dim);
}

size_t AttentionScratch::bytes(int threads, int partials, int head_dim) {
  return sizeof(float) * (static_cast<size_t>(threads) * thread_floats(head_dim) + static_cast<size_t>(partials) * partial_floats(head_dim));
}

float* AttentionScratch::thread_part(int thread) const {
  return reinterpret_cast<float*>(memory_) + static_cast<size_t>(thread) * thread_floats(head_dim_);
}

float* AttentionScratch::partial(int index) const {
  return thread_part(threads_) + static_cast<size_t>(index) * partial_floats(head_dim_);
}

namespace {

// A result of up to kQueryRows rows: largest score, sum of weights, weighted values.
struct Rows {
  float *largest, *sum, *out;
  Rows(float* memory) : largest(memory), sum(memory + kQueryRows), out(memory + 2 * kQueryRows) {}
};

constexpr float kLog2E = 1.44269504f;  // scores are in base 2: an exponential takes a multiplication less

// One tile as one thread works on it.
class TileWork {
 public:
  TileWork(const AttentionCall& call, const Step& step, const AttentionPlan& plan, const AttentionItem& item, const Kernels& kernels, float* memory)
      : call_(call), step_(step), shape_(plan.shape()), tile_(plan.tiles()[static_cast<size_t>(item.tile)]),
        first_chunk_(item.chunk_begin), last_chunk_(item.chunk_end), kernels_(kernels), padded_(padded_head(plan.shape().head_dim)), queries_(memory),
        scores_(memory + kQueryRows * padded_), merged_(scores_ + kQueryRows * kChunkKeys), chunk_(merged_.out + kQueryRows * padded_) {
    const int first = first_position(step_, tile_.sequence);
    for (int r = 0; r < tile_.rows; ++r) positions_[r] = first + (tile_.row_begin + r) / shape_.group;
  }

  // The tile's rows as the scores are computed from them.
  void load_queries() {
    const KvKernels& kv = call_.cache->kernels(kernels_);
    float* transformed = chunk_.out;  // not in use yet
    for (int r = 0; r < tile_.rows; ++r) {
      const float* q = call_.queries + token(r) * call_.query_stride + head(r) * shape_.head_dim;
      q = call_.query_transform.apply(kernels_, q, token(r), shape_.head_dim, transformed);
      std::byte* loaded = reinterpret_cast<std::byte*>(queries_) + int64_t(r) * shape_.head_dim * kv.query_bytes;
      query_scales_[r] = kv.load_query(q, shape_.head_dim, call_.scale * kLog2E, loaded);
    }
  }

  void compute_chunk(int chunk, const Rows& result) {
    const int first = chunk * kChunkKeys;
    // The chunk before has found this one's tiles and asked for them, unless there was none.
    const void* ahead[3 * kChunkTiles];
    int tiles_ahead = 0;
    if (chunk == first_chunk_) {
      find_tiles(chunk, here_);
      tiles_ahead = here_.append(here_.values, ahead, 0);
    } else {
      std::swap(here_, next_);
    }
    if (chunk + 1 < last_chunk_) {
      find_tiles(chunk + 1, next_);
      tiles_ahead = next_.append(next_.values, ahead, next_.append(next_.keys, ahead, tiles_ahead));
    }
    int begin[kQueryRows], end[kQueryRows];
    for (int r = 0; r < tile_.rows; ++r) {
      const int p = positions_[r];
      begin[r] = std::max(first_visible(p, shape_.window) - first, 0);
      end[r] = std::min(p + 1 - first, kChunkKeys);
    }
    call_.cache->kernels(kernels_).attend({tile_.rows, shape_.head_dim, queries_, query_scales_, call_.softcap * kLog2E, here_.keys, here_.values, begin, end,
                                           scores_, result.largest, result.sum, result.out, ahead, tiles_ahead});
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
    for (int r = 0; r < tile_.rows; ++r) {
      float* out = call_.out + token(r) * call_.out_stride + head(r) * shape_.head_dim;
      kernels_.divide(merged_.out + r * padded_, merged_.sum[r], out, shape_.head_dim);
    }
  }

 private:
  // What a chunk is to each row; returns whether it is the first one to all.
  bool merge_kinds(int chunk, Merge* how) const {
    bool first_of_all = true;
    for (int r = 0; r < tile_.rows; ++r) {
      const int p = positions_[r], first = first_visible(p, shape_.window) / kChunkKeys;
      how[r] = chunk < first || chunk > p / kChunkKeys ? Merge::leave : chunk == first ? Merge::take : Merge::add;
      first_of_all &= how[r] == Merge::take;
    }
    return first_of_all;
  }

  void merge(const Rows& result, const Merge* how) {
    kernels_.merge({tile_.rows, padded_, how, merged_.largest, merged_.sum, merged_.out, result.largest, result.sum, result.out});
  }

  // Tiles of a chunk's keys and values; those of a block lie one behind the other.
  struct ChunkTiles {
    const void *keys[kChunkTiles], *values[kChunkTiles];
    int count = 0;
    int append(const void* const* tiles, const void** list, int length) const {
      std::copy(tiles, tiles + count, list + length);
      return length + count;
    }
  };

  void find_tiles(int chunk, ChunkTiles& tiles) const {
    const KvCache& cache = *call_.cache;
    const int block_size = cache.shape().block_size, last = std::min((chunk + 1) * kChunkKeys, step_.context_len[tile_.sequence]);
    int position = chunk * kChunkKeys, slot = position % block_size;
    const int32_t* block = &step_.block_table[static_cast<size_t>(tile_.sequence * step_.table_width + position / block_size)];
    tiles.count = 0;
    while (position < last) {
      const std::byte *keys = cache.keys(call_.layer, *block, tile_.kv_head, slot), *values = cache.values(call_.layer, *block, tile_.kv_head, slot);
      for (; slot < block_size && position < last; slot += kTileKeys, position += kTileKeys, keys += cache.tile_bytes(), values += cache.tile_bytes()) {
        tiles.keys[tiles.count] = keys;
        tiles.values[tiles.count++] = values;
      }
      slot = 0;
      ++block;
    }
  }

  int64_t token(int r) const { return step_.query_start[tile_.sequence] + (tile_.row_begin + r) / shape_.group; }
  int64_t head(int r) const { return int64_t(tile_.kv_head) * shape_.group + (tile_.row_begin + r) % shape_.group; }

  const AttentionCall& call_;
  const Step& step_;
  const AttentionShape& shape_;
  const AttentionTile& tile_;
  int first_chunk_, last_chunk_;  // of the item
  const Kernels& kernels_;
  int64_t padded_;
  float *queries_, *scores_;
  float query_scales_[kQueryRows];
  int positions_[kQueryRows];
  ChunkTiles here_, next_;
  Rows merged_, chunk_;
};

}  // namespace

void attend(const AttentionCall& call, const Step& step, AttentionPlan& plan, const AttentionScratch& scratch, const Kernels& kernels,
            std::atomic<int>& next, int thread) {
  const int items = static_cast<int>(plan.items().size());
  for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
    const AttentionItem& item = plan.items()[static_cast<size_t>(i)];
    const AttentionTile& tile = plan.tiles()[static_cast<size_t>(item.tile)];
    if (call.write && item.chunk_end == tile.chunk_end) {
      const int token = step.query_start[tile.sequence];
      write_keys_values(*call.write, step, kernels, token, token + 1, tile.kv_head, tile.kv_head + 1);
    }
    TileWork work(call, step, plan, item, kernels, scratch.thread_part(thread));
    work.load_queries();
    if (tile.first_partial < 0) {
      for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
        work.compute_and_merge(chunk);
      }
      work.write_out();
      continue;
    }
    const auto kept = [&](int chunk) { return Rows(scratch.partial(tile.first_partial + chunk - tile.chunk_begin)); };
    for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) work.compute_chunk(chunk, kept(chunk));
    std::atomic<int>& left = plan.chunks_left(item.tile);
    const int mine = item.chunk_end - item.chunk_begin;
    if (left.fetch_sub(mine, std::memory_order_acq_rel) != mine) continue;
    left.store(tile.chunk_end - tile.chunk_begin, std::memory_order_relaxed);  // for the next layer
    for (int chunk = tile.chunk_begin; chunk < tile.chunk_end; ++chunk) work.merge_chunk(chunk, kept(chunk));
    work.write_out();
  }
}

}  // namespace homenode
