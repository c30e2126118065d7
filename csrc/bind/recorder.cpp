#include <algorithm>

#include "bind/arguments.h"
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

Tensor linear_indexed(Recorder& r, const Tensor& x, const std::vector<std::optional<WeightHandle>>& handles,
                      const Tensor& index, const std::optional<Tensor>& residual, int64_t first) {
  std::vector<std::shared_ptr<const Weight>> weights;
  for (const auto& handle : handles) weights.push_back(handle ? weight_of(*handle) : nullptr);
  return take(r.linear_indexed(x, std::move(weights), index, residual ? &*residual : nullptr, first));
}

struct ExpertArguments {
  Handles gate, up, down;
  std::vector<int32_t> ids;
  std::vector<Tensor> gate_bias, up_bias, down_bias;
  std::optional<Tensor> scales;
  std::string activation;

  static constexpr size_t kKeywordsFrom = 0;
  static constexpr auto fields() {
    using S = ExpertArguments;
    return std::tuple(Field("gate", &S::gate), Field("up", &S::up), Field("down", &S::down), Field("ids", &S::ids),
                      Field("gate_bias", &S::gate_bias), Field("up_bias", &S::up_bias),
                      Field("down_bias", &S::down_bias), Field("scales", &S::scales),
                      Field("activation", &S::activation));
  }
};

void make_experts(ExpertWeights* self, ExpertArguments given) {
  ExpertWeights experts{.gate = {},
                        .up = {},
                        .down = {},
                        .ids = std::move(given.ids),
                        .gate_bias = std::move(given.gate_bias),
                        .up_bias = std::move(given.up_bias),
                        .down_bias = std::move(given.down_bias),
                        .scales = given.scales.value_or(Tensor{}),
                        .activation = activation_named(given.activation)};
  for (const WeightHandle* handle : given.gate) experts.gate.push_back(weight_of(*handle));
  for (const WeightHandle* handle : given.up) experts.up.push_back(weight_of(*handle));
  for (const WeightHandle* handle : given.down) experts.down.push_back(weight_of(*handle));
  new (self) ExpertWeights(std::move(experts));
}

struct RoutingArguments {
  int chosen = 0;
  std::string score;
  bool normalise = false;
  float epsilon = 0, scale = 0;
  int groups = 0, groups_chosen = 0;
  std::string group_score;
  float jitter = 0;

  static constexpr size_t kKeywordsFrom = 0;
  static constexpr auto fields() {
    using S = RoutingArguments;
    return std::tuple(Field("chosen", &S::chosen), Field("score", &S::score), Field("normalise", &S::normalise),
                      Field("epsilon", &S::epsilon), Field("scale", &S::scale), Field("groups", &S::groups),
                      Field("groups_chosen", &S::groups_chosen), Field("group_score", &S::group_score),
                      Field("jitter", &S::jitter));
  }
};

void make_routing(Routing* self, const RoutingArguments& given) {
  const std::pair<const char*, ExpertScore> scores[] = {{"softmax", ExpertScore::softmax},
                                                        {"sigmoid", ExpertScore::sigmoid},
                                                        {"chosen_softmax", ExpertScore::chosen_softmax},
                                                        {"sparsemixer", ExpertScore::sparsemixer},
                                                        {"sqrt_softplus", ExpertScore::sqrt_softplus}};
  const std::pair<const char*, bool> group_scores[] = {{"max", false}, {"top2", true}};
  new (self) Routing{.chosen = given.chosen,
                     .score = named(given.score, scores, "a score of experts"),
                     .normalise = given.normalise,
                     .epsilon = given.epsilon,
                     .scale = given.scale,
                     .groups = given.groups,
                     .groups_chosen = given.groups_chosen,
                     .best_two = named(given.group_score, group_scores, "a score of groups"),
                     .jitter = given.jitter};
}

struct AttentionArguments {
  int layer = 0;
  float scale = 0;
  int window = 0;
  float softcap = 0;
  std::optional<Tensor> sinks;
  int value_columns = 0;
  std::optional<Tensor> chosen;
  int chosen_block = 1;
  std::optional<Tensor> slopes;
  std::string window_kind = "sliding";
  bool causal = true;
  std::optional<Tensor> bias;
  std::vector<int> buckets;
  int bias_heads = 0, first_head = 0;
  bool spans = false;

  static constexpr size_t kKeywordsFrom = 0;
  static constexpr auto fields() {
    using S = AttentionArguments;
    return std::tuple(Field("layer", &S::layer), Field("scale", &S::scale), DefaultedField("window", &S::window),
                      DefaultedField("softcap", &S::softcap), DefaultedField("sinks", &S::sinks),
                      DefaultedField("value_columns", &S::value_columns), DefaultedField("chosen", &S::chosen),
                      DefaultedField("chosen_block", &S::chosen_block), DefaultedField("slopes", &S::slopes),
                      DefaultedField("window_kind", &S::window_kind), DefaultedField("causal", &S::causal),
                      DefaultedField("bias", &S::bias), DefaultedField("buckets", &S::buckets),
                      DefaultedField("bias_heads", &S::bias_heads), DefaultedField("first_head", &S::first_head),
                      DefaultedField("spans", &S::spans));
  }
};

