#include "kernels/sampling.h"

#include "bind/bind.h"

namespace homenode {
namespace {

// (tokens, logprobs, top_tokens, top_logprobs)
nb::tuple as_arrays(Drawn drawn) {
  const size_t rows = drawn.tokens.size(), top = static_cast<size_t>(drawn.top);
  return nb::make_tuple(array_of(std::move(drawn.tokens), {rows}), array_of(std::move(drawn.logprobs), {rows}),
                        array_of(std::move(drawn.top_tokens), {rows, top}), array_of(std::move(drawn.top_logprobs), {rows, top}));
}

nb::tuple sample(Sampler& sampler, const Output& logits, const Array1<float>& temperature, const Array1<int32_t>& top_k, const Array1<float>& top_p,
                 const Array1<float>& min_p, const Array1<uint64_t>& seed, const Array1<uint64_t>& counter, const Array1<float>& repetition_penalty,
                 const Array1<float>& frequency_penalty, const Array1<float>& presence_penalty, const Array1<int32_t>& bias_start,
                 const Array1<int32_t>& bias_token, const Array1<float>& bias_value, const Array1<int32_t>& seen_start,
                 const Array1<int32_t>& seen_token, const Array1<int32_t>& seen_count, int64_t num_logprobs) {
  SamplingInput in;
  in.temperature = span_of(temperature), in.top_k = span_of(top_k), in.top_p = span_of(top_p), in.min_p = span_of(min_p);
  in.seed = span_of(seed), in.counter = span_of(counter);
  in.repetition_penalty = span_of(repetition_penalty), in.frequency_penalty = span_of(frequency_penalty);
  in.presence_penalty = span_of(presence_penalty);
  in.bias_start = span_of(bias_start), in.bias_token = span_of(bias_token), in.bias_value = span_of(bias_value);
  in.seen_start = span_of(seen_start), in.seen_token = span_of(seen_token), in.seen_count = span_of(seen_count);
  auto drawn = [&] {
    nb::gil_scoped_release unlocked;
    return sampler.sample(logits, in, num_logprobs);
  }();
  return as_arrays(take(std::move(drawn)));
}

nb::tuple score(Sampler& sampler, const Output& logits, const Array1<int32_t>& rows, const Array1<int32_t>& targets, int64_t num_logprobs) {
  auto drawn = [&] {
    nb::gil_scoped_release unlocked;
    return sampler.score(logits, span_of(rows), span_of(targets), num_logprobs);
  }();
  return as_arrays(take(std::move(drawn)));
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "Draws tokens from logits; see homenode.compute.ops.SamplingArrays.")
      .def(nb::init<std::shared_ptr<Team>, Level>(), nb::arg("team"), nb::arg("level"))
      .def("sample", &sample)
      .def("score", &score);
  m.def("uniform", &uniform, nb::arg("seed"), nb::arg("counter"), "The number in [0, 1) a draw uses.");
}

}  // namespace homenode
