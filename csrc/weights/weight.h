// Packed weight matrices: what they are, where they lie, and how they come from files and rows.
//
// A Weight is cut by rows into one contiguous piece per thread of the pool that packed it: each thread multiplies the
// rows it packed, so the pages it reads are the pages it first touched, at its home (see host/arena.h). Inside a piece,
// rows stand in groups with the columns interleaved (see quant/pack.h), one strictly sequential stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "quant/format.h"
#include "weights/weight_memory.h"

namespace homenode {

class Arena;
struct Homes;
class ThreadPool;

// Does packed storage in this format have a kernel of its own (at every level)?
bool has_kernel(Format);
// Can rows stored in this format be decoded to float32?
bool can_decode(Format);

// Where a weight lies when the pool has several homes: each piece at its thread's, all pieces at all of them, or pages
// at all of them in turn. The names are those of NumaPolicy in src/homenode/numa_policy.py.
enum class NumaPolicy { shard, mirror, interleave };

struct Weight {
  Format format;
  int64_t rows = 0, columns = 0;
  struct Piece {
    int64_t row_begin, row_end;
    uint8_t* data;
    size_t bytes;
  };
  std::vector<Piece> pieces;  // one per thread of the pool, in order of rows
  // Of each home, the pieces as they lie there; empty unless copied over several homes
  std::vector<std::vector<const uint8_t*>> copies;
  std::shared_ptr<const Homes> homes;  // of the threads; null where all of them are as near
  std::vector<std::shared_ptr<void>> memory;  // owns the pieces

  // A piece as this thread had best read it.
  const uint8_t* data(size_t piece, int thread) const;
  // Is what `owner` multiplies at the home of `thread` as well?
  bool near(int thread, int owner) const;
  // Of one copy, and of all.
  size_t bytes() const;
  size_t memory_bytes() const { return bytes() * (copies.empty() ? 1 : copies.size()); }
};

// What a matrix is to be in memory. Where there is a `shared` place, open for writing and all zeros, the pieces are
// there one behind the other, and all threads are as near.
struct WeightShape {
  Format format;
  int64_t rows, columns;
  NumaPolicy policy = NumaPolicy::shard;
  SharedPlace shared = {};
};

// A matrix as it is stored in an open file. `permuted_heads` > 0: stored rows of each of that many heads have the two
// halves interleaved (row 2*j + h of a head holds canonical row h * head/2 + j). `stride`: bytes from the beginning of
// a row to that of the next, for some columns of a wider matrix; 0: rows follow each other.
struct WeightFile {
  int fd;
  uint64_t offset;
  Format format;
  int permuted_heads = 0;
  uint64_t stride = 0;
};

// The memory comes from `arena`, or is the weight's own where that is null.
//
// Read and pack. Rows are read with pread by the thread that will own them; where the formats differ they are decoded
// to float32 and encoded again.
Result<std::shared_ptr<Weight>> weight_from_file(ThreadPool&, const WeightFile&, const WeightShape&,
                                                 Arena* arena = nullptr);
// Packs float32 [rows, columns].
Result<std::shared_ptr<Weight>> weight_from_rows(ThreadPool&, const float* source, const WeightShape&,
                                                 Arena* arena = nullptr);
// A weight that is in shared memory already, for a pool of `threads` threads. Nothing of it is read here.
Result<std::shared_ptr<Weight>> attach_weight(int threads, const WeightShape&);

}  // namespace homenode
