// Attention of some query heads of one token at a time, over chunks of keys that are found one by one: what attention
// to chosen tokens and to rows of windows have in common.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/attention.h"
#include "graph/operation.h"

namespace homenode {

constexpr int kFewHeads = 8;  // work items of fewer query heads would read keys too often

// In steps of at most so many tokens, threads share the keys and the chunks of each.
constexpr int kFewTokens = 16;

inline int chunks_of(int keys) { return (keys + kChunkKeys - 1) / kChunkKeys; }

// What threads share: some query heads of one KV head of a token, and where they are many, its chunks as well.
struct QueryPieces {
  int tokens, rows, of_head;  // pieces of so many rows, so many for each KV head
  bool by_chunk;

  QueryPieces(const Step& step, const AttentionShape& shape, int threads);
};

// Of one token and KV head the query heads first .. first + rows - 1; `number` among all pieces.
struct QueryPiece {
  int token, kv_head, first, rows, number;
};

// Calls take(piece, part) for the share of a thread of the pieces, each in so many parts: those of the heads at its
// home.
template <class Take>
void each_piece(const Step& step, const AttentionShape& shape, const QueryPieces& pieces, int parts, int thread,
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
    take(QueryPiece{shape.sampled_only ? step.sample_rows[static_cast<size_t>(index)] : index, kv_head, first,
                    std::min(pieces.rows, shape.group - first),
                    (index * shape.kv_heads + kv_head) * pieces.of_head + piece},
         i % parts);
  }
}

// The tiles of one chunk of a token's keys.
struct KeyChunk {
  const void *tiles[kChunkTiles], *values[kChunkTiles];
  int keys;
  int first_key;  // see AttendArgs
};

// A result of up to kQueryRows rows.
struct PartialResult {
  float *largest, *sum, *out;
  explicit PartialResult(float* memory) : largest(memory), sum(memory + kQueryRows), out(memory + 2 * kQueryRows) {}
};

// One thread's work on a piece at a time. own: its scratch, of AttentionScratch::thread_bytes.
class PieceWork {
 public:
  PieceWork(const AttentionCall&, const AttentionShape&, const Kernels&, std::byte* own);

  void load_queries(const QueryPiece&);
  // The keys before `from` of the chunk are not seen.
  void compute(const KeyChunk&, int from, int rows, const PartialResult&);
  // Into the merged result, whose first chunk it may be.
  void add(const KeyChunk&, int from, int rows, bool first);
  // One score more of each query head, whose weight has no value. sinks: of all query heads; null: there are none.
  void add_sinks(const float* sinks, const QueryPiece&);
  void write_out(const QueryPiece& piece) { write_out(call_, shape_, kernels_, piece, merged_); }

  static void merge(const Kernels&, int rows, int64_t padded, const PartialResult& to, const PartialResult& from);
  static void write_out(const AttentionCall&, const AttentionShape&, const Kernels&, const QueryPiece&,
                        const PartialResult&);

 private:
  const AttentionCall& call_;
  const AttentionShape& shape_;
  const Kernels& kernels_;
  const KvKernels& kv_;
  int64_t padded_;
  float *queries_, *scores_;
  PartialResult merged_, chunk_;
  float *transformed_, *turned_;
  float scales_[kQueryRows];
};

}  // namespace homenode
