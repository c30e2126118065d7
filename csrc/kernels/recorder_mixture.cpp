// The operations of a mixture of experts, as a recorder takes them down.
#include <cmath>
#include <string>

#include "host/team.h"
#include "kernels/moe.h"
#include "kernels/program.h"

namespace homenode {
namespace {

using std::to_string;

Error misuse(std::string message) { return Error{Fault::user, 0, std::move(message)}; }

struct Rows {
  float* data;
  int64_t stride;
  explicit Rows(const Tensor& t) : data(t.data), stride(t.stride) {}
  float* row(int64_t i) const { return data + i * stride; }
};

std::optional<Error> check_mixture(const Tensor& x, const Tensor& logits, const Experts& experts, int chosen, const Tensor& residual) {
  if (auto error = check_experts(experts)) return error;
  for (const Tensor* t : {&x, &logits, &residual}) {
    if (t->rows == RowKind::sampled) return misuse("mixture: rows after select");
  }
  if (x.columns != experts.columns() || residual.columns != experts.columns() || logits.columns != experts.count()) {
    return misuse("mixture: rows of " + to_string(x.columns) + " and " + to_string(residual.columns) + " columns, with " + to_string(logits.columns) +
                  " logits, for " + to_string(experts.count()) + " experts of " + to_string(experts.columns()) + " columns");
  }
  if (chosen < 1 || chosen > experts.count()) return misuse("mixture: " + to_string(chosen) + " experts of " + to_string(experts.count()) + " for each token");
  return {};
}

// What the phases of one mixture share.
struct MixtureCall {
  Experts experts;
  MixtureMemory memory;
};

}  // namespace

Result<Tensor> Recorder::mixture(const Tensor& x, const Tensor& logits, const ExpertWeights& weights, int chosen, bool normalise, const Tensor& residual) {
  for (const Tensor* t : {&x, &logits, &residual}) {
    if (auto error = check_input(*t, "mixture")) return *error;
  }
  auto call = std::make_shared<MixtureCall>();
  for (const auto& w : weights.gate) call->experts.gate.push_back(w.get());
  for (const auto& w : weights.up) call->experts.up.push_back(w.get());
  for (const auto& w : weights.down) call->experts.down.push_back(w.get());
  if (auto error = check_mixture(x, logits, call->experts, chosen, residual)) return *error;
  const Experts& experts = call->experts;
  const int64_t most = program_->bounds_.limits.max_tokens;
  const int threads = program_->team_->size();
  if (most * chosen > INT32_MAX) return misuse("mixture: " + to_string(most) + " tokens with " + to_string(chosen) + " experts each are too many");
  auto out = make(x.columns, RowKind::tokens);
  if (!out) return out.error();
  const size_t bytes = mixture_memory(nullptr, experts, chosen, most, threads, program_->level_).bytes;
  auto buffer = program_->pool_->take((bytes + sizeof(float) - 1) / sizeof(float));
  if (!buffer) return buffer.error();
  const Storage lent(program_->pool_, buffer.value());  // until all is recorded: then later operations may use it
  call->memory = mixture_memory(reinterpret_cast<std::byte*>(buffer.value().data), experts, chosen, most, threads, program_->level_);
  for (const auto* kind : {&weights.gate, &weights.up, &weights.down}) program_->kept_.insert(program_->kept_.end(), kind->begin(), kind->end());
  scratch_bytes_ = std::max(scratch_bytes_, mixture_scratch_bytes(experts, chosen, most));

  const auto arguments = [=, x = Rows(x), logits = Rows(logits), residual = Rows(residual), y = Rows(out.value()), program = program_.get()](const Step& step) {
    return MixtureArgs{&call->experts, chosen,          normalise,   step.tokens, x.data,   x.stride,      logits.data,
                       logits.stride,  residual.data,   residual.stride, y.data,  y.stride, &call->memory, reinterpret_cast<uint8_t*>(program->scratch_.data)};
  };
  const auto add = [&](void (*phase)(const MixtureArgs&, int, int), const Storage* writes, bool (*needed)(const MixtureArgs&)) {
    append([=](const Step& step, int thread, int threads) { phase(arguments(step), thread, threads); }, false, writes,
           [=](const Step& step) { return step.tokens > 0 && (!needed || needed(arguments(step))); });
  };
  add(mixture_route, &lent, nullptr);
  add(mixture_gather, &lent, mixture_needs_gather);
  add(mixture_gate_up, &lent, nullptr);
  add(mixture_prepare, nullptr, mixture_needs_prepare);
  add(mixture_down, out.value().storage.get(), nullptr);
  return out;
}

Result<Tensor> Recorder::add_gated(const Tensor& x, const Tensor& y, const Tensor& gate) {
  for (const Tensor* t : {&x, &y, &gate}) {
    if (auto error = check_input(*t, "add_gated")) return *error;
    if ((t->rows == RowKind::sampled) != (x.rows == RowKind::sampled)) return misuse("add_gated: some rows are selected, others are not");
  }
  if (x.columns != y.columns || gate.columns != 1) {
    return misuse("add_gated: rows of " + to_string(x.columns) + " and " + to_string(y.columns) + " columns with gates of " + to_string(gate.columns) +
                  "; wanted equal ones and gates of 1");
  }
  const RowKind kind = x.rows == RowKind::sampled ? RowKind::sampled : RowKind::tokens;
  auto out = make(x.columns, kind);
  if (!out) return out.error();
  append([=, columns = x.columns, x = Rows(x), y = Rows(y), gate = Rows(gate), sum = Rows(out.value())](const Step& step, int thread, int threads) {
    const RowRange rows = rows_of(kind == RowKind::sampled ? step.sampled : step.tokens, thread, threads);
    for (int r = rows.begin; r < rows.end; ++r) {
      const float scale = 1.0f / (1.0f + std::exp(-gate.row(r)[0]));
      for (int64_t c = 0; c < columns; ++c) sum.row(r)[c] = x.row(r)[c] + scale * y.row(r)[c];
    }
  }, true, out.value().storage.get());
  return out;
}

}  // namespace homenode
