#include "bind/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>

#include "bind/row_operations.h"
#include "host/rank_group.h"

namespace homenode {
namespace {

std::shared_ptr<const Weight> weight_of(const WeightHandle& handle) {
  // The pool outlives the weight, and with it every program that uses it.
  struct Both {
    std::shared_ptr<Weight> weight;
    std::shared_ptr<ThreadPool> pool;
  };
  auto both = std::make_shared<Both>(Both{handle.weight, handle.pool});
  return {both, both->weight.get()};
}

using Handles = std::vector<const WeightHandle*>;

// What homenode.compute.ops calls a choice, by its name.
template <class T, size_t Count>
T named(const std::string& name, const std::pair<const char*, T> (&choices)[Count], const char* what) {
  for (const auto& [known, value] : choices)
    if (name == known) return value;
  raise({Fault::user, 0, std::string(what) + " '" + name + "' is not known"});
}

Activation activation_named(const std::string& name) {
  for (int i = 0; i < kActivations; ++i)
    if (name == kActivationNames[i]) return static_cast<Activation>(i);
  raise({Fault::user, 0, "an activation '" + name + "' is not known"});
}

Tensor linear(Recorder& r, const Tensor& x, const Handles& handles,
              const std::vector<std::optional<Tensor>>& optional_biases, const std::optional<Tensor>& residual,
              const std::string& precision) {
  const std::pair<const char*, Precision> precisions[] = {{"usual", Precision::usual}, {"fine", Precision::fine}};
  std::vector<std::shared_ptr<const Weight>> weights;
  for (const WeightHandle* handle : handles) weights.push_back(weight_of(*handle));
  std::vector<Tensor> biases;
  for (const auto& bias : optional_biases) biases.push_back(bias.value_or(Tensor{}));
  return take(r.linear(x, std::move(weights), biases, residual ? &*residual : nullptr,
                       named(precision, precisions, "a precision")));
}

void make_experts(ExpertWeights* self, const Handles& gate, const Handles& up, const Handles& down,
                  std::vector<int32_t> ids, std::vector<Tensor> gate_bias, std::vector<Tensor> up_bias,
                  std::vector<Tensor> down_bias, const std::optional<Tensor>& scales, const std::string& activation) {
  ExpertWeights experts{.gate = {},
                        .up = {},
                        .down = {},
                        .ids = std::move(ids),
                        .gate_bias = std::move(gate_bias),
                        .up_bias = std::move(up_bias),
                        .down_bias = std::move(down_bias),
                        .scales = scales.value_or(Tensor{}),
                        .activation = activation_named(activation)};
  for (const WeightHandle* handle : gate) experts.gate.push_back(weight_of(*handle));
  for (const WeightHandle* handle : up) experts.up.push_back(weight_of(*handle));
  for (const WeightHandle* handle : down) experts.down.push_back(weight_of(*handle));
  new (self) ExpertWeights(std::move(experts));
}

void make_routing(Routing* self, int chosen, const std::string& score, bool normalise, float epsilon, float scale,
                  int groups, int groups_chosen, const std::string& group_score, float jitter) {
  const std::pair<const char*, ExpertScore> scores[] = {{"softmax", ExpertScore::softmax},
                                                        {"sigmoid", ExpertScore::sigmoid},
                                                        {"chosen_softmax", ExpertScore::chosen_softmax},
                                                        {"sparsemixer", ExpertScore::sparsemixer},
                                                        {"sqrt_softplus", ExpertScore::sqrt_softplus}};
  const std::pair<const char*, bool> group_scores[] = {{"max", false}, {"top2", true}};
  new (self) Routing{.chosen = chosen,
                     .score = named(score, scores, "a score of experts"),
                     .normalise = normalise,
                     .epsilon = epsilon,
                     .scale = scale,
                     .groups = groups,
                     .groups_chosen = groups_chosen,
                     .best_two = named(group_score, group_scores, "a score of groups"),
                     .jitter = jitter};
}

void make_limits(StepLimits* self, int max_tokens, int max_sequences, int max_sampled_rows,
                 int max_blocks_per_sequence) {
  if (max_tokens < 1 || max_sequences < 1 || max_sampled_rows < 0 || max_blocks_per_sequence < 0 ||
      max_tokens > (1 << 24)) {
    raise({Fault::user, 0, "limits of a program: at least one token and sequence, and at most 2^24 tokens"});
  }
  new (self) StepLimits{.max_tokens = max_tokens,
                        .max_sequences = max_sequences,
                        .max_sampled_rows = max_sampled_rows,
                        .max_blocks_per_sequence = max_blocks_per_sequence};
}

void make_recorder(Recorder* self, std::shared_ptr<ThreadPool> pool, Level level, const StepLimits& limits, bool fuse,
                   std::shared_ptr<RankGroup> group, const Arena* arena) {
  new (self) Recorder(std::move(pool), level, limits, fuse, std::move(group), arena ? arena->homes() : nullptr);
}

Output run(Program& program, const Array1<int32_t>& ids, const Array1<int32_t>& positions,
           const Array1<int32_t>& query_start, const Array1<int32_t>& context_len, const Array2<int32_t>& block_table,
           const Array1<int32_t>& sample_rows, const std::optional<Array2<float>>& hidden,
           const std::optional<Array2<int32_t>>& state, const std::optional<Array2<int32_t>>& state_copies,
           const std::optional<Array1<int32_t>>& token_types, const std::optional<Array1<int32_t>>& row_places,
           const std::optional<Array2<float>>& input_rows, const std::optional<Array2<int32_t>>& rope_positions,
           const std::optional<Array2<int32_t>>& seen_spans) {
  StepInput input{span_of(ids),
                  span_of(positions),
                  span_of(query_start),
                  span_of(context_len),
                  {block_table.data(), block_table.size()},
                  static_cast<int64_t>(block_table.shape(1)),
                  span_of(sample_rows)};
  if (hidden) {
    input.hidden = hidden->data();
    input.hidden_rows = static_cast<int64_t>(hidden->shape(0)),
    input.hidden_columns = static_cast<int64_t>(hidden->shape(1));
  }
  if (state) {
    if (state->shape(0) != 2) raise({Fault::user, 0, "step arrays: state with other rows than slot, fresh"});
    const auto row = [&](size_t i) { return std::span(state->data() + i * state->shape(1), state->shape(1)); };
    input.state_slot = row(0), input.state_fresh = row(1);
  }
  if (state_copies) {
    if (state_copies->shape(1) != 3)
      raise({Fault::user, 0, "step arrays: copies of states with other columns than sequence, slot, position"});
    input.state_copies = {state_copies->data(), state_copies->size()};
  }
  if (token_types) input.token_types = span_of(*token_types);
  if (row_places && input_rows) {
    if (row_places->shape(0) != input_rows->shape(0))
      raise({Fault::user, 0, "step arrays: rows in place of embeddings, and another number of places"});
    input.row_places = span_of(*row_places);
    input.input_rows = input_rows->data();
    input.input_columns = static_cast<int64_t>(input_rows->shape(1));
  }
  if (rope_positions) input.rope_positions = {rope_positions->data(), rope_positions->size()};
  if (seen_spans) input.seen_spans = {seen_spans->data(), seen_spans->size()};
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

void bind_recorder(nb::module_& m) {
  nb::class_<StepLimits>(m, "NativeStepLimits", "Upper bounds of the steps of a program.")
      .def("__init__", &make_limits, nb::kw_only(), nb::arg("max_tokens"), nb::arg("max_sequences"),
           nb::arg("max_sampled_rows"), nb::arg("max_blocks_per_sequence"));
  nb::class_<AttentionParams>(m, "AttentionParams", "How scores are made; see homenode.compute.ops.Ops.attention.")
      .def(
          "__init__",
          [](AttentionParams* self, int layer, float scale, int window, float softcap,
             const std::optional<Tensor>& sinks, int value_columns, const std::optional<Tensor>& chosen,
             int chosen_block, const std::optional<Tensor>& slopes, const std::string& window_kind, bool causal,
             const std::optional<Tensor>& bias, const std::vector<int>& buckets, int bias_heads, int first_head,
             bool spans) {
            const std::pair<const char*, WindowKind> kinds[] = {{"sliding", WindowKind::sliding},
                                                                {"chunked", WindowKind::chunked}};
            new (self) AttentionParams{.layer = layer,
                                       .scale = scale,
                                       .window = window,
                                       .softcap = softcap,
                                       .sinks = sinks.value_or(Tensor{}),
                                       .value_columns = value_columns,
                                       .chosen = chosen.value_or(Tensor{}),
                                       .chosen_block = chosen_block,
                                       .slopes = slopes.value_or(Tensor{}),
                                       .window_kind = named(window_kind, kinds, "a kind of window"),
                                       .causal = causal,
                                       .spans = spans,
                                       .bias = {bias.value_or(Tensor{}), buckets, bias_heads, first_head}};
          },
          nb::kw_only(), nb::arg("layer"), nb::arg("scale"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
          nb::arg("sinks").none() = nb::none(), nb::arg("value_columns") = 0, nb::arg("chosen").none() = nb::none(),
          nb::arg("chosen_block") = 1, nb::arg("slopes").none() = nb::none(), nb::arg("window_kind") = "sliding",
          nb::arg("causal") = true, nb::arg("bias").none() = nb::none(), nb::arg("buckets") = std::vector<int>(),
          nb::arg("bias_heads") = 0, nb::arg("first_head") = 0, nb::arg("spans") = false);
  nb::class_<ExpertWeights>(m, "ExpertWeights", "The matrices of an MoE layer's experts.")
      .def("__init__", &make_experts, nb::kw_only(), nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("ids"),
           nb::arg("gate_bias"), nb::arg("up_bias"), nb::arg("down_bias"), nb::arg("scales").none(),
           nb::arg("activation"),
           "ids: which of the experts that have logits these are, ascending; empty: all. Biases: of each, or empty.");
  nb::class_<Routing>(m, "NativeRouting", "How experts are chosen and weighted; see homenode.compute.ops.Routing.")
      .def("__init__", &make_routing, nb::kw_only(), nb::arg("chosen"), nb::arg("score"), nb::arg("normalise"),
           nb::arg("epsilon"), nb::arg("scale"), nb::arg("groups"), nb::arg("groups_chosen"), nb::arg("group_score"),
           nb::arg("jitter"));
  nb::class_<Recorder> recorder(m, "NativeRecorder",
                                "Records the operations of a forward function; see homenode.compute.ops.Ops.");
  bind_row_operations(recorder);
  recorder
      .def("__init__", &make_recorder, nb::arg("pool"), nb::arg("level"), nb::arg("limits"), nb::kw_only(),
           nb::arg("fuse") = true, nb::arg("group").none() = nb::none(), nb::arg("arena") = nb::none())
      .def(
          "embedding",
          [](Recorder& r, const WeightHandle& table, int64_t first, int64_t vocabulary) {
            return take(r.embedding(weight_of(table), first, vocabulary));
          },
          nb::arg("table"), nb::arg("first") = 0, nb::arg("vocabulary") = 0)
      .def(
          "place_rows",
          [](Recorder& r, const Tensor& x, int64_t first, int64_t of_columns, bool adds) {
            return take(r.place_rows(x, first, of_columns, adds));
          },
          nb::arg("x"), nb::arg("first") = 0, nb::arg("of_columns") = 0, nb::arg("adds") = false)
      .def(
          "position_rows",
          [](Recorder& r, const WeightHandle& table, int64_t first) {
            return take(r.position_rows(weight_of(table), first));
          },
          nb::arg("table"), nb::arg("first") = 0)
      .def(
          "type_rows", [](Recorder& r, const WeightHandle& table) { return take(r.type_rows(weight_of(table))); },
          nb::arg("table"))
      .def(
          "stored_rows",
          [](Recorder& r, std::shared_ptr<StoredTable> table, std::optional<int> otherwise) {
            return take(r.stored_rows(std::move(table), otherwise));
          },
          nb::arg("table"), nb::arg("otherwise").none() = nb::none())
      .def(
          "received", [](Recorder& r, int64_t columns) { return take(r.received(columns)); }, nb::arg("columns"))
      .def(
          "sum", [](Recorder& r, const Tensor& x) { return take(r.sum(x)); }, nb::arg("x"))
      .def(
          "gather",
          [](Recorder& r, const Tensor& x, std::vector<int64_t> widths) {
            return take(r.gather(x, std::move(widths)));
          },
          nb::arg("x"), nb::arg("widths"))
      .def(
          "rms_norm",
          [](Recorder& r, const Tensor& x, const Tensor& weight, float eps) {
            return take(r.rms_norm(x, weight, eps));
          },
          nb::arg("x"), nb::arg("weight"), nb::arg("eps"))
      .def("linear", &linear, nb::arg("x"), nb::arg("weights"), nb::arg("biases") = nb::tuple(),
           nb::arg("residual").none() = nb::none(), nb::arg("precision") = "usual")
      .def(
          "linear_heads",
          [](Recorder& r, const Tensor& x, const Handles& handles) {
            std::vector<std::shared_ptr<const Weight>> weights;
            for (const WeightHandle* handle : handles) weights.push_back(weight_of(*handle));
            return take(r.linear_heads(x, std::move(weights)));
          },
          nb::arg("x"), nb::arg("weights"))
      .def(
          "record_split",
          [](Recorder& r, const Tensor& x, const std::vector<int64_t>& widths) { return take(r.split(x, widths)); },
          nb::arg("x"), nb::arg("widths"))
      .def(
          "rope_angles",
          [](Recorder& r, const Array1<float>& frequencies, float scale, int behind, const std::vector<int>& axes) {
            return take(
                r.rope_angles({frequencies.data(), frequencies.data() + frequencies.size()}, scale, behind, axes));
          },
          nb::arg("inverse_frequencies"), nb::arg("scale"), nb::arg("behind") = 0, nb::arg("axes") = std::vector<int>())
      .def(
          "rope",
          [](Recorder& r, const Tensor& x, const Tensor& angles, int head_dim, bool adjacent) {
            return take(r.rope(x, angles, head_dim, adjacent));
          },
          nb::arg("x"), nb::arg("angles"), nb::arg("head_dim"), nb::arg("adjacent") = false)
      .def(
          "record_attention",
          [](Recorder& r, const Tensor& q, const std::optional<Tensor>& k, const std::optional<Tensor>& v,
             std::shared_ptr<KvCache> cache, const AttentionParams& params) {
            return take(r.attention(q, k.value_or(Tensor{}), v.value_or(Tensor{}), std::move(cache), params));
          },
          nb::arg("q"), nb::arg("k").none(), nb::arg("v").none(), nb::arg("cache"), nb::arg("params"))
      .def(
          "choose_tokens",
          [](Recorder& r, const Tensor& q, const Tensor& weights, const Tensor& k, std::shared_ptr<KvCache> cache,
             int layer, int count,
             int ratio) { return take(r.choose_tokens(q, weights, k, std::move(cache), layer, count, ratio)); },
          nb::arg("q"), nb::arg("weights"), nb::arg("k"), nb::arg("cache"), nb::arg("layer"), nb::arg("count"),
          nb::arg("ratio") = 1)
      .def(
          "record_pooled_attention",
          [](Recorder& r, const Tensor& q, const Tensor& k, std::shared_ptr<KvCache> cache,
             const AttentionParams& params, const Tensor& rows, std::shared_ptr<KvCache> window_cache, int layer,
             int ratio) {
            return take(
                r.attention_pooled(q, k, std::move(cache), params, rows, std::move(window_cache), layer, ratio));
          },
          nb::arg("q"), nb::arg("k"), nb::arg("cache"), nb::arg("params"), nb::arg("rows"), nb::arg("window_cache"),
          nb::arg("layer"), nb::arg("ratio"))
      .def(
          "choose_blocks",
          [](Recorder& r, const Tensor& q, const Tensor& k, std::shared_ptr<KvCache> cache, int layer, int block,
             int count,
             int local) { return take(r.choose_blocks(q, k, std::move(cache), layer, {count, block}, local)); },
          nb::arg("q"), nb::arg("k"), nb::arg("cache"), nb::arg("layer"), nb::arg("block"), nb::arg("count"),
          nb::arg("local"))
      .def(
          "silu_mul",
          [](Recorder& r, const Tensor& x, const std::optional<Tensor>& up) {
            return take(r.silu_mul(x, up.value_or(Tensor{})));
          },
          nb::arg("gate_up"), nb::arg("up").none() = nb::none())
      .def(
          "gelu_mul",
          [](Recorder& r, const Tensor& x, const std::optional<Tensor>& up, const std::string& form) {
            return take(r.gelu_mul(x, up.value_or(Tensor{}), activation_named(form)));
          },
          nb::arg("gate_up"), nb::arg("up").none() = nb::none(), nb::arg("form") = "gelu")
      .def(
          "activate",
          [](Recorder& r, const Tensor& x, const std::string& activation) {
            return take(r.activate(x, activation_named(activation)));
          },
          nb::arg("x"), nb::arg("activation"))
      .def(
          "add", [](Recorder& r, const Tensor& x, const Tensor& y) { return take(r.add(x, y)); }, nb::arg("x"),
          nb::arg("y"))
      .def(
          "record_moe",
          [](Recorder& r, const Tensor& x, const Tensor& logits, const ExpertWeights& experts, const Routing& routing,
             const std::optional<Tensor>& residual, const std::optional<Tensor>& choice_bias,
             const std::optional<Tensor>& chosen) {
            return take(r.moe(x, logits, experts, routing, residual ? &*residual : nullptr,
                              choice_bias ? &*choice_bias : nullptr, chosen ? &*chosen : nullptr));
          },
          nb::arg("x"), nb::arg("logits"), nb::arg("experts"), nb::arg("routing"), nb::arg("residual").none(),
          nb::arg("choice_bias").none() = nb::none(), nb::arg("chosen").none() = nb::none())
      .def(
          "short_convolution",
          [](Recorder& r, const Tensor& x, const std::vector<Tensor>& weights, const std::vector<Tensor>& biases,
             std::shared_ptr<StateMemory> memory, int layer,
             bool silu) { return take(r.short_convolution(x, weights, biases, std::move(memory), layer, silu)); },
          nb::arg("x"), nb::arg("weights"), nb::arg("biases"), nb::arg("memory"), nb::arg("layer"), nb::arg("silu"))
      .def(
          "pool_windows",
          [](Recorder& r, const Tensor& x, const std::vector<Tensor>& biases, std::shared_ptr<StateMemory> memory,
             int layer, int ratio, std::vector<int64_t> widths, bool overlap) {
            return take(r.pool_windows(x, biases, std::move(memory), layer, ratio, std::move(widths), overlap));
          },
          nb::arg("x"), nb::arg("biases"), nb::arg("memory"), nb::arg("layer"), nb::arg("ratio"), nb::arg("widths"),
          nb::arg("overlap"))
      .def(
          "record_delta_rule",
          [](Recorder& r, const Tensor& qkv, const Tensor& beta, const Tensor& decay, const Tensor& decay_weight,
             const Tensor& decay_bias, std::shared_ptr<StateMemory> memory, int layer, int key_heads, bool interleaved,
             float gain) {
            return take(r.delta_rule(qkv, beta, decay, decay_weight, decay_bias, std::move(memory),
                                     {layer, key_heads, interleaved, gain}));
          },
          nb::arg("qkv"), nb::arg("beta"), nb::arg("decay"), nb::arg("decay_weight"), nb::arg("decay_bias"),
          nb::arg("memory"), nb::kw_only(), nb::arg("layer"), nb::arg("key_heads"), nb::arg("interleaved"),
          nb::arg("gain"))
      .def(
          "record_selective_scan",
          [](Recorder& r, const Tensor& xbc, const Tensor& dt, const Tensor& decay_weight, const Tensor& decay_bias,
             const Tensor& skip, std::shared_ptr<StateMemory> memory, int layer, int per_group, int first) {
            return take(r.selective_scan(xbc, dt, decay_weight, decay_bias, skip, std::move(memory),
                                         {layer, per_group, first}));
          },
          nb::arg("xbc"), nb::arg("dt"), nb::arg("decay_weight"), nb::arg("decay_bias"), nb::arg("skip"),
          nb::arg("memory"), nb::kw_only(), nb::arg("layer"), nb::arg("per_group"), nb::arg("first"))
      .def(
          "select", [](Recorder& r, const Tensor& x) { return take(r.select(x)); }, nb::arg("x"))
      .def("finish", [](Recorder& r, const Tensor& output) { return take(r.finish(output)); }, nb::arg("output"));
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
  nb::class_<Program>(m, "ProgramHandle", "A recorded forward function.")
      .def("run", &run, nb::arg("ids"), nb::arg("positions"), nb::arg("query_start"), nb::arg("context_len"),
           nb::arg("block_table"), nb::arg("sample_rows"), nb::arg("hidden") = nb::none(),
           nb::arg("state") = nb::none(), nb::arg("state_copies") = nb::none(), nb::arg("token_types") = nb::none(),
           nb::arg("row_places") = nb::none(), nb::arg("input_rows") = nb::none(),
           nb::arg("rope_positions") = nb::none(), nb::arg("seen_spans") = nb::none(), nb::keep_alive<0, 1>())
      .def_prop_ro("nbytes", &Program::bytes)
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
