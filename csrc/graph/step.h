// The data of one step, checked, as the recorded operations read it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"

namespace homenode {

struct StepLimits {
  int max_tokens, max_sequences, max_sampled_rows, max_blocks_per_sequence;
};

// What a program can take: known when it is recorded.
struct StepBounds {
  StepLimits limits;
  int64_t vocabulary = INT32_MAX;  // rows of the embedding table
  int64_t blocks = 0;              // of the KV memory; 0: the program has none
  int block_size = 0;
  int64_t fixed_rows = INT32_MAX;  // rows of the shortest constant input
  int64_t state_slots = 0;         // of the state memory; 0: the program has none
  int64_t received_columns = 0;    // of the rows that a step brings; 0: none
  int64_t row_columns = 0;         // of rows that it may bring in place of embeddings; 0: none
  int64_t positions = INT32_MAX;   // that a table of positions has rows for
  int64_t types = INT32_MAX;       // rows of the table of token types
};

// Is this block, beyond those of the KV memory, in memory that all of a program's caches have attached? Such blocks
// are only read.
using IsAttached = std::function<bool(int64_t block)>;

// As the caller gives them: see StepArrays in src/homenode/compute/ops.py.
struct StepInput {
  std::span<const int32_t> ids, positions, query_start, context_len, block_table;
  int64_t block_table_width;
  std::span<const int32_t> sample_rows;
  // Of programs with state memory; copies in threes: sequence, slot, position.
  std::span<const int32_t> state_slot = {}, state_fresh = {}, state_copies = {};
  std::span<const int32_t> token_types = {};  // none: all are 0
  std::span<const int32_t> adapters = {};     // of each sequence, -1 where it has none; none: no sequence has one
  const float* hidden = nullptr;  // [hidden_rows, hidden_columns], without a gap
  int64_t hidden_rows = 0, hidden_columns = 0;
  // In place of embeddings: [row_places, input_columns], without a gap, and the tokens of the step they stand for.
  std::span<const int32_t> row_places = {};
  const float* input_rows = nullptr;
  int64_t input_columns = 0;
  // [kRopeAxes, tokens] what rope with axes turns by in place of positions; none: positions on all axes.
  std::span<const int32_t> rope_positions = {};
  // [tokens, 2] the first and past position that a token sees besides those up to its own; 0, 0: none. None: no token
  // has any.
  std::span<const int32_t> seen_spans = {};
};

constexpr int kRopeAxes = 3;  // of positions: time, row and column of a picture

// A slot that gets a copy of a sequence's state as it is after so many of its tokens in the step.
struct StateCopy {
  int32_t tokens, slot;
};

struct Step {
  int tokens = 0, sequences = 0, sampled = 0;
  std::vector<int32_t> ids, positions, query_start, context_len, sample_rows, token_types;
  std::vector<int32_t> block_table;  // [sequences, table_width]
  int64_t table_width = 0;
  std::vector<int32_t> state_slot, state_fresh;
  std::vector<StateCopy> state_copies;  // those of a sequence beside each other, ascending
  std::vector<int32_t> copy_start;      // [sequences + 1] of programs with state memory
  std::vector<int32_t> token_block, token_slot;  // where each token's key and value go
  std::vector<int32_t> row_places;               // tokens with a row of their own, ascending
  const float* input_rows = nullptr;             // these rows, where the caller has them
  int64_t input_columns = 0;
  std::vector<int32_t> rope_positions, seen_spans, adapters;  // as StepInput has them

  std::span<const StateCopy> copies_of(size_t sequence) const {
    return std::span(state_copies)
        .subspan(static_cast<size_t>(copy_start[sequence]),
                 static_cast<size_t>(copy_start[sequence + 1] - copy_start[sequence]));
  }

  // Copies the input after checking it against the bounds; an Error says which value is wrong, and this step is
  // unchanged.
  std::optional<Error> assign(const StepInput&, const StepBounds&, const IsAttached& = {});

 private:
  void assign_copies(const StepInput&);
};

// The result of a program: [rows, columns], valid until its next run.
struct Output {
  const float* data;
  int64_t rows, columns, stride;
};

}  // namespace homenode
