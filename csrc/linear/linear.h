// Products of packed weight matrices (weights/weight.h) with rows of activations.
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
#include "quant/format.h"
#include "weights/weight.h"

namespace homenode {

class RunClaims;


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
  RunClaims* claims = nullptr;  // lets threads help each other (see linear/share.h); null: each does its own share
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
// Tokens that a tile of block formats takes where a step has several tiles: a part of one costs nearly as much.
int linear_tile_tokens(Level);
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