void make_attention(AttentionParams* self, const AttentionArguments& given) {
  const std::pair<const char*, WindowKind> kinds[] = {{"sliding", WindowKind::sliding},
                                                      {"chunked", WindowKind::chunked}};
  new (self)
      AttentionParams{.layer = given.layer,
                      .scale = given.scale,
                      .window = given.window,
                      .softcap = given.softcap,
                      .sinks = given.sinks.value_or(Tensor{}),
                      .value_columns = given.value_columns,
                      .chosen = given.chosen.value_or(Tensor{}),
                      .chosen_block = given.chosen_block,
                      .slopes = given.slopes.value_or(Tensor{}),
                      .window_kind = named(given.window_kind, kinds, "a kind of window"),
                      .causal = given.causal,
                      .spans = given.spans,
                      .bias = {given.bias.value_or(Tensor{}), given.buckets, given.bias_heads, given.first_head}};
}

struct DeltaRuleArguments {
  Tensor qkv, beta, decay, decay_weight, decay_bias;
  std::shared_ptr<StateMemory> memory;
  int layer = 0, key_heads = 0;
  bool interleaved = false;
  float gain = 0;

  static constexpr size_t kKeywordsFrom = 6;
  static constexpr auto fields() {
    using S = DeltaRuleArguments;
    return std::tuple(Field("qkv", &S::qkv), Field("beta", &S::beta), Field("decay", &S::decay),
                      Field("decay_weight", &S::decay_weight), Field("decay_bias", &S::decay_bias),
                      Field("memory", &S::memory), Field("layer", &S::layer), Field("key_heads", &S::key_heads),
                      Field("interleaved", &S::interleaved), Field("gain", &S::gain));
  }
};

Tensor delta_rule(Recorder& r, DeltaRuleArguments given) {
  return take(r.delta_rule(given.qkv, given.beta, given.decay, given.decay_weight, given.decay_bias,
                           std::move(given.memory), {given.layer, given.key_heads, given.interleaved, given.gain}));
}

struct SelectiveScanArguments {
  Tensor xbc, dt, decay_weight, decay_bias, skip;
  std::shared_ptr<StateMemory> memory;
  int layer = 0, per_group = 0, first = 0;

  static constexpr size_t kKeywordsFrom = 6;
  static constexpr auto fields() {
    using S = SelectiveScanArguments;
    return std::tuple(Field("xbc", &S::xbc), Field("dt", &S::dt), Field("decay_weight", &S::decay_weight),
                      Field("decay_bias", &S::decay_bias), Field("skip", &S::skip), Field("memory", &S::memory),
                      Field("layer", &S::layer), Field("per_group", &S::per_group), Field("first", &S::first));
  }
};

Tensor selective_scan(Recorder& r, SelectiveScanArguments given) {
  return take(r.selective_scan(given.xbc, given.dt, given.decay_weight, given.decay_bias, given.skip,
                               std::move(given.memory), {given.layer, given.per_group, given.first}));
}

struct PooledAttentionArguments {
  Tensor q, k;
  std::shared_ptr<KvCache> cache;
  const AttentionParams* params = nullptr;
  Tensor rows;
  std::shared_ptr<KvCache> window_cache;
  int layer = 0, ratio = 0;

  static constexpr auto fields() {
    using S = PooledAttentionArguments;
    return std::tuple(Field("q", &S::q), Field("k", &S::k), Field("cache", &S::cache), Field("params", &S::params),
                      Field("rows", &S::rows), Field("window_cache", &S::window_cache), Field("layer", &S::layer),
                      Field("ratio", &S::ratio));
  }
};

Tensor pooled_attention(Recorder& r, PooledAttentionArguments given) {
  return take(r.attention_pooled(given.q, given.k, std::move(given.cache), *given.params, given.rows,
                                 std::move(given.window_cache), given.layer, given.ratio));
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

}  // namespace

void bind_recorder(nb::module_& m) {
  nb::class_<StepLimits>(m, "NativeStepLimits", "Upper bounds of the steps of a program.")
      .def("__init__", &make_limits, nb::kw_only(), nb::arg("max_tokens"), nb::arg("max_sequences"),
           nb::arg("max_sampled_rows"), nb::arg("max_blocks_per_sequence"));
  nb::class_<AttentionParams> attention(m, "AttentionParams",
                                        "How scores are made; see homenode.compute.ops.Ops.attention.");
  define<AttentionArguments, AttentionParams*>(attention, "__init__", &make_attention);
  nb::class_<ExpertWeights> experts(m, "ExpertWeights", "The matrices of an MoE layer's experts.");
  define<ExpertArguments, ExpertWeights*>(
      experts, "__init__", &make_experts,
      "ids: which of the experts that have logits these are, ascending; empty: all. Biases: of each, or empty.");
  nb::class_<Routing> routing(m, "NativeRouting",
                              "How experts are chosen and weighted; see homenode.compute.ops.Routing.");
  define<RoutingArguments, Routing*>(routing, "__init__", &make_routing);
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
      .def("adapter_index", &Recorder::adapter_index)
      .def("linear_indexed", &linear_indexed, nb::arg("x"), nb::arg("weights"), nb::arg("index"),
           nb::arg("residual").none() = nb::none(), nb::arg("first") = 0)
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
          nb::arg("ratio") = 1);
  define<PooledAttentionArguments, Recorder&>(recorder, "record_pooled_attention", &pooled_attention);
  recorder
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
          nb::arg("overlap"));
  define<DeltaRuleArguments, Recorder&>(recorder, "record_delta_rule", &delta_rule);
  define<SelectiveScanArguments, Recorder&>(recorder, "record_selective_scan", &selective_scan);
  recorder.def(
              "select", [](Recorder& r, const Tensor& x) { return take(r.select(x)); }, nb::arg("x"))
      .def("finish", [](Recorder& r, const Tensor& output) { return take(r.finish(output)); }, nb::arg("output"));
}

}  // namespace homenode
