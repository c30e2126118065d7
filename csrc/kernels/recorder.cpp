#include <cmath>
#include <cstring>
#include <string>

#include "host/team.h"
#include "kernels/kernels.h"
#include "kernels/kv_write.h"
#include "kernels/program.h"

namespace homenode {
namespace {

using std::to_string;

Error misuse(std::string message) { return Error{Fault::user, 0, std::move(message)}; }

// What a phase keeps of a tensor.
struct View {
  float* data;
  int64_t columns, stride;
  RowKind rows;
  explicit View(const Tensor& t) : data(t.data), columns(t.columns), stride(t.stride), rows(t.rows) {}
  float* row(int64_t i) const { return data + i * stride; }
};

int count_rows(RowKind kind, const Step& step) { return kind == RowKind::sampled ? step.sampled : step.tokens; }

}  // namespace

Recorder::Recorder(std::shared_ptr<Team> team, Level level, const StepLimits& limits) : program_(std::make_shared<Program>()) {
  program_->team_ = std::move(team);
  program_->level_ = level;
  program_->bounds_.limits = limits;
  program_->pool_ = std::make_shared<BufferPool>();
}

Result<Tensor> Recorder::make(int64_t columns, RowKind rows) {
  const StepLimits& limits = program_->bounds_.limits;
  const int64_t count = rows == RowKind::sampled ? limits.max_sampled_rows : limits.max_tokens, stride = row_stride(columns);
  auto buffer = program_->pool_->take(static_cast<size_t>(count * stride));
  if (!buffer) return buffer.error();
  return Tensor{std::make_shared<Storage>(program_->pool_, buffer.value()), buffer.value().data, columns, stride, rows, 0};
}

void Recorder::append(Work work, bool by_rows, const Storage* writes, std::function<bool(const Step&)> needed) {
  std::vector<Phase>& phases = program_->phases_;
  const int number = static_cast<int>(phases.size());
  const bool fresh = !writes || !writes->lent() || writes->free_since() <= group_start_;
  const bool barrier = !(by_rows && fresh && number > group_start_ && phases.back().by_rows);
  if (barrier) group_start_ = number;
  phases.push_back({std::move(work), by_rows, barrier, std::move(needed)});
  program_->pool_->phases = number + 1;
}

// Parameters must live as long as the program; activations live in its pool.
void Recorder::keep(const Tensor& x) {
  if (!x.storage->lent()) program_->kept_.push_back(x.storage);
}

std::optional<Error> Recorder::check_input(const Tensor& x, const char* operation) {
  if (!x.data) return misuse(std::string(operation) + ": an empty tensor handle");
  if (x.storage->lent() && x.storage->pool() != program_->pool_.get()) return misuse(std::string(operation) + ": a handle of another program");
  if (x.rows == RowKind::fixed) {  // a constant stands for the step's tokens
    program_->bounds_.fixed_rows = std::min(program_->bounds_.fixed_rows, x.fixed_rows);
    keep(x);
  }
  return {};
}

Result<Tensor> Recorder::embedding(std::shared_ptr<const Weight> table) {
  auto out = make(table->columns, RowKind::tokens);
  if (!out) return out.error();
  program_->bounds_.vocabulary = std::min(program_->bounds_.vocabulary, table->rows);
  program_->kept_.push_back(table);
  append([table = table.get(), y = View(out.value())](const Step& step, int thread, int threads) {
    embedding_rows(*table, step.ids.data(), step.tokens, y.data, y.stride, thread, threads);
  }, false, out.value().storage.get());
  return out;
}

Result<Tensor> Recorder::rms_norm(const Tensor& x, const Tensor& weight, float eps) {
  if (auto error = check_input(x, "rms_norm")) return *error;
  if (weight.rows != RowKind::fixed || weight.fixed_rows != 1 || weight.columns < 1 || x.columns % weight.columns) {
    return misuse("rms_norm: a weight of " + to_string(weight.columns) + " for rows of " + to_string(x.columns) + "; wanted a parameter that divides them");
  }
  auto out = make(x.columns, x.rows == RowKind::fixed ? RowKind::tokens : x.rows);
  if (!out) return out.error();
  keep(weight);
  const auto norm = kernels(program_->level_).rms_norm;
  append([=, x = View(x), w = View(weight), y = View(out.value())](const Step& step, int thread, int threads) {
    const RowRange rows = rows_of(count_rows(y.rows, step), thread, threads);
    for (int r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = 0; c < x.columns; c += w.columns) norm(x.row(r) + c, w.data, y.row(r) + c, w.columns, eps);
    }
  }, true, out.value().storage.get());
  return out;
}

