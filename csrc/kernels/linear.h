// Packed weight matrices and their products with rows of activations.
//
// A Weight is cut by rows into one contiguous piece per thread of the pool that packed it: each thread multiplies the
// rows it packed, so the pages it reads are the pages it first touched, at its home (see host/arena.h). Inside a piece,
// rows stand in groups with the columns interleaved (see quant/pack.h), one strictly sequential stream.
//
// Order of summation: over the columns only, fixed by the format; never by the number of activation rows, threads or
// weights.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/status.h"
#include "kernels/activation.h"
#include "kernels/weight_memory.h"
#include "quant/format.h"

namespace homenode {

class Arena;
class RunClaims;
struct Homes;
class ThreadPool;

// Does packed storage in this format have a kernel of its own (at every level)?
bool has_kernel(Format);
// Can rows stored in this format be decoded to float32?
bool can_decode(Format);

// Where a weight lies when the pool has several homes: each piece at its thread's, all pieces at all of them, or pages
// at all of them in turn.
enum class Spread { split, copied, interleaved };

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
  Spread spread = Spread::split;
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

// Decode one row of a packed weight to float32 (what embedding does), on a thread of the pool.
void unpack_row(const Weight&, int64_t row, float* out, int thread = 0);

// The kernel of an activation at a level.
GateKernel gate_kernel(Activation, Level);

// What becomes of activations that a level rounds to bfloat16 on their way to a BF16 matrix: `fine`, what the rounding
// leaves is rounded as well and multiplied besides, for twice the operations. Elsewhere the two are one.
enum class Precision { usual, fine };

struct LinearArgs {
  const float* x;
  int64_t x_stride;  // [tokens, columns]
  int64_t tokens;
  const Weight* const* weights;
  int count;  // all with the same columns
  const float* const* biases;  // per weight, entries may be null; or null
  const float* residual;
  int64_t residual_stride;  // [tokens, sum of rows], or null; may be `out` itself unless picked
  float* out;
  int64_t out_stride;  // [tokens, sum of rows]
  uint8_t* scratch;  // linear_scratch_bytes(...), 64-byte aligned

  // What is done to the rows on their way into the product. Any of it makes them transformed rows: x itself is then not
  // multiplied.
  const int32_t* picked = nullptr;  // token t's row is row picked[t] of x; null: row t
  const float* norm = nullptr;  // rms_norm with this weight and eps
  float eps = 0;
  bool filled = false;  // another product left the rows in the scratch memory (linear_multiply_gated); x is not read

  const int32_t* residual_picked = nullptr;  // token t's residual is row residual_picked[t] of it; null: row t
  RunClaims* claims = nullptr;  // lets threads help each other (see linear_share.h); null: each does its own share
  GateKernel activation = nullptr;  // of the outputs; only without a residual
  Precision precision = Precision::usual;

  bool transformed() const { return picked || norm || filled; }
};

// The scratch memory of up to max_tokens rows, for any level.
size_t linear_scratch_bytes(int64_t max_tokens, int64_t columns, const Weight* const* weights, int count,
                            bool transformed = false, Precision = Precision::usual);
// Prepare encodes or rounds the activations into the scratch memory, row by row; where the formats and the level want
// float32 rows just as they are, linear_needs_prepare is false. Either the threads share the rows of one scratch
// memory, and a barrier stands between prepare and multiply, or each thread prepares all rows (0, 1) in a memory of its
// own.
bool linear_needs_prepare(const LinearArgs&);
void linear_prepare(const LinearArgs&, int thread, int threads);
void linear_multiply(const LinearArgs&, int thread, int threads);
// A thread's last product of a step is done: what the level keeps in its registers can go. Left out, it costs time and
// nothing else.
void linear_finish();

// Where gated(gate) * up goes: to float32 rows, or as prepared rows into the scratch memory of the product that takes
// them (its `filled` is set).
struct GatedRows {
  const LinearArgs* reader;
  float* out;
  int64_t out_stride;  // without a reader
  Activation gate = Activation::silu;
};
// Can the outputs of these two weights be multiplied where they are made? They are cut alike then: a thread has the
// same rows of both.
bool can_gate(const Weight& gate, const Weight& up);
// The product with two weights, gate and up, and then gated(gate) * up: what linear_multiply into a buffer and the
// gate's kernel would give.
void linear_multiply_gated(const LinearArgs&, const GatedRows&, int thread, int threads);

// out[i] = row ids[i] - first of the table, zeros where it has none; tokens are divided among the threads.
void embedding_rows(const Weight& table, int64_t first, const int32_t* ids, int64_t tokens, float* out,
                    int64_t out_stride, int thread, int threads);

}  // namespace homenode
