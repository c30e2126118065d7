#include "recorder/recorder.h"

#include <string>

#include "host/thread_pool.h"
#include "operations/linear.h"

namespace homenode {

using std::to_string;

Recorder::Recorder(std::shared_ptr<ThreadPool> pool, Level level, const StepLimits& limits, bool fuse,
                   std::shared_ptr<RankGroup> group, std::shared_ptr<const Homes> homes)
    : program_(std::make_shared<Program>()), home_(std::make_shared<char>()), fuse_(fuse) {
  program_->pool_ = std::move(pool);
  program_->group_ = std::move(group);
  program_->level_ = level;
  if (homes && homes->count() > 1) program_->homes_ = std::move(homes);
  program_->bounds_.limits = limits;
}

Tensor Recorder::make(int64_t columns, RowKind rows) const {
  auto value = std::make_shared<Value>();
  value->columns = columns;
  value->stride = row_stride(columns);
  value->rows = rows;
  value->home = home_;
  const auto most = static_cast<size_t>(most_rows(rows, program_->bounds_.limits));
  value->memory.row_bytes = static_cast<size_t>(value->stride) * sizeof(float);
  value->memory.bytes = most * value->memory.row_bytes;
  value->memory.rows = rows;
  return Tensor{value, 0, columns, rows, 0};
}

Tensor Recorder::append(std::unique_ptr<Operation> operation, const Tensor& out, std::span<const Tensor> inputs) {
  for (const Tensor& x : inputs) ++x.value->uses;
  out.value->made_by = operation.get();
  program_->operations_.push_back(std::move(operation));
  return out;
}

std::optional<Error> Recorder::check_input(const Tensor& x, const char* operation) {
  if (!x.value) return misuse(std::string(operation) + ": an empty tensor handle");
  if (x.rows != RowKind::fixed) {
    if (x.value->home != home_) return misuse(std::string(operation) + ": a handle of another program");
    return {};
  }
  // A constant stands for the step's tokens
  program_->bounds_.fixed_rows = std::min(program_->bounds_.fixed_rows, x.fixed_rows);
  return {};
}

Result<Tensor> Recorder::embedding(std::shared_ptr<const Weight> table, int64_t first, int64_t vocabulary) {
  const int64_t rows = vocabulary ? vocabulary : table->rows;
  if (first < 0 || rows < table->rows || first > rows - table->rows) {
    return misuse("embedding: a table of " + to_string(table->rows) + " rows from row " + to_string(first) +
                  " in a vocabulary of " + to_string(rows));
  }
  const Tensor out = make(table->columns, RowKind::tokens);
  program_->bounds_.vocabulary = std::min(program_->bounds_.vocabulary, rows);
  return append(std::make_unique<EmbeddingOperation>(std::move(table), first, out), out, {});
}

Result<Tensor> Recorder::place_rows(const Tensor& x, int64_t first, int64_t of_columns, bool adds) {
  if (auto error = check_input(x, "place_rows")) return *error;
  if (x.rows != RowKind::tokens || !x.whole()) return misuse("place_rows: wanted whole rows of all tokens of a step");
  if (x.value->uses) return misuse("place_rows: rows that something else reads already");
  int64_t& columns = program_->bounds_.row_columns;
  const int64_t whole = of_columns ? of_columns : x.columns;
  if (first < 0 || first > whole - x.columns)
    return misuse("place_rows: " + to_string(x.columns) + " columns from " + to_string(first) + " on of rows of " +
                  to_string(whole));
  if (columns && columns != whole)
    return misuse("place_rows: rows of " + to_string(whole) + " columns and of " + to_string(columns));
  columns = whole;
  return append(std::make_unique<PlaceRowsOperation>(x, first, adds), x, {{x}});
}

Result<Tensor> Recorder::position_rows(std::shared_ptr<const Weight> table, int64_t first) {
  if (first < 0 || first >= table->rows)
    return misuse("position_rows: a table of " + to_string(table->rows) + " rows from row " + to_string(first) + " on");
  const Tensor out = make(table->columns, RowKind::tokens);
  program_->bounds_.positions = std::min(program_->bounds_.positions, table->rows - first);
  return append(std::make_unique<PositionRowsOperation>(std::move(table), first, out), out, {});
}

Result<Tensor> Recorder::type_rows(std::shared_ptr<const Weight> table) {
  const Tensor out = make(table->columns, RowKind::tokens);
  program_->bounds_.types = std::min(program_->bounds_.types, table->rows);
  return append(std::make_unique<TypeRowsOperation>(std::move(table), out), out, {});
}

Result<Tensor> Recorder::stored_rows(std::shared_ptr<const StoredTable> table, std::optional<int> otherwise) {
  if (otherwise && (*otherwise < 0 || *otherwise >= table->rows()))
    return misuse("stored_rows: row " + to_string(*otherwise) + " of a table of " + to_string(table->rows()));
  const Tensor out = make(table->columns(), RowKind::tokens);
  if (!otherwise) program_->bounds_.vocabulary = std::min(program_->bounds_.vocabulary, table->rows());
  return append(std::make_unique<StoredRowsOperation>(std::move(table), otherwise.value_or(0), out), out, {});
}

Result<Tensor> Recorder::rms_norm(const Tensor& x, const Tensor& weight, float eps) {
  if (auto error = check_input(x, "rms_norm")) return *error;
  if (weight.rows != RowKind::fixed || weight.fixed_rows != 1 || weight.columns < 1 || x.columns % weight.columns) {
    return misuse("rms_norm: a weight of " + to_string(weight.columns) + " for rows of " + to_string(x.columns) +
                  "; wanted a parameter that divides them");
  }
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<RmsNormOperation>(x, weight, eps, out), out, {{x}});
}