Result<Tensor> Recorder::linear(const Tensor& x, std::vector<std::shared_ptr<const Weight>> weights, const std::vector<Tensor>& biases,
                                const Tensor* residual) {
  if (auto error = check_input(x, "linear")) return *error;
  if (weights.empty()) return misuse("linear: no weights");
  if (!biases.empty() && biases.size() != weights.size()) {
    return misuse("linear: " + to_string(biases.size()) + " biases for " + to_string(weights.size()) + " weights");
  }
  struct Call {
    std::vector<const Weight*> weights;
    std::vector<const float*> biases;
  };
  auto call = std::make_shared<Call>();
  int64_t columns = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& w = *weights[i];
    if (w.columns != x.columns) return misuse("linear: a weight of " + to_string(w.columns) + " columns for rows of " + to_string(x.columns));
    columns += w.rows;
    call->weights.push_back(&w);
    const Tensor* bias = biases.empty() || !biases[i].data ? nullptr : &biases[i];
    if (bias && (bias->rows != RowKind::fixed || bias->fixed_rows != 1 || bias->columns != w.rows)) {
      return misuse("linear: a bias of " + to_string(bias->columns) + " for a weight of " + to_string(w.rows) + " rows; wanted a parameter of that length");
    }
    if (bias) keep(*bias);
    call->biases.push_back(bias ? bias->data : nullptr);
  }
  const RowKind kind = x.rows == RowKind::fixed ? RowKind::tokens : x.rows;
  if (residual) {
    if (auto error = check_input(*residual, "linear")) return *error;
    const RowKind theirs = residual->rows == RowKind::fixed ? RowKind::tokens : residual->rows;
    if (residual->columns != columns || theirs != kind) {
      return misuse("linear: a residual of " + to_string(residual->columns) + " columns for " + to_string(columns) + " outputs, or of other rows");
    }
  }
  auto out = make(columns, kind);
  if (!out) return out.error();
  for (auto& w : weights) program_->kept_.push_back(w);

  const StepLimits& limits = program_->bounds_.limits;
  const int64_t most = kind == RowKind::sampled ? limits.max_sampled_rows : limits.max_tokens;
  scratch_bytes_ = std::max(scratch_bytes_, linear_scratch_bytes(most, x.columns, call->weights.data(), static_cast<int>(call->weights.size())));
  const auto arguments = [call, x = View(x), y = View(out.value()), kind, program = program_.get(), addend = residual ? residual->data : nullptr,
                          addend_stride = residual ? residual->stride : 0](const Step& step) {
    return LinearArgs{x.data, x.stride, count_rows(kind, step), call->weights.data(), static_cast<int>(call->weights.size()), call->biases.data(),
                      addend, addend_stride, y.data, y.stride, reinterpret_cast<uint8_t*>(program->scratch_.data)};
  };
  append([=](const Step& step, int thread, int threads) { linear_prepare(arguments(step), thread, threads); }, false, nullptr,
         [=](const Step& step) { return count_rows(kind, step) > 0 && linear_needs_prepare(arguments(step)); });
  append([=](const Step& step, int thread, int threads) {
    if (count_rows(kind, step)) linear_multiply(arguments(step), thread, threads);
  }, false, out.value().storage.get());
  return out;
}

Result<std::vector<Tensor>> Recorder::split(const Tensor& x, std::span<const int64_t> widths) {
  int64_t total = 0;
  for (const int64_t width : widths) {
    if (width < 1) return misuse("split: a part of " + to_string(width) + " columns");
    total += width;
  }
  if (total != x.columns) return misuse("split: parts of " + to_string(total) + " columns in all for rows of " + to_string(x.columns));
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t width : widths) {
    parts.push_back(x);
    parts.back().data += begin;
    parts.back().columns = width;
    begin += width;
  }
  return parts;
}

