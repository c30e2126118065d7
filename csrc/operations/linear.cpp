#include "operations/linear.h"

#include <algorithm>

#include "operations/attention.h"

namespace homenode {
namespace {

// Up to so many rows every thread prepares them all for itself: less work than waiting for each other.
constexpr int kFewRows = 8;

}  // namespace

LinearOperation::LinearOperation(Tensor from, std::vector<std::shared_ptr<const Weight>> with,
                                 const std::vector<Tensor>& plus, const Tensor* residual, Tensor to,
                                 Precision precision)
    : x(std::move(from)),
      out(std::move(to)),
      owned_(std::move(with)),
      parameters_(plus),
      has_residual_(residual),
      precision_(precision),
      source_(x) {
  if (residual) residual_ = *residual;
  for (const auto& weight : owned_) weights_.push_back(weight.get());
  for (size_t i = 0; i < weights_.size(); ++i)
    biases_.push_back(plus.empty() || !plus[i].value ? nullptr : View(plus[i]).row(0));
}

void LinearOperation::fuse_producers() {
  if (auto* norm = maker_of<RmsNormOperation>(x); norm && norm->weight.columns == x.columns) {
    norm->fused = true;
    norm_ = norm;
    source_ = norm->x;
  }
  selected_ = take_selection(source_);
  auto* gate = maker_of<GateOperation>(x);
  filled_ = gate && gate->fill(this);
  residual_selected_ = has_residual_ && take_selection(residual_);
  if (auto* attention = maker_of<AttentionOperation>(source_)) name = "o", attention->sampled_only = selected_;
  else if (gate || maker_of<ActivateOperation>(x)) name = "down";
}

LinearArgs LinearOperation::arguments(const Step& step, Memory* scratch) const {
  const View y(out), from(source_);
  LinearArgs args{from.row(0),
                  from.stride(),
                  rows_in(out.rows, step),
                  weights_.data(),
                  static_cast<int>(weights_.size()),
                  biases_.data(),
                  has_residual_ ? View(residual_).row(0) : nullptr,
                  has_residual_ ? residual_.value->stride : 0,
                  y.row(0),
                  y.stride(),
                  scratch ? reinterpret_cast<uint8_t*>(scratch->data) : nullptr};
  if (selected_) args.picked = step.sample_rows.data();
  if (residual_selected_) args.residual_picked = step.sample_rows.data();
  if (norm_) args.norm = View(norm_->weight).row(0), args.eps = norm_->eps;
  args.filled = filled_;
  args.claims = claims_;
  args.activation = activation_;
  args.precision = precision_;
  return args;
}

size_t LinearOperation::scratch_bytes(int64_t rows) const {
  return linear_scratch_bytes(rows, x.columns, weights_.data(), static_cast<int>(weights_.size()),
                              norm_ || selected_ || filled_, precision_);
}

Memory* LinearOperation::shared(Lowering& to) {
  if (!shared_) shared_ = to.scratch(scratch_bytes(to.most_rows(out.rows)));
  return shared_;
}

void LinearOperation::lower_as(Lowering& to, Multiply multiply, std::vector<Memory*> touched) {
  claims_ = to.claims();
  touched.push_back(memory_of(source_));
  if (has_residual_) touched.push_back(memory_of(residual_));
  const LevelScope scope(to.level());
  Step any;
  any.sample_rows.resize(1);
  const bool prepares = linear_needs_prepare(arguments(any, nullptr));
  Memory* rows = prepares || filled_ ? shared(to) : nullptr;
  if (rows) touched.push_back(rows);
  if (!prepares) {
    to.phase({name, [=, this](const Step& step, int thread,
                              int threads) { multiply(arguments(step, rows), step, thread, threads); }},
             touched);
    return;
  }
  const RowKind kind = out.rows;
  Memory* own = to.own_scratch(scratch_bytes(std::min(kFewRows, to.most_rows(kind))));
  std::string preparing = name;
  preparing.append(" rows");
  to.phase(
      {preparing,
       [=, this](const Step& step, int thread, int threads) { linear_prepare(arguments(step, rows), thread, threads); },
       !selected_, [=](const Step& step) { return rows_in(kind, step) > kFewRows; }},
      {memory_of(source_), rows});
  touched.push_back(own);
  to.phase({name,
            [=, this](const Step& step, int thread, int threads) {
              LinearArgs args = arguments(step, rows);
              if (args.tokens <= kFewRows) {
                args.scratch = reinterpret_cast<uint8_t*>(own->data) + own->own_bytes * static_cast<size_t>(thread);
                linear_prepare(args, 0, 1);
              }
              multiply(args, step, thread, threads);
            }},
           touched);
}

void LinearOperation::lower(Lowering& to) {
  lower_as(to,
           [](const LinearArgs& args, const Step&, int thread, int threads) { linear_multiply(args, thread, threads); },
           {memory_of(out)});
}

void LinearOperation::lower_activated(Lowering& to, Activation by, const Tensor& result) {
  name = "gate_up", activation_ = gate_kernel(by, to.level()), out = result;
  lower(to);
}

const Weight* LinearOperation::only_weight() const {
  return weights_.size() == 1 && !has_residual_ ? weights_[0] : nullptr;
}

bool LinearOperation::multiplies_as_is(Level level) const {
  const LevelScope scope(level);
  Step any;
  any.sample_rows.resize(1);
  return !linear_needs_prepare(arguments(any, nullptr));
}

bool LinearOperation::can_gate() const {
  return weights_.size() == 2 && !has_residual_ && weights_[0]->rows == weights_[1]->rows &&
         homenode::can_gate(*weights_[0], *weights_[1]);
}

void LinearOperation::lower_gated(Lowering& to, Activation gate, const Tensor& result, LinearOperation* reader) {
  name = "gate_up";
  if (reader) {
    Memory* rows = reader->shared(to);
    lower_as(to,
             [=](const LinearArgs& args, const Step& step, int thread, int threads) {
               const LinearArgs theirs = reader->arguments(step, rows);
               linear_multiply_gated(args, {&theirs, nullptr, 0, gate}, thread, threads);
             },
             {rows});
    return;
  }
  lower_as(to,
           [gate, y = View(result)](const LinearArgs& args, const Step&, int thread, int threads) {
             linear_multiply_gated(args, {nullptr, y.row(0), y.stride(), gate}, thread, threads);
           },
           {memory_of(result)});
}

}  // namespace homenode
