// The data of one step, checked, as the recorded operations read it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"

namespace homenode {

class KvCache;

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
  std::vector<const KvCache*> caches = {};  // may have other memory attached, whose blocks are only read
};

// As the caller gives them: see StepArrays in src/homenode/compute/ops.py.
struct StepInput {
  std::span<const int32_t> ids, positions, query_start, context_len, block_table;
  int64_t block_table_width;
  std::span<const int32_t> sample_rows;
  // Of programs with state memory.
  std::span<const int32_t> state_slot = {}, state_fresh = {}, state_copy_to = {}, state_copy_at = {};
  const float* hidden = nullptr;  // [hidden_rows, hidden_columns], without a gap
  int64_t hidden_rows = 0, hidden_columns = 0;
};

struct Step {
  int tokens = 0, sequences = 0, sampled = 0;
  std::vector<int32_t> ids, positions, query_start, context_len, sample_rows;
  std::vector<int32_t> block_table;  // [sequences, table_width]
  int64_t table_width = 0;
  std::vector<int32_t> state_slot, state_fresh, state_copy_to, state_copy_at;
  std::vector<int32_t> token_block, token_slot;  // where each token's key and value go

  // Copies the input after checking it against the bounds; an Error says which value is wrong, and this step is
  // unchanged.
  std::optional<Error> assign(const StepInput&, const StepBounds&);
};

}  // namespace homenode