Result<Tensor> Recorder::rope_angles(std::vector<float> inverse_frequencies, float scale) {
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  if (half < 1) return misuse("rope_angles: no frequencies");
  auto out = make(2 * half, RowKind::tokens);
  if (!out) return out.error();
  append([=, frequencies = std::move(inverse_frequencies), y = View(out.value())](const Step& step, int thread, int threads) {
    const RowRange rows = rows_of(step.tokens, thread, threads);
    for (int r = rows.begin; r < rows.end; ++r) {
      const auto position = static_cast<float>(step.positions[static_cast<size_t>(r)]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * frequencies[static_cast<size_t>(i)];
        y.row(r)[i] = std::cos(angle) * scale;
        y.row(r)[half + i] = std::sin(angle) * scale;
      }
    }
  }, true, out.value().storage.get());
  return out;
}

Result<Tensor> Recorder::rope(const Tensor& x, const Tensor& angles, int head_dim) {
  if (auto error = check_input(x, "rope")) return *error;
  if (auto error = check_input(angles, "rope")) return *error;
  if (head_dim < 2 || x.columns % head_dim || angles.columns > head_dim || angles.columns % 2 || angles.rows != RowKind::tokens) {
    return misuse("rope: heads of " + to_string(head_dim) + " in rows of " + to_string(x.columns) + " with angles of " + to_string(angles.columns) +
                  "; wanted whole heads and the angles of rope_angles, no longer than a head");
  }
  if (x.rows == RowKind::sampled) return misuse("rope: rows after select have no angles");
  Tensor out = x;
  if (!x.storage->lent()) {
    auto made = make(x.columns, RowKind::tokens);
    if (!made) return made.error();
    out = made.value();
  }
  append([=, rotate = kernels(program_->level_).rotate, x = View(x), angles = View(angles), y = View(out)](const Step& step, int thread, int threads) {
    const RowRange rows = rows_of(step.tokens, thread, threads);
    for (int r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = 0; c < x.columns; c += head_dim) rotate(x.row(r) + c, y.row(r) + c, angles.row(r), angles.columns / 2, head_dim);
    }
  }, true, x.storage->lent() ? nullptr : out.storage.get());
  return out;
}

Result<Tensor> Recorder::silu_mul(const Tensor& gate_up) {
  if (auto error = check_input(gate_up, "silu_mul")) return *error;
  if (gate_up.columns % 2) return misuse("silu_mul: rows of " + to_string(gate_up.columns) + " have no halves");
  const int64_t half = gate_up.columns / 2;
  auto out = make(half, gate_up.rows == RowKind::fixed ? RowKind::tokens : gate_up.rows);
  if (!out) return out.error();
  const auto silu = kernels(program_->level_).silu_mul;
  // Divided by pieces of rows, not by rows: one token's gate is work for the whole team.
  append([=, x = View(gate_up), y = View(out.value())](const Step& step, int thread, int threads) {
    constexpr int64_t kPiece = 256;
    const int64_t pieces = (half + kPiece - 1) / kPiece;
    const RowRange mine = rows_of(static_cast<int>(count_rows(y.rows, step) * pieces), thread, threads);
    for (int i = mine.begin; i < mine.end; ++i) {
      const int64_t row = i / pieces, begin = i % pieces * kPiece;
      silu(x.row(row) + begin, x.row(row) + half + begin, y.row(row) + begin, std::min(kPiece, half - begin));
    }
  }, false, out.value().storage.get());
  return out;
}

Result<Tensor> Recorder::select(const Tensor& x) {
  if (auto error = check_input(x, "select")) return *error;
  if (x.rows == RowKind::sampled) return misuse("select: the rows are selected already");
  auto out = make(x.columns, RowKind::sampled);
  if (!out) return out.error();
  append([x = View(x), y = View(out.value())](const Step& step, int thread, int threads) {
    const RowRange rows = rows_of(step.sampled, thread, threads);
    for (int r = rows.begin; r < rows.end; ++r) {
      std::memcpy(y.row(r), x.row(step.sample_rows[static_cast<size_t>(r)]), static_cast<size_t>(x.columns) * sizeof(float));
    }
  }, false, out.value().storage.get());
  return out;
}

