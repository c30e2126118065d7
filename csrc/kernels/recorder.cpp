#include "kernels/recorder.h"

#include <string>

#include "host/thread_pool.h"
#include "kernels/operation_linear.h"

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

Result<Tensor> Recorder::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                                    int64_t group) {
  if (auto error = check_input(x, "layer_norm")) return *error;
  for (const Tensor* t : {&weight, &bias}) {
    if (!t->value && t == &bias) continue;
    if (t->rows != RowKind::fixed || t->fixed_rows != 1 || t->columns != weight.columns || x.columns % t->columns) {
      return misuse("layer_norm: a weight or bias of " + to_string(t->columns) + " for rows of " +
                    to_string(x.columns) + "; wanted parameters of one length that divides them");
    }
  }
  const Tensor out = make(x.columns, rows_made_of(x));
  group = group ? group : weight.columns;
  if (group < 1 || weight.columns % group) {
    return misuse("layer_norm: a mean over " + to_string(group) + " columns; wanted a divisor of the weight's " +
                  to_string(weight.columns));
  }
  return append(std::make_unique<LayerNormOperation>(x, weight, bias, eps, group, out), out, {{x}});
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
  if (how == Activation::clamped) return misuse("activate: an activation that takes a gate and what it multiplies");
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<ActivateOperation>(x, how, out), out, {{x}});
}

Result<Tensor> Recorder::clamp(const Tensor& x, float limit) {
  if (auto error = check_input(x, "clamp")) return *error;
  if (!(limit > 0)) return misuse("clamp: a limit of " + to_string(limit));
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<ClampOperation>(x, limit, out), out, {{x}});
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

Result<Tensor> Recorder::scale(const Tensor& x, float factor) {
  if (auto error = check_input(x, "scale")) return *error;
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<ScaleOperation>(x, factor, out), out, {{x}});
}

Result<Tensor> Recorder::scale_by(const Tensor& x, const Tensor& factor) {
  if (!factor.value || factor.rows != RowKind::fixed || factor.fixed_rows != 1 || factor.columns != 1)
    return misuse("scale: a factor that is no parameter of one number");
  return scale(x, View(factor).row(0)[0]);
}

Result<Tensor> Recorder::scale_by_position(const Tensor& x, float growth, int length, int ahead) {
  if (auto error = check_input(x, "scale_by_position")) return *error;
  if (x.rows == RowKind::sampled) return misuse("scale_by_position: rows after select have no positions");
  if (length < 1 || ahead < 0 || ahead > length)
    return misuse("scale_by_position: a length of " + to_string(length) + ", " + to_string(ahead) + " ahead");
  const Tensor out = make(x.columns, RowKind::tokens);
  return append(std::make_unique<ScaleByPositionOperation>(x, growth, length, ahead, out), out, {{x}});
}

Result<Tensor> Recorder::gate_by_largest(const Tensor& x, const Tensor& logits) {
  for (const Tensor* t : {&x, &logits}) {
    if (auto error = check_input(*t, "gate_by_largest")) return *error;
  }
  if (logits.columns < 1 || rows_made_of(x) != rows_made_of(logits))
    return misuse("gate_by_largest: no logits, or some rows selected and others not");
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<GateByLargestOperation>(x, logits, out), out, {{x, logits}});
}

Result<Tensor> Recorder::add_weighted(const Tensor& x, const Tensor& y, const Tensor& weights, int64_t width,
                                      float offset) {
  std::vector<Tensor> from = {x, y};
  if (weights.value) from.push_back(weights);
  for (const Tensor& t : from) {
    if (auto error = check_input(t, "add_weighted")) return *error;
    if (rows_made_of(t) != rows_made_of(x)) return misuse("add_weighted: some rows are selected, others are not");
  }
  if (width < 1 || x.columns % width || y.columns % width ||
      (weights.value && weights.columns != x.columns / width * (y.columns / width))) {
    return misuse("add_weighted: rows of " + to_string(x.columns) + " and " + to_string(y.columns) + " columns with " +
                  to_string(weights.columns) + " weights; wanted one for each pair of runs of " + to_string(width));
  }
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<AddWeightedOperation>(x, y, weights, width, offset, out), out, from);
}

Result<Tensor> Recorder::match_magnitude(const Tensor& x, const Tensor& y, float floor) {
  for (const Tensor* t : {&x, &y}) {
    if (auto error = check_input(*t, "match_magnitude")) return *error;
  }
  if (x.columns % y.columns || rows_made_of(x) != rows_made_of(y) || !(floor > 0)) {
    return misuse("match_magnitude: rows of " + to_string(x.columns) + " and " + to_string(y.columns) +
                  " columns, some selected and others not, or a floor that is not above 0");
  }
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<MatchMagnitudeOperation>(x, y, floor, out), out, {{x, y}});
}

Result<Tensor> Recorder::relu_above(const Tensor& x, float deviations) {
  if (auto error = check_input(x, "relu_above")) return *error;
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<ReluAboveOperation>(x, deviations, out), out, {{x}});
}

Result<Tensor> Recorder::soft_cap(const Tensor& x, float cap) {
  if (auto error = check_input(x, "soft_cap")) return *error;
  const Tensor out = make(x.columns, rows_made_of(x));
  return append(std::make_unique<SoftCapOperation>(x, cap, out), out, {{x}});
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
