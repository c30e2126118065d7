#include "attention/pieces.h"

namespace homenode {

QueryPieces::QueryPieces(const Step& step, const AttentionShape& shape, int threads)
    : tokens(shape.sampled_only ? step.sampled : step.tokens), rows(std::min(kQueryRows, shape.group)) {
  const int64_t heads = int64_t(tokens) * shape.kv_heads, wanted = 2 * int64_t(threads);
  while (rows >= 2 * kFewHeads && heads * (shape.group / rows) < wanted) rows /= 2;
  of_head = (shape.group + rows - 1) / rows;
  by_chunk = threads > 1 && step.tokens <= kFewTokens && heads * of_head < wanted;
}

PieceWork::PieceWork(const AttentionCall& call, const AttentionShape& shape, const Kernels& kernels, std::byte* own)
    : call_(call),
      shape_(shape),
      kernels_(kernels),
      kv_(call.cache->kernels(kernels)),
      padded_(padded_head(shape.value_dim())),
      queries_(reinterpret_cast<float*>(own)),
      scores_(queries_ + kQueryRows * padded_head(shape.head_dim)),
      merged_(scores_ + kQueryRows * kChunkKeys),
      chunk_(merged_.out + kQueryRows * padded_),
      transformed_(chunk_.out + kQueryRows * padded_),
      turned_(shape.value_columns ? transformed_ + padded_head(shape.head_dim) : nullptr) {}

void PieceWork::load_queries(const QueryPiece& piece) {
  auto* loaded = reinterpret_cast<std::byte*>(queries_);
  const int64_t first_head = int64_t(piece.kv_head) * shape_.group + piece.first;
  const float* q = call_.queries + piece.token * call_.query_stride + first_head * shape_.head_dim;
  for (int r = 0; r < piece.rows; ++r, q += shape_.head_dim, loaded += int64_t(shape_.head_dim) * kv_.query_bytes) {
    const float* head = call_.query_transform.apply(kernels_, q, piece.token, shape_.head_dim, transformed_);
    scales_[r] = kv_.load_query(head, shape_.head_dim, call_.scale * kLog2E, loaded);
  }
}

void PieceWork::compute(const KeyChunk& chunk, int from, int rows, const PartialResult& result) {
  int begin[kQueryRows], end[kQueryRows];
  std::fill_n(begin, rows, from);
  std::fill_n(end, rows, chunk.keys);
  kv_.attend({rows, shape_.head_dim, shape_.value_dim(), queries_, scales_, call_.softcap * kLog2E, chunk.tiles,
              chunk.values, begin, end, chunk.first_key, scores_, result.largest, result.sum, result.out, padded_,
              turned_});
}

void PieceWork::add(const KeyChunk& chunk, int from, int rows, bool first) {
  compute(chunk, from, rows, first ? merged_ : chunk_);
  if (!first) merge(kernels_, rows, padded_, merged_, chunk_);
}

void PieceWork::add_sinks(const float* sinks, const QueryPiece& piece) {
  if (!sinks) return;
  sinks += int64_t(piece.kv_head) * shape_.group + piece.first;
  for (int r = 0; r < piece.rows; ++r) merged_.sum[r] += std::exp2(sinks[r] * kLog2E - merged_.largest[r]);
}

void PieceWork::merge(const Kernels& kernels, int rows, int64_t padded, const PartialResult& to,
                      const PartialResult& from) {
  Merge how[kQueryRows];
  std::fill_n(how, rows, Merge::add);
  kernels.merge({rows, padded, how, to.largest, to.sum, to.out, from.largest, from.sum, from.out});
}

void PieceWork::write_out(const AttentionCall& call, const AttentionShape& shape, const Kernels& kernels,
                          const QueryPiece& piece, const PartialResult& from) {
  const int width = shape.value_dim();
  float* out = call.out + piece.token * call.out_stride + int64_t(piece.kv_head * shape.group + piece.first) * width;
  for (int r = 0; r < piece.rows; ++r, out += width)
    kernels.divide(from.out + r * padded_head(width), from.sum[r], out, width);
}

}  // namespace homenode
