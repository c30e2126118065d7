#include "attention/attention.h"

#include <algorithm>
#include <tuple>

namespace homenode {
// Room for every KV head of the longest sequence while it is decoded: with one tile left whole, all would wait for the
// thread that has it.
AttentionPlan::AttentionPlan(const AttentionShape& shape, const StepLimits& limits, int block_size, int threads)
    : shape_(shape), block_size_(block_size), threads_(threads) {
  const int64_t longest = int64_t(limits.max_blocks_per_sequence) * block_size,
                chunks = (longest + kChunkKeys - 1) / kChunkKeys * shape.kv_heads;
  const auto room = [&](int64_t count, int rows) {
    return count * static_cast<int64_t>(AttentionScratch::partial_bytes(rows, shape.value_dim()));
  };
  room_ = threads == 1 ? 0 : std::max(room(16 * threads, kQueryRows), room(chunks, std::min(shape.group, kQueryRows)));
}

// With one token of each sequence all are read, as the work items may be the ones to write their keys.
void AttentionPlan::find_read(const Step& step) {
  read_.clear();
  if (!shape_.sampled_only || step.tokens == step.sequences) return;
  read_.assign(static_cast<size_t>(step.tokens), 0);
  for (const int32_t token : step.sample_rows) read_[static_cast<size_t>(token)] = 1;
}

// Cuts rows of a tile that nobody reads off its ends.
void AttentionPlan::keep_read(const Step& step, int sequence, int& begin, int& end) const {
  if (read_.empty()) return;
  const uint8_t* of_sequence = read_.data() + step.query_start[static_cast<size_t>(sequence)];
  int first = begin / shape_.group, past = (end - 1) / shape_.group + 1;
  while (first < past && !of_sequence[first]) ++first;
  while (first < past && !of_sequence[past - 1]) --past;
  begin = std::max(begin, first * shape_.group), end = std::min(end, past * shape_.group);
}

void AttentionPlan::add_sequence(const Step& step, int sequence) {
  const int rows = (step.query_start[sequence + 1] - step.query_start[sequence]) * shape_.group,
            first = first_position(step, sequence);
  // Of about equal size: to read keys and values takes a tile of few rows as long as one of many.
  const int tiles = (rows + kQueryRows - 1) / kQueryRows;
  // Later rows see more keys: the longest work first, so that the pool ends together.
  for (int tile = tiles - 1; tile >= 0; --tile) {
    int begin = static_cast<int>(int64_t(rows) * tile / tiles),
        end = static_cast<int>(int64_t(rows) * (tile + 1) / tiles);
    keep_read(step, sequence, begin, end);
    if (begin >= end) continue;
    const int count = end - begin;
    const int low = begin / shape_.group, high = (begin + count - 1) / shape_.group;
    const int token = step.query_start[static_cast<size_t>(sequence)];
    const int past =
        past_visible(step, token + high, shape_, first + high, step.context_len[static_cast<size_t>(sequence)]);
    const int seen = first_visible(step, token + low, first + low, shape_);
    for (int head = 0; head < shape_.kv_heads; ++head) {
      tiles_.push_back({sequence, head, begin, count, seen / kChunkKeys, (past - 1) / kChunkKeys + 1, -1});
    }
  }
}

size_t AttentionPlan::home_of(const Step& step, const AttentionTile& tile, int chunk) const {
  const int64_t block = int64_t(chunk) * kChunkKeys / block_size_;
  return shape_.homes.of(step.block_table[static_cast<size_t>(tile.sequence * step.table_width + block)]);
}

// Where chunks from `chunk` on that lie at one home end, after `most` of them at the latest.
int AttentionPlan::run_end(const Step& step, const AttentionTile& tile, int chunk, int most) const {
  const int last = std::min(chunk + most, tile.chunk_end);
  if (!shape_.homes.stripe) return last;
  const size_t home = home_of(step, tile, chunk);
  int end = chunk + 1;
  while (end < last && home_of(step, tile, end) == home) ++end;
  return end;
}

// A tile is one item, unless there are so few tiles that the pool needs them divided, or it lies at several homes.
void AttentionPlan::divide_tiles(const Step& step) {
  const int tiles = static_cast<int>(tiles_.size()), wanted = 4 * threads_;
  int64_t chunks = 0;
  for (const AttentionTile& tile : tiles_) chunks += tile.chunk_end - tile.chunk_begin;
  const int span = static_cast<int>(std::max<int64_t>(1, chunks / wanted));
  int64_t taken = 0;
  for (int i = 0; i < tiles; ++i) {
    AttentionTile& tile = tiles_[static_cast<size_t>(i)];
    const int count = tile.chunk_end - tile.chunk_begin;
    const int64_t bytes = count * static_cast<int64_t>(AttentionScratch::partial_bytes(tile.rows, shape_.value_dim()));
    const int most = tiles >= wanted || count <= span ? count : span;
    if (taken + bytes > room_ || run_end(step, tile, tile.chunk_begin, most) == tile.chunk_end) {
      items_.push_back({i, tile.chunk_begin, tile.chunk_end});
      continue;
    }
    tile.first_partial = taken;
    taken += bytes;
    for (int chunk = tile.chunk_begin, end; chunk < tile.chunk_end; chunk = end) {
      end = run_end(step, tile, chunk, most);
      items_.push_back({i, chunk, end});
    }
  }
}

// Of an item, beside others: keys times rows, and something for beginning at all.
int64_t AttentionPlan::cost(const Step& step, const AttentionItem& item) const {
  const AttentionTile& tile = tiles_[static_cast<size_t>(item.tile)];
  const int first = first_position(step, tile.sequence);
  const int token = step.query_start[static_cast<size_t>(tile.sequence)], begin = tile.row_begin / shape_.group,
            end = (tile.row_begin + tile.rows - 1) / shape_.group;
  const int low = first_visible(step, token + begin, first + begin, shape_);
  const int past =
      past_visible(step, token + end, shape_, first + end, step.context_len[static_cast<size_t>(tile.sequence)]);
  return int64_t(tile.rows) *
         (64 + std::min(past, item.chunk_end * kChunkKeys) - std::max(low, item.chunk_begin * kChunkKeys));
}

// Cuts the items into shares of about equal work for threads thread_begin .. thread_end - 1.
void AttentionPlan::share_among(const Step& step, int item_begin, int item_end, int thread_begin, int thread_end) {
  const int threads = thread_end - thread_begin;
  int64_t total = 0, before = 0;
  for (int i = item_begin; i < item_end; ++i) total += cost(step, items_[static_cast<size_t>(i)]);
  int thread = 0;
  for (int i = item_begin; i < item_end; ++i) {
    const int64_t here = cost(step, items_[static_cast<size_t>(i)]);
    // An item belongs to the thread in whose part of the work its middle lies.
    for (; thread < threads && thread * total <= (before + here / 2) * threads; ++thread)
      share_begins_[static_cast<size_t>(thread_begin + thread)] = i;
    before += here;
  }
  for (; thread < threads; ++thread) share_begins_[static_cast<size_t>(thread_begin + thread)] = item_end;
}

// Items of the heads of one home after those of the home before.
void AttentionPlan::sort_by_group() {
  const auto head = [this](const AttentionItem& item) { return tiles_[static_cast<size_t>(item.tile)].kv_head; };
  const auto group = [&](const AttentionItem& item) {
    size_t at = 0;
    while (head(item) >= shape_.groups[at].past_head) ++at;
    return at;
  };
  std::stable_sort(items_.begin(), items_.end(),
                   [&](const AttentionItem& a, const AttentionItem& b) { return group(a) < group(b); });
}

// Items at one home after those at the home before; there those of a sequence's chunks in order, so that what one tile
// has read is near when another one reads it.
void AttentionPlan::sort_by_home(const Step& step) {
  const auto place = [&](const AttentionItem& item) {
    const AttentionTile& tile = tiles_[static_cast<size_t>(item.tile)];
    return std::tuple(home_of(step, tile, item.chunk_begin), tile.sequence, item.chunk_begin);
  };
  std::stable_sort(items_.begin(), items_.end(),
                   [&](const AttentionItem& a, const AttentionItem& b) { return place(a) < place(b); });
}

void AttentionPlan::share_items(const Step& step) {
  const int items = static_cast<int>(items_.size());
  share_begins_.assign(static_cast<size_t>(threads_) + 1, items);
  if (shape_.homes.stripe) {
    sort_by_home(step);
    int item = 0, thread = 0;
    for (size_t home = 0; home < shape_.homes.past_thread.size(); ++home) {
      int end = item;
      for (; end < items; ++end) {
        const AttentionItem& next = items_[static_cast<size_t>(end)];
        if (home_of(step, tiles_[static_cast<size_t>(next.tile)], next.chunk_begin) != home) break;
      }
      share_among(step, item, end, thread, shape_.homes.past_thread[home]);
      item = end, thread = shape_.homes.past_thread[home];
    }
    return;
  }
  if (shape_.groups.empty()) return share_among(step, 0, items, 0, threads_);
  sort_by_group();
  int item = 0, thread = 0;
  for (const HeadGroup& group : shape_.groups) {
    int end = item;
    while (end < items && tiles_[static_cast<size_t>(items_[static_cast<size_t>(end)].tile)].kv_head < group.past_head)
      ++end;
    share_among(step, item, end, thread, group.past_thread);
    item = end, thread = group.past_thread;
  }
}

void AttentionPlan::divide(const Step& step) {
  tiles_.clear();
  items_.clear();
  find_read(step);
  for (int s = 0; s < step.sequences; ++s) add_sequence(step, s);
  divide_tiles(step);
  share_items(step);
  const int tiles = static_cast<int>(tiles_.size());
  if (chunks_left_.size() < tiles_.size())
    chunks_left_ = std::vector<std::atomic<int>>(std::max(tiles_.size(), 2 * chunks_left_.size()));
  for (int i = 0; i < tiles; ++i) {
    const AttentionTile& tile = tiles_[static_cast<size_t>(i)];
    chunks_left(i).store(tile.chunk_end - tile.chunk_begin, std::memory_order_relaxed);
  }
}

size_t AttentionScratch::partial_bytes(int rows, int value_dim) {
  return sizeof(float) * static_cast<size_t>(2 * kQueryRows + rows * padded_head(value_dim));
}

// Queries, scores, two results, the merged one and the chunk's, a query on its way, and turned values.
size_t AttentionScratch::thread_bytes(const AttentionShape& shape) {
  const int64_t head = padded_head(shape.head_dim);
  return sizeof(float) * static_cast<size_t>(kQueryRows * head + kQueryRows * kChunkKeys + head) +
         2 * partial_bytes(kQueryRows, shape.value_dim()) +
         (shape.value_columns ? static_cast<size_t>(kTurnedBytes) : 0);
}

float* AttentionScratch::thread_part(int thread) const {
  return reinterpret_cast<float*>(own_ + static_cast<size_t>(thread) * own_bytes_);
}

float* AttentionScratch::partial(const AttentionTile& tile, int chunk) const {
  const size_t before = static_cast<size_t>(chunk - tile.chunk_begin) * partial_bytes(tile.rows, value_dim_);
  return reinterpret_cast<float*>(partials_ + static_cast<size_t>(tile.first_partial) + before);
}

}  // namespace homenode
