#include "graph/step.h"

#include <algorithm>
#include <string>

namespace homenode {
namespace {

using std::to_string;

Error wrong(std::string message) { return Error{Fault::user, 0, "step arrays: " + std::move(message)}; }

std::optional<Error> check_counts(const StepInput& in, const StepBounds& bounds) {
  const StepLimits& limits = bounds.limits;
  const auto n = in.ids.size(), s = in.context_len.size(), r = in.sample_rows.size();
  if (n < 1 || n > static_cast<size_t>(limits.max_tokens) || n > static_cast<size_t>(bounds.fixed_rows)) {
    return wrong(to_string(n) + " tokens; wanted 1 to " +
                 to_string(std::min<int64_t>(limits.max_tokens, bounds.fixed_rows)));
  }
  if (s < 1 || s > static_cast<size_t>(limits.max_sequences))
    return wrong(to_string(s) + " sequences; wanted 1 to " + to_string(limits.max_sequences));
  if (r > static_cast<size_t>(limits.max_sampled_rows))
    return wrong(to_string(r) + " sampled rows; at most " + to_string(limits.max_sampled_rows));
  if (in.positions.size() != n)
    return wrong(to_string(in.positions.size()) + " positions for " + to_string(n) + " ids");
  if (!in.token_types.empty() && in.token_types.size() != n)
    return wrong(to_string(in.token_types.size()) + " types for " + to_string(n) + " ids");
  if (!in.adapters.empty() && in.adapters.size() != s)
    return wrong("adapters of " + to_string(in.adapters.size()) + " sequences for " + to_string(s));
  if (in.query_start.size() != s + 1)
    return wrong("query_start has " + to_string(in.query_start.size()) + " entries for " + to_string(s) + " sequences");
  if (in.query_start.front() != 0 || in.query_start.back() != static_cast<int32_t>(n)) {
    return wrong("query_start runs from " + to_string(in.query_start.front()) + " to " +
                 to_string(in.query_start.back()) + "; wanted 0 to " + to_string(n));
  }
  if (in.block_table_width < 0 || in.block_table.size() != s * static_cast<size_t>(in.block_table_width)) {
    return wrong("block_table has another number of rows than context_len");
  }
  if (bounds.received_columns &&
      (in.hidden_rows != static_cast<int64_t>(n) || in.hidden_columns != bounds.received_columns)) {
    return wrong("hidden is " + to_string(in.hidden_rows) + " x " + to_string(in.hidden_columns) + "; wanted " +
                 to_string(n) + " x " + to_string(bounds.received_columns));
  }
  return {};
}

std::optional<Error> check_rows(const StepInput& in, const StepBounds& bounds) {
  if (in.row_places.empty()) return {};
  if (in.input_columns != bounds.row_columns) {
    return wrong("rows of " + to_string(in.input_columns) + " columns in place of embeddings; the program takes " +
                 (bounds.row_columns ? to_string(bounds.row_columns) : "none"));
  }
  for (size_t r = 0; r < in.row_places.size(); ++r) {
    const int64_t token = in.row_places[r];
    if (token < 0 || token >= static_cast<int64_t>(in.ids.size()) || (r && token <= in.row_places[r - 1]))
      return wrong("row_places[" + to_string(r) + "] is " + to_string(token) +
                   "; wanted tokens of the step, ascending");
  }
  return {};
}

std::optional<Error> check_pictures(const StepInput& in) {
  if (!in.rope_positions.empty() && in.rope_positions.size() != kRopeAxes * in.ids.size())
    return wrong("rope_positions has " + to_string(in.rope_positions.size()) + " values; wanted " +
                 to_string(kRopeAxes) + " for each token");
  if (!in.seen_spans.empty() && in.seen_spans.size() != 2 * in.ids.size())
    return wrong("seen_spans has " + to_string(in.seen_spans.size()) + " values; wanted 2 for each token");
  for (size_t i = 0; !in.seen_spans.empty() && i < in.context_len.size(); ++i) {
    for (int32_t t = in.query_start[i]; t < in.query_start[i + 1]; ++t) {
      const int32_t first = in.seen_spans[2 * static_cast<size_t>(t)],
                    past = in.seen_spans[2 * static_cast<size_t>(t) + 1];
      if (!first && !past) continue;
      const int32_t position = in.positions[static_cast<size_t>(t)];
      if (first < 0 || first > position || past <= position || past > in.context_len[i])
        return wrong("token " + to_string(t) + " at position " + to_string(position) + " sees " + to_string(first) +
                     " to " + to_string(past - 1) + "; wanted its own among them, in a context of " +
                     to_string(in.context_len[i]));
    }
  }
  return {};
}

std::optional<Error> check_sequence(const StepInput& in, const StepBounds& bounds, const IsAttached& attached,
                                    size_t i) {
  const std::string who = "sequence " + to_string(i);
  const int64_t begin = in.query_start[i], end = in.query_start[i + 1], context = in.context_len[i];
  if (begin >= end || end > static_cast<int64_t>(in.ids.size()))
    return wrong(who + " has tokens " + to_string(begin) + " to " + to_string(end));
  if (context > bounds.positions)
    return wrong(who + " has a context of " + to_string(context) + "; the table of positions has " +
                 to_string(bounds.positions) + " rows");
  if (context < end - begin)
    return wrong(who + " has " + to_string(end - begin) + " tokens in a context of " + to_string(context));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t expected = context - (end - t);
    if (in.positions[t] != expected) {
      return wrong("token " + to_string(t) + " of " + who + " has position " + to_string(in.positions[t]) +
                   "; its context length says " + to_string(expected));
    }
  }
  if (!bounds.blocks) return {};
  const int64_t needed = (context + bounds.block_size - 1) / bounds.block_size;
  if (needed > in.block_table_width || needed > bounds.limits.max_blocks_per_sequence) {
    return wrong(who + " needs " + to_string(needed) + " blocks; its table has room for " +
                 to_string(in.block_table_width) + ", the program for " +
                 to_string(bounds.limits.max_blocks_per_sequence));
  }
  const int64_t first_written = (context - (end - begin)) / bounds.block_size;
  for (int64_t b = 0; b < needed; ++b) {
    const int64_t block = in.block_table[i * in.block_table_width + b];
    if (block >= 0 && block < bounds.blocks) continue;
    if (block < 0 || !attached || !attached(block))
      return wrong(who + " names block " + to_string(block) + " of " + to_string(bounds.blocks));
    if (b >= first_written)
      return wrong(who + " writes block " + to_string(block) + ", which is another's to be read only");
  }
  return {};
}

// A slot is one sequence's: nobody else reads it or is given a copy there.
std::optional<Error> check_state(const StepInput& in, const StepBounds& bounds) {
  const size_t s = in.context_len.size();
  for (const auto* array : {&in.state_slot, &in.state_fresh}) {
    if (array->size() != s)
      return wrong("state arrays of " + to_string(array->size()) + " entries for " + to_string(s) + " sequences");
  }
  std::vector<int32_t> used(in.state_slot.begin(), in.state_slot.end());
  for (size_t c = 0; c + 2 < in.state_copies.size(); c += 3) {
    const int64_t i = in.state_copies[c], at = in.state_copies[c + 2];
    if (i < 0 || i >= static_cast<int64_t>(s) || (c && i < in.state_copies[c - 3]))
      return wrong("a state of sequence " + to_string(i) + " of " + to_string(s) +
                   " is to be copied; wanted ascending");
    const auto n = static_cast<size_t>(i);
    const int64_t first = in.context_len[n] - (in.query_start[n + 1] - in.query_start[n]);
    const bool behind = c && i == in.state_copies[c - 3] && at <= in.state_copies[c - 1];
    if (behind || at < first || at >= in.context_len[n]) {
      return wrong("sequence " + to_string(i) + " is to copy its state at position " + to_string(at) +
                   "; the step has its positions " + to_string(first) + " to " + to_string(in.context_len[n] - 1) +
                   ", ascending");
    }
    used.push_back(in.state_copies[c + 1]);
  }
  std::sort(used.begin(), used.end());
  if (used.front() < 0 || used.back() >= bounds.state_slots ||
      std::adjacent_find(used.begin(), used.end()) != used.end())
    return wrong("state slots " + to_string(used.front()) + " to " + to_string(used.back()) + " of " +
                 to_string(bounds.state_slots) + "; wanted each once");
  return {};
}

std::optional<Error> check(const StepInput& in, const StepBounds& bounds, const IsAttached& attached) {
  if (auto error = check_counts(in, bounds)) return error;
  if (auto error = check_rows(in, bounds)) return error;
  for (size_t t = 0; t < in.ids.size(); ++t) {
    if (in.ids[t] < 0 || in.ids[t] >= bounds.vocabulary) {
      return wrong("token " + to_string(t) + " has id " + to_string(in.ids[t]) + " in a vocabulary of " +
                   to_string(bounds.vocabulary));
    }
  }
  for (size_t t = 0; t < in.token_types.size(); ++t) {
    if (in.token_types[t] < 0 || in.token_types[t] >= bounds.types) {
      return wrong("token " + to_string(t) + " has type " + to_string(in.token_types[t]) + " of " +
                   to_string(bounds.types));
    }
  }
  for (size_t i = 0; i < in.context_len.size(); ++i) {
    if (auto error = check_sequence(in, bounds, attached, i)) return error;
  }
  if (bounds.state_slots) {
    if (auto error = check_state(in, bounds)) return error;
  }
  if (auto error = check_pictures(in)) return error;
  for (size_t r = 0; r < in.sample_rows.size(); ++r) {
    const int64_t row = in.sample_rows[r];
    if (row < 0 || row >= static_cast<int64_t>(in.ids.size()) || (r && row <= in.sample_rows[r - 1])) {
      return wrong("sample_rows[" + to_string(r) + "] is " + to_string(row) + "; wanted rows of the step, ascending");
    }
  }
  return {};
}

}  // namespace