std::optional<Error> Recorder::check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const KvCache& cache, int layer, int window) {
  for (const Tensor* t : {&q, &k, &v}) {
    if (auto error = check_input(*t, "attention")) return error;
    if (t->rows == RowKind::sampled) return misuse("attention: rows after select");
  }
  const KvShape& shape = cache.shape();
  const int64_t width = int64_t(shape.kv_heads) * shape.head_dim;
  if (k.columns != width || v.columns != width || q.columns < width || q.columns % width) {
    return misuse("attention: q, k, v of " + to_string(q.columns) + ", " + to_string(k.columns) + ", " + to_string(v.columns) + " columns with KV memory of " +
                  to_string(shape.kv_heads) + " heads of " + to_string(shape.head_dim));
  }
  if (layer < 0 || layer >= shape.layers) return misuse("attention: layer " + to_string(layer) + " of " + to_string(shape.layers));
  if (window < 0) return misuse("attention: a window of " + to_string(window));
  StepBounds& bounds = program_->bounds_;
  if (bounds.blocks && (bounds.block_size != shape.block_size)) return misuse("attention: KV memories with different block sizes in one program");
  bounds.blocks = bounds.blocks ? std::min(bounds.blocks, cache.blocks()) : cache.blocks();
  bounds.block_size = shape.block_size;
  return {};
}

int Recorder::plan_for(const AttentionShape& shape, int block_size) {
  auto& plans = program_->plans_;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i]->shape() == shape) return static_cast<int>(i);
  }
  plans.push_back(std::make_unique<AttentionPlan>(shape, program_->bounds_.limits, block_size, program_->team_->size()));
  return static_cast<int>(plans.size()) - 1;
}

Result<Tensor> Recorder::attention(const Tensor& q, const Tensor& k, const Tensor& v, std::shared_ptr<KvCache> cache, int layer, float scale,
                                   int window, float softcap) {
  if (!(softcap >= 0) || std::isinf(softcap)) return misuse("attention: scores capped at " + to_string(softcap) + "; wanted 0 for no cap, or more");
  if (auto error = check_attention(q, k, v, *cache, layer, window)) return *error;
  auto out = make(q.columns, RowKind::tokens);
  if (!out) return out.error();
  const KvShape& shape = cache->shape();
  const int head_dim = shape.head_dim, kv_heads = shape.kv_heads, threads = program_->team_->size();
  const AttentionShape key{kv_heads, static_cast<int>(q.columns / (int64_t(kv_heads) * head_dim)), head_dim, window};
  AttentionPlan* plan = program_->plans_[static_cast<size_t>(plan_for(key, shape.block_size))].get();
  std::atomic<int>* next = program_->counters_.emplace_back(std::make_unique<std::atomic<int>>(0)).get();
  scratch_bytes_ = std::max(scratch_bytes_, AttentionScratch::bytes(threads, plan->partials(), head_dim));
  program_->kept_.push_back(cache);

  const KvWrite write{k.data, k.stride, v.data, v.stride, cache.get(), layer, {}};
  const Kernels* table = &kernels(program_->level_);
  append([=](const Step& step, int thread, int threads) {
    const RowRange rows = rows_of(step.tokens, thread, threads);
    write_keys_values(write, step, *table, rows.begin, rows.end, 0, kv_heads);
  }, true, nullptr);
  const AttentionCall call{q.data, q.stride, out.value().data, out.value().stride, cache.get(), layer, scale, softcap, {}};
  append([=, program = program_.get()](const Step& step, int thread, int threads) {
    attend(call, step, *plan, AttentionScratch(program->scratch_.data, threads, head_dim), *table, *next, thread);
  }, false, out.value().storage.get());
  return out;
}

Result<std::shared_ptr<Program>> Recorder::finish(const Tensor& output) {
  if (auto error = check_input(output, "the result of the forward function")) return *error;
  auto scratch = allocate_pages(scratch_bytes_);
  if (!scratch) return scratch.error();
  program_->scratch_ = scratch.value();
  program_->output_ = output;
  return std::move(program_);
}

}  // namespace homenode
