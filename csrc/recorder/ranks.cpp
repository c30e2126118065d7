#include <numeric>
#include <string>

#include "host/rank_group.h"
#include "operations/ranks.h"
#include "recorder/recorder.h"

namespace homenode {

using std::to_string;

Result<Tensor> Recorder::received(int64_t columns) {
  constexpr int64_t kMostColumns = 1 << 24;
  if (columns < 1 || columns > kMostColumns)
    return misuse("received: rows of " + to_string(columns) + " columns; wanted 1 to " + to_string(kMostColumns));
  std::shared_ptr<Value>& rows = program_->received_;
  if (rows && rows->columns != columns)
    return misuse("received: rows of " + to_string(columns) + " columns and of " + to_string(rows->columns));
  if (rows) return Tensor{rows, 0, columns, RowKind::tokens, 0};
  const Tensor out = make(columns, RowKind::tokens);
  out.value->stride = columns;
  out.value->memory = Memory{};
  out.value->memory.given = true;
  rows = out.value;
  program_->bounds_.received_columns = columns;
  return append(std::make_unique<ReceivedOperation>(), out, {});
}

Result<Tensor> Recorder::sum(const Tensor& x) {
  if (auto error = check_input(x, "sum")) return *error;
  const auto& group = program_->group_;
  if (!group || group->size() == 1) return x;
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<SumOperation>(group, x, out), out, {{x}});
}

Result<Tensor> Recorder::gather(const Tensor& x, std::vector<int64_t> widths) {
  if (auto error = check_input(x, "gather")) return *error;
  const auto& group = program_->group_;
  const auto ranks = static_cast<size_t>(group ? group->size() : 1),
             rank = static_cast<size_t>(group ? group->rank() : 0);
  if (widths.size() != ranks)
    return misuse("gather: the widths of " + to_string(widths.size()) + " ranks in a group of " + to_string(ranks));
  int64_t total = 0;
  for (const int64_t width : widths) {
    if (width < 0 || width > INT32_MAX) return misuse("gather: a rank with " + to_string(width) + " columns");
    total += width;
  }
  if (widths[rank] != x.columns) {
    return misuse("gather: rows of " + to_string(x.columns) + " columns on rank " + to_string(rank) +
                  ", which is said to have " + to_string(widths[rank]));
  }
  if (ranks == 1) return x;
  const Tensor out = make(total, rows_made_of(x));
  return append(std::make_unique<GatherOperation>(group, x, std::move(widths), out), out, {{x}});
}

}  // namespace homenode