void Step::assign_copies(const StepInput& in) {
  state_copies.clear();
  copy_start.assign(in.context_len.size() + 1, 0);
  for (size_t c = 0; c + 2 < in.state_copies.size(); c += 3) {
    const auto i = static_cast<size_t>(in.state_copies[c]);
    const int32_t first = in.context_len[i] - (in.query_start[i + 1] - in.query_start[i]);
    state_copies.push_back({in.state_copies[c + 2] - first + 1, in.state_copies[c + 1]});
    ++copy_start[i + 1];
  }
  for (size_t i = 1; i < copy_start.size(); ++i) copy_start[i] += copy_start[i - 1];
}

std::optional<Error> Step::assign(const StepInput& in, const StepBounds& bounds, const IsAttached& attached) {
  if (auto error = check(in, bounds, attached)) return error;
  tokens = static_cast<int>(in.ids.size());
  sequences = static_cast<int>(in.context_len.size());
  sampled = static_cast<int>(in.sample_rows.size());
  table_width = in.block_table_width;
  ids.assign(in.ids.begin(), in.ids.end());
  positions.assign(in.positions.begin(), in.positions.end());
  query_start.assign(in.query_start.begin(), in.query_start.end());
  context_len.assign(in.context_len.begin(), in.context_len.end());
  block_table.assign(in.block_table.begin(), in.block_table.end());
  sample_rows.assign(in.sample_rows.begin(), in.sample_rows.end());
  token_types.assign(in.token_types.begin(), in.token_types.end());
  token_types.resize(in.ids.size());
  state_slot.assign(in.state_slot.begin(), in.state_slot.end());
  state_fresh.assign(in.state_fresh.begin(), in.state_fresh.end());
  assign_copies(in);
  row_places.assign(in.row_places.begin(), in.row_places.end());
  input_rows = in.input_rows;
  input_columns = in.input_columns;
  rope_positions.assign(in.rope_positions.begin(), in.rope_positions.end());
  seen_spans.assign(in.seen_spans.begin(), in.seen_spans.end());
  adapters.assign(in.adapters.begin(), in.adapters.end());
  if (!bounds.blocks) return {};
  token_block.resize(in.ids.size());
  token_slot.resize(in.ids.size());
  for (int i = 0; i < sequences; ++i) {
    for (int32_t t = query_start[i]; t < query_start[i + 1]; ++t) {
      token_block[t] = block_table[i * table_width + positions[t] / bounds.block_size];
      token_slot[t] = positions[t] % bounds.block_size;
    }
  }
  return {};
}

}  // namespace homenode
