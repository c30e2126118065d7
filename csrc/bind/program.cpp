#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>

#include "bind/arguments.h"

namespace homenode {
namespace {

// See StepInput.
struct StepArguments {
  Array1<int32_t> ids, positions, query_start, context_len;
  Array2<int32_t> block_table;
  Array1<int32_t> sample_rows;
  std::optional<Array2<float>> hidden;
  std::optional<Array2<int32_t>> state, state_copies;
  std::optional<Array1<int32_t>> token_types, row_places;
  std::optional<Array2<float>> input_rows;
  std::optional<Array2<int32_t>> rope_positions, seen_spans;
  std::optional<Array1<int32_t>> adapters;

  static constexpr auto fields() {
    using S = StepArguments;
    return std::tuple(Field("ids", &S::ids), Field("positions", &S::positions), Field("query_start", &S::query_start),
                      Field("context_len", &S::context_len), Field("block_table", &S::block_table),
                      Field("sample_rows", &S::sample_rows), DefaultedField("hidden", &S::hidden),
                      DefaultedField("state", &S::state), DefaultedField("state_copies", &S::state_copies),
                      DefaultedField("token_types", &S::token_types), DefaultedField("row_places", &S::row_places),
                      DefaultedField("input_rows", &S::input_rows),
                      DefaultedField("rope_positions", &S::rope_positions),
                      DefaultedField("seen_spans", &S::seen_spans), DefaultedField("adapters", &S::adapters));
  }
};

Output run(Program& program, const StepArguments& given) {
  StepInput input{span_of(given.ids),
                  span_of(given.positions),
                  span_of(given.query_start),
                  span_of(given.context_len),
                  {given.block_table.data(), given.block_table.size()},
                  static_cast<int64_t>(given.block_table.shape(1)),
                  span_of(given.sample_rows)};
  if (given.hidden) {
    input.hidden = given.hidden->data();
    input.hidden_rows = static_cast<int64_t>(given.hidden->shape(0)),
    input.hidden_columns = static_cast<int64_t>(given.hidden->shape(1));
  }
  if (given.state) {
    if (given.state->shape(0) != 2) raise({Fault::user, 0, "step arrays: state with other rows than slot, fresh"});
    const size_t sequences = given.state->shape(1);
    const auto row = [&](size_t i) { return std::span(given.state->data() + i * sequences, sequences); };
    input.state_slot = row(0), input.state_fresh = row(1);
  }
  if (given.state_copies) {
    if (given.state_copies->shape(1) != 3)
      raise({Fault::user, 0, "step arrays: copies of states with other columns than sequence, slot, position"});
    input.state_copies = {given.state_copies->data(), given.state_copies->size()};
  }
  if (given.token_types) input.token_types = span_of(*given.token_types);
  if (given.row_places && given.input_rows) {
    if (given.row_places->shape(0) != given.input_rows->shape(0))
      raise({Fault::user, 0, "step arrays: rows in place of embeddings, and another number of places"});
    input.row_places = span_of(*given.row_places);
    input.input_rows = given.input_rows->data();
    input.input_columns = static_cast<int64_t>(given.input_rows->shape(1));
  }
  if (given.rope_positions) input.rope_positions = {given.rope_positions->data(), given.rope_positions->size()};
  if (given.seen_spans) input.seen_spans = {given.seen_spans->data(), given.seen_spans->size()};
  if (given.adapters) input.adapters = span_of(*given.adapters);
  auto output = [&] {
    nb::gil_scoped_release unlocked;
    return program.run(input);
  }();
  return take(std::move(output));
}

std::vector<std::tuple<std::string, int64_t, double, double>> phase_times(Program& program) {
  std::vector<std::tuple<std::string, int64_t, double, double>> lines;
  for (const PhaseTime& line : program.phase_times())
    lines.emplace_back(line.name, line.runs, line.seconds, line.waited);
  return lines;
}

auto copy_output(const Output& output) {
  const auto rows = static_cast<size_t>(output.rows), columns = static_cast<size_t>(output.columns);
  std::vector<float> values(rows * columns);
  for (size_t r = 0; r < rows; ++r)
    std::memcpy(values.data() + r * columns, output.data + static_cast<int64_t>(r) * output.stride,
                columns * sizeof(float));
  return array_of(std::move(values), {rows, columns});
}

auto expert_usage(const Program& program) {
  const std::vector<std::vector<uint64_t>> uses = program.expert_usage();
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

std::vector<std::tuple<uint64_t, uint64_t, int>> ranges_of(const std::vector<Arena::Range>& ranges) {
  std::vector<std::tuple<uint64_t, uint64_t, int>> found;
  for (const Arena::Range& range : ranges) {
    found.emplace_back(reinterpret_cast<uintptr_t>(range.memory.data), range.memory.bytes, range.home);
  }
  return found;
}

void check_slot(const StateMemory& memory, int64_t slot) {
  if (slot < 0 || slot >= memory.slots()) raise({Fault::user, 0, "no such slot of the state memory"});
}

}  // namespace

static void bind_state_memory(nb::module_& m) {
  nb::class_<StateMemory>(m, "StateMemory", "Memory of what layers keep of sequences besides keys and values.")
      .def_prop_ro("slots", &StateMemory::slots)
      .def_prop_ro("nbytes", &StateMemory::bytes)
      .def_prop_ro(
          "ranges", [](const StateMemory& memory) { return ranges_of(memory.ranges()); },
          "Address, bytes and home (-1: all of them in turn) of its pieces of memory.")
      .def(
          "copy_slot",
          [](const StateMemory& memory, int64_t source, int64_t target) {
            check_slot(memory, source), check_slot(memory, target);
            memory.copy_slot(source, target);
          },
          nb::arg("source"), nb::arg("target"), "While no step runs.")
      .def(
          "read_slot",
          [](const StateMemory& memory, int64_t slot) {
            check_slot(memory, slot);
            std::vector<float> values(static_cast<size_t>(memory.slot_floats()));
            memory.read_slot(slot, values.data());
            const size_t count = values.size();
            return array_of(std::move(values), {count});
          },
          nb::arg("slot"),
          "Of each layer the last inputs [taps, channels], then the matrices [heads, key_width, value_width]; float32.")
      .def(
          "write_slot",
          [](const StateMemory& memory, int64_t slot, const Array1<float>& values) {
            check_slot(memory, slot);
            if (static_cast<int64_t>(values.size()) != memory.slot_floats())
              raise({Fault::user, 0, "a slot of the state memory with another number of values"});
            memory.write_slot(slot, values.data());
          },
          nb::arg("slot"), nb::arg("values"), "What read_slot gave. While no step runs.");
  m.def(
      "state_memory",
      [](ThreadPool& pool, const std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>>& layers,
         int64_t slots, const Arena* arena, bool interleaved) {
        std::vector<StateShape> shapes;
        for (const auto& [channels, taps, heads, key_width, value_width] : layers)
          shapes.push_back({channels, taps, heads, key_width, value_width});
        return take(
            StateMemory::create(pool, std::move(shapes), slots, arena ? arena->homes().get() : nullptr, interleaved));
      },
      nb::arg("pool"), nb::arg("layers"), nb::arg("slots"), nb::kw_only(), nb::arg("arena") = nb::none(),
      nb::arg("interleaved") = false,
      "Zeros, at the homes of `arena`, if given. Of each layer the channels and taps of its convolution, and heads, "
      "key width and value width of its "
      "matrices.");
}

void bind_program(nb::module_& m) {
  nb::class_<Tensor>(m, "Tensor", "A handle on float32 rows.")
      .def_prop_ro("columns", [](const Tensor& t) { return t.columns; })
      .def_prop_ro("is_parameter", [](const Tensor& t) { return t.rows == RowKind::fixed; });
  m.def("constant", &make_constant, nb::arg("values"),
        "A parameter or constant input with a copy of a float32 [rows, columns] array.");
  bind_state_memory(m);
  bind_recorder(m);
  nb::class_<Output>(m, "NativeOutput", "The rows a program computed; overwritten by its next run.")
      .def_ro("rows", &Output::rows)
      .def_ro("columns", &Output::columns)
      .def("numpy", &copy_output, "A copy as an array.")
      .def(
          "__array__", [](const Output& o, nb::args, nb::kwargs) { return copy_output(o); },
          nb::sig("def __array__(self, *args: object, **kwargs: object) -> NDArray[numpy.float32]"),
          "A copy as an array.");
  nb::class_<Program> program(m, "ProgramHandle", "A recorded forward function.");
  define<StepArguments, Program&>(program, "run", &run, nb::keep_alive<0, 1>());
  program.def_prop_ro("nbytes", &Program::bytes)
      .def_prop_ro(
          "ranges", [](const Program& program) { return ranges_of(program.own_ranges()); },
          "Address, bytes and home of what each thread has for itself; nothing where all threads have one home.")
      .def("barriers", &Program::barriers, nb::arg("tokens"), nb::arg("sequences"),
           "Times the threads wait for each other in such a step.")
      .def("expert_usage", &expert_usage, "Tokens that each expert was computed for so far: [MoE layers, experts].")
      .def("measure_phases", &Program::measure_phases, nb::arg("on"),
           "Adds up the time of each phase from now on, or forgets it.")
      .def("phase_times", &phase_times,
           "Name, runs, seconds, and of these seconds at the barrier, for each kind of phase.");
}

}  // namespace homenode
