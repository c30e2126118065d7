#include "bind/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>

#include "host/rank_group.h"

namespace homenode {
namespace {

std::shared_ptr<const Weight> weight_of(const WeightHandle& handle) {
  // The team outlives the weight, and with it every program that uses it.
  struct Both {
    std::shared_ptr<Weight> weight;
    std::shared_ptr<Team> team;
  };
  auto both = std::make_shared<Both>(Both{handle.weight, handle.team});
  return {both, both->weight.get()};
}

Tensor linear(Recorder& r, const Tensor& x, const std::vector<const WeightHandle*>& handles, const std::vector<std::optional<Tensor>>& optional_biases,
              const std::optional<Tensor>& residual) {
  std::vector<std::shared_ptr<const Weight>> weights;
  for (const WeightHandle* handle : handles) weights.push_back(weight_of(*handle));
  std::vector<Tensor> biases;
  for (const auto& bias : optional_biases) biases.push_back(bias.value_or(Tensor{}));
  return take(r.linear(x, std::move(weights), biases, residual ? &*residual : nullptr));
}

ExpertWeights experts_of(const std::vector<const WeightHandle*>& gate, const std::vector<const WeightHandle*>& up, const std::vector<const WeightHandle*>& down) {
  ExpertWeights experts;
  for (const WeightHandle* handle : gate) experts.gate.push_back(weight_of(*handle));
  for (const WeightHandle* handle : up) experts.up.push_back(weight_of(*handle));
  for (const WeightHandle* handle : down) experts.down.push_back(weight_of(*handle));
  return experts;
}

Output run(Program& program, const Array1<int32_t>& ids, const Array1<int32_t>& positions, const Array1<int32_t>& query_start,
           const Array1<int32_t>& context_len, const Array2<int32_t>& block_table, const Array1<int32_t>& sample_rows,
           const std::optional<Array2<float>>& hidden) {
  StepInput input{span_of(ids), span_of(positions), span_of(query_start), span_of(context_len),
                        {block_table.data(), block_table.size()}, static_cast<int64_t>(block_table.shape(1)), span_of(sample_rows)};
  if (hidden) {
    input.hidden = hidden->data();
    input.hidden_rows = static_cast<int64_t>(hidden->shape(0)), input.hidden_columns = static_cast<int64_t>(hidden->shape(1));
  }
  auto output = [&] {
    nb::gil_scoped_release unlocked;
    return program.run(input);
  }();
  return take(std::move(output));
}

std::vector<std::tuple<std::string, int64_t, double, double>> phase_times(Program& program) {
  std::vector<std::tuple<std::string, int64_t, double, double>> lines;
  for (const PhaseTime& line : program.phase_times()) lines.emplace_back(line.name, line.runs, line.seconds, line.waited);
  return lines;
}

auto copy_output(const Output& output) {
  const auto rows = static_cast<size_t>(output.rows), columns = static_cast<size_t>(output.columns);
  std::vector<float> values(rows * columns);
  for (size_t r = 0; r < rows; ++r) std::memcpy(values.data() + r * columns, output.data + static_cast<int64_t>(r) * output.stride, columns * sizeof(float));
  return array_of(std::move(values), {rows, columns});
}

auto expert_uses(const Program& program) {
  const std::vector<std::vector<uint64_t>> uses = program.expert_uses();
  size_t experts = 0;
  for (const auto& row : uses) experts = std::max(experts, row.size());
  std::vector<uint64_t> table;
  for (const auto& row : uses) {
    table.insert(table.end(), row.begin(), row.end());
    table.resize(table.size() + experts - row.size());
  }
  return array_of(std::move(table), {uses.size(), experts});
}

Tensor make_constant(const Array2<float>& values) {
  if (values.shape(0) < 1 || values.shape(1) < 1) raise({Fault::user, 0, "a parameter without elements"});
  return take(constant(values.data(), static_cast<int64_t>(values.shape(0)), static_cast<int64_t>(values.shape(1))));
}

std::vector<std::tuple<uint64_t, uint64_t, int>> ranges_of(const Program& program) {
  std::vector<std::tuple<uint64_t, uint64_t, int>> found;
  for (const Arena::Range& range : program.own_ranges()) {
    found.emplace_back(reinterpret_cast<uintptr_t>(range.memory.data), range.memory.bytes, range.home);
  }
  return found;
}

void bind_recorder(nb::module_& m) {
  nb::class_<Recorder>(m, "Recorder", "Records the operations of a forward function; see homenode.compute.ops.Ops.")
      .def("__init__",
           [](Recorder* self, std::shared_ptr<Team> team, Level level, int max_tokens, int max_sequences, int max_sampled_rows, int max_blocks, bool fuse,
              std::shared_ptr<RankGroup> group, const Arena* arena) {
             if (max_tokens < 1 || max_sequences < 1 || max_sampled_rows < 0 || max_blocks < 0 || max_tokens > (1 << 24)) {
               raise({Fault::user, 0, "limits of a program: at least one token and sequence, and at most 2^24 tokens"});
             }
             new (self) Recorder(std::move(team), level, {max_tokens, max_sequences, max_sampled_rows, max_blocks}, fuse, std::move(group), arena ? arena->homes() : nullptr);
           },
           nb::arg("team"), nb::arg("level"), nb::arg("max_tokens"), nb::arg("max_sequences"), nb::arg("max_sampled_rows"),
           nb::arg("max_blocks_per_sequence"), nb::arg("fuse") = true, nb::arg("group").none() = nb::none(), nb::arg("arena") = nb::none())
      .def("embedding",
           [](Recorder& r, const WeightHandle& table, int64_t first, int64_t vocabulary) { return take(r.embedding(weight_of(table), first, vocabulary)); },
           nb::arg("table"), nb::arg("first") = 0, nb::arg("vocabulary") = 0)
      .def("received", [](Recorder& r, int64_t columns) { return take(r.received(columns)); })
      .def("sum", [](Recorder& r, const Tensor& x) { return take(r.sum(x)); })
      .def("gather", [](Recorder& r, const Tensor& x, std::vector<int64_t> widths) { return take(r.gather(x, std::move(widths))); })
      .def("rms_norm", [](Recorder& r, const Tensor& x, const Tensor& weight, float eps) { return take(r.rms_norm(x, weight, eps)); })
      .def("linear", &linear, nb::arg("x"), nb::arg("weights"), nb::arg("biases"), nb::arg("residual").none())
      .def("split", [](Recorder& r, const Tensor& x, const std::vector<int64_t>& widths) { return take(r.split(x, widths)); })
      .def("rope_angles",
           [](Recorder& r, const Array1<float>& frequencies, float scale) {
             return take(r.rope_angles({frequencies.data(), frequencies.data() + frequencies.size()}, scale));
           })
      .def("rope", [](Recorder& r, const Tensor& x, const Tensor& angles, int head_dim) { return take(r.rope(x, angles, head_dim)); })
      .def("attention",
           [](Recorder& r, const Tensor& q, const Tensor& k, const Tensor& v, std::shared_ptr<KvCache> cache, int layer, float scale, int window,
              float softcap) { return take(r.attention(q, k, v, std::move(cache), layer, scale, window, softcap));
           })
      .def("silu_mul", [](Recorder& r, const Tensor& x) { return take(r.silu_mul(x)); })
      .def("gelu_mul", [](Recorder& r, const Tensor& x) { return take(r.gelu_mul(x)); })
      .def("add", [](Recorder& r, const Tensor& x, const Tensor& y) { return take(r.add(x, y)); })
      .def("scale", [](Recorder& r, const Tensor& x, float factor) { return take(r.scale(x, factor)); })
      .def("soft_cap", [](Recorder& r, const Tensor& x, float cap) { return take(r.soft_cap(x, cap)); })
      .def("mixture",
           [](Recorder& r, const Tensor& x, const Tensor& logits, const std::vector<const WeightHandle*>& gate, const std::vector<const WeightHandle*>& up,
              const std::vector<const WeightHandle*>& down, int chosen, bool normalise, const std::optional<Tensor>& residual,
              const std::vector<int32_t>& ids) { return take(r.mixture(x, logits, experts_of(gate, up, down), chosen, normalise, residual ? &*residual : nullptr, ids));
           },
           nb::arg("x"), nb::arg("logits"), nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("chosen"), nb::arg("normalise"),
           nb::arg("residual").none(), nb::arg("ids"))
      .def("add_gated", [](Recorder& r, const Tensor& x, const Tensor& y, const Tensor& gate) { return take(r.add_gated(x, y, gate)); })
      .def("select", [](Recorder& r, const Tensor& x) { return take(r.select(x)); })
      .def("finish", [](Recorder& r, const Tensor& output) { return take(r.finish(output)); });
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Tensor>(m, "Tensor", "A handle on float32 rows.")
      .def_prop_ro("columns", [](const Tensor& t) { return t.columns; })
      .def_prop_ro("is_parameter", [](const Tensor& t) { return t.rows == RowKind::fixed; });
  m.def("constant", &make_constant, nb::arg("values"), "A parameter or constant input with a copy of a float32 [rows, columns] array.");
  bind_recorder(m);
  nb::class_<Output>(m, "Output", "The rows a program computed; overwritten by its next run.")
      .def_ro("rows", &Output::rows)
      .def_ro("columns", &Output::columns)
      .def("numpy", &copy_output, "A copy as an array.")
      .def("__array__", [](const Output& o, nb::args, nb::kwargs) { return copy_output(o); });
  nb::class_<Program>(m, "Program", "A recorded forward function.")
      .def("run", &run, nb::arg("ids"), nb::arg("positions"), nb::arg("query_start"), nb::arg("context_len"), nb::arg("block_table"),
           nb::arg("sample_rows"), nb::arg("hidden") = nb::none(), nb::keep_alive<0, 1>())
      .def_prop_ro("nbytes", &Program::bytes)
      .def_prop_ro("ranges", &ranges_of, "Address, bytes and home of what each thread has for itself; nothing where all threads have one home.")
      .def("barriers", &Program::barriers, nb::arg("tokens"), nb::arg("sequences"), "Times the threads wait for each other in such a step.")
      .def("expert_uses", &expert_uses, "Tokens that each expert was computed for so far: [mixtures, experts].")
      .def("measure_phases", &Program::measure_phases, nb::arg("on"), "Adds up the time of each phase from now on, or forgets it.")
      .def("phase_times", &phase_times, "Name, runs, seconds, and of these seconds at the barrier, for each kind of phase.");
}

}  // namespace homenode