Result<std::vector<Tensor>> Recorder::split(const Tensor& x, std::span<const int64_t> widths) {
  if (auto error = check_input(x, "split")) return *error;
  int64_t total = 0;
  for (const int64_t width : widths) {
    if (width < 1) return misuse("split: a part of " + to_string(width) + " columns");
    total += width;
  }
  if (total != x.columns)
    return misuse("split: parts of " + to_string(total) + " columns in all for rows of " + to_string(x.columns));
  std::vector<Tensor> parts;
  int64_t begin = x.begin;
  for (const int64_t width : widths) {
    parts.push_back(x);
    parts.back().begin = begin;
    parts.back().columns = width;
    begin += width;
  }
  return parts;
}

Result<Tensor> Recorder::gated(const Tensor& gate_up, const Tensor& up, Activation gate) {
  const std::string operation = gate == Activation::silu ? "silu_mul" : "gelu_mul";
  if (auto error = check_input(gate_up, operation.c_str())) return *error;
  if (up.value) {
    if (auto error = check_input(up, operation.c_str())) return *error;
    if (gate_up.columns != up.columns || rows_made_of(gate_up) != rows_made_of(up)) {
      return misuse(operation + ": rows of " + to_string(gate_up.columns) + " and " + to_string(up.columns) +
                    " columns, or some selected and others not");
    }
    const Tensor out = make(up.columns, rows_made_of(gate_up));
    return append(std::make_unique<GateOperation>(gate_up, up, gate, out), out, {{gate_up, up}});
  }
  if (gate_up.columns % 2) return misuse(operation + ": rows of " + to_string(gate_up.columns) + " have no halves");
  const Tensor out = make(gate_up.columns / 2, rows_made_of(gate_up));
  return append(std::make_unique<GateOperation>(gate_up, Tensor{}, gate, out), out, {{gate_up}});
}

Result<Tensor> Recorder::activate(const Tensor& x, Activation how) {
  if (auto error = check_input(x, "activate")) return *error;
  if (!is_plain(how)) return misuse("activate: an activation that takes a gate and what it multiplies");
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<ActivateOperation>(x, how, out), out, {{x}});
}

Result<Tensor> Recorder::add(const Tensor& x, const Tensor& y) {
  const bool to_all = y.value && y.rows == RowKind::fixed && y.fixed_rows == 1 && x.value;  // a vector
  for (const Tensor* t : {&x, &y}) {
    if (to_all && t == &y) continue;
    if (auto error = check_input(*t, "add")) return *error;
  }
  if (x.columns != y.columns || (!to_all && rows_made_of(x) != rows_made_of(y))) {
    return misuse("add: rows of " + to_string(x.columns) + " and " + to_string(y.columns) +
                  " columns, or some selected and others not");
  }
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<AddOperation>(x, y, out), out, {{x, y}});
}

Result<Tensor> Recorder::select(const Tensor& x) {
  if (auto error = check_input(x, "select")) return *error;
  if (x.rows == RowKind::sampled) return misuse("select: the rows are selected already");
  const Tensor out = make(x.columns, RowKind::sampled);
  return append(std::make_unique<SelectOperation>(x, out), out, {{x}});
}

// The last product is the one of the output matrix, where the program ends with rows that the step selects.
void Recorder::name_head() {
  for (auto at = program_->operations_.rbegin(); at != program_->operations_.rend(); ++at) {
    auto* product = dynamic_cast<LinearOperation*>(at->get());
    if (!product) continue;
    if (product->out.rows == RowKind::sampled) product->name = "lm_head";
    return;
  }
}

Result<std::shared_ptr<Program>> Recorder::finish(const Tensor& output) {
  if (auto error = check_input(output, "the result of the forward function")) return *error;
  if (output.value->memory.given) return misuse("the result of the forward function is what it received");
  ++output.value->uses;
  if (fuse_) {
    for (auto& operation : program_->operations_) operation->fuse_producers();
  }
  name_head();
  Lowering lowering(*program_);
  for (auto& operation : program_->operations_) {
    if (!operation->fused) operation->lower(lowering);
  }
  if (auto error = lowering.place_memory(output)) return *error;
  program_->output_ = output;
  return std::move(program_);
}

}  // namespace homenode
