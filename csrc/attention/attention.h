// Paged attention as work items for a pool.
//
// A tile is up to 32 rows of (query token, head of the group) of one sequence and KV head. Its context is cut into
// chunks of 256 keys counted from position 0; each chunk gives a partial result for each row, and partial results are
// merged in ascending order. A tile is one work item, or, when there are too few tiles for the pool or its chunks lie
// at several homes, several: then every chunk's partial result is kept and the item that ends last merges them. Either
// way each row sees the same arithmetic.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/step.h"
#include "kernels/kernels.h"
#include "kernels/norm_rope.h"
#include "kv/cache.h"
#include "kv/write.h"
#include "linear/share.h"

namespace homenode {

constexpr float kLog2E = 1.44269504f;  // scores are in base 2: an exponential takes a multiplication less

// Which keys up to its own position a query sees with a window: the nearest, or those of its own run of as many.
enum class WindowKind : uint8_t { sliding, chunked };

// What the division into work items depends on, the same for all layers of most models.
struct AttentionShape {
  int kv_heads, group, head_dim, window;  // window 0: none
  std::vector<HeadGroup> groups = {};  // as KvCache::head_groups; empty: all threads attend to all heads
  bool sampled_only = false;  // rows of tokens that are not sampled may be left out, as nobody reads them
  int value_columns = 0;  // values are the first so many elements of keys; 0: they are beside them, and as wide
  WindowKind window_kind = WindowKind::sliding;
  BlockHomes homes = {};  // as KvCache::block_homes: a chunk is attended to where its first block lies
  bool causal = true;  // rows see keys up to their own; else all of the context, within the window both ways
  bool spans = false;  // rows see the step's span of their token besides, whatever the window is
  int value_dim() const { return value_columns ? value_columns : head_dim; }
  bool operator==(const AttentionShape&) const = default;
};

// Query tokens of a sequence are its last ones: the position of the first.
inline int first_position(const Step& step, int sequence) {
  const auto s = static_cast<size_t>(sequence);
  return step.context_len[s] - (step.query_start[s + 1] - step.query_start[s]);
}

inline int first_visible(int position, const AttentionShape& shape) {
  if (!shape.window || position < shape.window) return 0;
  return shape.window_kind == WindowKind::chunked ? position / shape.window * shape.window
                                                  : position - shape.window + 1;
}

// Where what a position sees of a context of this length ends.
inline int past_visible(const AttentionShape& shape, int position, int context) {
  if (shape.causal) return position + 1;
  return shape.window ? std::min(position + shape.window, context) : context;
}

// The same of a token of the step, which may have a span: rows of a tile in between see no more than its ends do.
inline int first_visible(const Step& step, int token, int position, const AttentionShape& shape) {
  const int first = first_visible(position, shape);
  if (!shape.spans || step.seen_spans.empty()) return first;
  const auto at = 2 * static_cast<size_t>(token);
  return step.seen_spans[at + 1] ? std::min(first, step.seen_spans[at]) : first;
}

inline int past_visible(const Step& step, int token, const AttentionShape& shape, int position, int context) {
  const int past = past_visible(shape, position, context);
  if (!shape.spans || step.seen_spans.empty()) return past;
  return std::max(past, step.seen_spans[2 * static_cast<size_t>(token) + 1]);
}

struct AttentionTile {
  int sequence, kv_head;
  int row_begin, rows;  // row = query token of the sequence * group + head of the group
  int chunk_begin, chunk_end;
  int64_t first_partial;  // of a divided tile: where its partial results begin (see AttentionScratch), else -1
};

struct AttentionItem {
  int tile, chunk_begin, chunk_end;
};

// How one step is divided for one shape.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape&, const StepLimits&, int block_size, int threads);
  void divide(const Step&);

  const AttentionShape& shape() const { return shape_; }
  const std::vector<AttentionTile>& tiles() const { return tiles_; }
  const std::vector<AttentionItem>& items() const { return items_; }
  // The first item of a thread's share; that of the next thread is where it ends. Shares are of about equal work.
  int share_begin(int thread) const { return share_begins_[static_cast<size_t>(thread)]; }
  // Chunks of a tile not computed yet; the one who brings it to zero merges and sets it back.
  std::atomic<int>& chunks_left(int tile) { return chunks_left_[static_cast<size_t>(tile)]; }
  // What partial results take in all, in bytes.
  int64_t partial_bytes() const { return room_; }
  int threads() const { return threads_; }
  // Does one work item alone read the new key of each sequence and KV head? Then it may be the one to write it, too.
  bool writes_alone(const Step& step) const { return step.tokens == step.sequences && shape_.group <= kQueryRows; }

 private:
  void add_sequence(const Step&, int sequence);
  void find_read(const Step&);
  void keep_read(const Step&, int sequence, int& begin, int& end) const;
  void divide_tiles(const Step&);
  size_t home_of(const Step&, const AttentionTile&, int chunk) const;
  int run_end(const Step&, const AttentionTile&, int chunk, int most) const;
  void share_items(const Step&);
  void share_among(const Step&, int item_begin, int item_end, int thread_begin, int thread_end);
  void sort_by_group();
  void sort_by_home(const Step&);
  int64_t cost(const Step&, const AttentionItem&) const;

  AttentionShape shape_;
  int block_size_, threads_;
  int64_t room_;  // for partial results, in bytes
  std::vector<uint8_t> read_;  // of each token, whether its rows are; empty: all are
  std::vector<AttentionTile> tiles_;
  std::vector<AttentionItem> items_;
  std::vector<int> share_begins_;  // [threads + 1]
  std::vector<std::atomic<int>> chunks_left_;
};

// Work space of attention: a part for each thread, and the partial results of divided tiles.
class AttentionScratch {
 public:
  static size_t thread_bytes(const AttentionShape&);
  // A partial result of so many rows: [kQueryRows largest][kQueryRows sum][rows, padded value]
  static size_t partial_bytes(int rows, int value_dim);
  // own: a part of thread_bytes for each thread, from one to the next `own_bytes`; partials: what several threads
  // share.
  AttentionScratch(std::byte* own, size_t own_bytes, std::byte* partials, int value_dim)
      : own_(own), own_bytes_(own_bytes), partials_(partials), value_dim_(value_dim) {}
  float* thread_part(int thread) const;
  // Of a chunk of a divided tile.
  float* partial(const AttentionTile&, int chunk) const;

 private:
  std::byte* own_;
  size_t own_bytes_;
  std::byte* partials_;
  int value_dim_;
};

struct AttentionCall {
  const float* queries;
  int64_t query_stride;
  float* out;
  int64_t out_stride;
  const KvCache* cache;
  int layer;
  float scale;
  float softcap;  // scores become softcap * tanh(score / softcap); 0: they stay
  NormRope query_transform;
  const float* sinks = nullptr;  // of each query head a score without a value, which is not capped; null: none
  const float* slopes = nullptr;  // of each query head what a score loses for each key in between; null: nothing
  // [query heads, 2 * reach + 1] what is added to a score by the key's position less the query's, in base 2; null:
  // nothing
  const float* biases = nullptr;
  int reach = 0;
  // Keys and values of a step that is still to be written: each by the one work item that reads it first, so
  // AttentionPlan::writes_alone.
  const KvWrite* write = nullptr;
};

// A thread works on its share of the items, then on what is left of its neighbours'. Without claims (see
// linear/share.h) it does its own share alone.
void attend(const AttentionCall&, const Step&, AttentionPlan&, const AttentionScratch&, const Kernels&,
            RunClaims* claims, int thread);

}  // namespace homenode
