#include "sampling/sampling.h"

#include <nanobind/stl/tuple.h>

#include "bind/bind.h"

namespace homenode {
namespace {

// (tokens, logprobs, top_tokens, top_logprobs)
auto as_arrays(Drawn drawn) {
  const size_t rows = drawn.tokens.size(), top = static_cast<size_t>(drawn.top);
  return std::make_tuple(array_of(std::move(drawn.tokens), {rows}), array_of(std::move(drawn.logprobs), {rows}),
                         array_of(std::move(drawn.top_tokens), {rows, top}),
                         array_of(std::move(drawn.top_logprobs), {rows, top}));
}

// SamplingInput as NumPy arrays.
struct BoundSampling {
#define HOMENODE_FIELD(type, name, least, most) Array1<type> name;
  HOMENODE_SAMPLING_SETTINGS(HOMENODE_FIELD)
#undef HOMENODE_FIELD
  Array1<uint64_t> seed, counter;
  Array1<int32_t> bias_start, bias_token;
  Array1<float> bias_value;
  Array1<int32_t> seen_start, seen_token, seen_count;
  Array1<int32_t> mask_row;
  Array2<uint32_t> masks;
};

template <class T>
std::span<const T> given(const Array1<T>& array, const char* name) {
  if (!array.is_valid()) raise({Fault::user, 0, std::string("sampling arrays: no ") + name + " was given"});
  return span_of(array);
}

template <class T>
std::span<const T> given(const Array2<T>& array, const char* name) {
  if (!array.is_valid()) raise({Fault::user, 0, std::string("sampling arrays: no ") + name + " was given"});
  return {array.data(), array.size()};
}

// clang-format off
SamplingInput input_of(const BoundSampling& arrays) {
#define HOMENODE_GIVEN(name) .name = given(arrays.name, #name),
#define HOMENODE_SETTING(type, name, least, most) HOMENODE_GIVEN(name)
  return {
      HOMENODE_SAMPLING_SETTINGS(HOMENODE_SETTING)
      HOMENODE_GIVEN(seed) HOMENODE_GIVEN(counter)
      HOMENODE_GIVEN(bias_start) HOMENODE_GIVEN(bias_token) HOMENODE_GIVEN(bias_value)
      HOMENODE_GIVEN(seen_start) HOMENODE_GIVEN(seen_token) HOMENODE_GIVEN(seen_count)
      HOMENODE_GIVEN(mask_row) HOMENODE_GIVEN(masks)
      .mask_words = static_cast<int64_t>(arrays.masks.shape(1)),
  };
#undef HOMENODE_SETTING
#undef HOMENODE_GIVEN
}
// clang-format on

auto sample(Sampler& sampler, const Output& logits, const BoundSampling& arrays, int64_t num_logprobs) {
  const SamplingInput in = input_of(arrays);
  auto drawn = [&] {
    nb::gil_scoped_release unlocked;
    return sampler.sample(logits, in, num_logprobs);
  }();
  return as_arrays(take(std::move(drawn)));
}

auto score(Sampler& sampler, const Output& logits, const Array1<int32_t>& rows, const Array1<int32_t>& targets,
           int64_t num_logprobs) {
  auto drawn = [&] {
    nb::gil_scoped_release unlocked;
    return sampler.score(logits, span_of(rows), span_of(targets), num_logprobs);
  }();
  return as_arrays(take(std::move(drawn)));
}

}  // namespace

void bind_sampling(nb::module_& m) {
  // A copy of another type would not follow the array that was given.
  const auto exact = nb::for_setter(nb::arg("array").noconvert());
  nb::class_<BoundSampling>(m, "NativeSamplingArrays",
                            "How to draw from each row: see homenode.compute.ops.SamplingArrays. All fields must be "
                            "set, to arrays of their type; they are read when tokens are drawn.")
      .def(nb::init<>())
#define HOMENODE_SETTING(type, name, least, most) .def_rw(#name, &BoundSampling::name, exact)
          HOMENODE_SAMPLING_SETTINGS(HOMENODE_SETTING)
#undef HOMENODE_SETTING
      .def_rw("seed", &BoundSampling::seed, exact)
      .def_rw("counter", &BoundSampling::counter, exact, "The index of the token that is drawn in its sequence.")
      .def_rw("bias_start", &BoundSampling::bias_start, exact,
              "Row i has the entries bias_start[i] .. bias_start[i + 1] - 1 of the next two.")
      .def_rw("bias_token", &BoundSampling::bias_token, exact)
      .def_rw("bias_value", &BoundSampling::bias_value, exact)
      .def_rw("seen_start", &BoundSampling::seen_start, exact,
              "Row i has the entries seen_start[i] .. seen_start[i + 1] - 1 of the next two.")
      .def_rw("seen_token", &BoundSampling::seen_token, exact)
      .def_rw("seen_count", &BoundSampling::seen_count, exact)
      .def_rw("mask_row", &BoundSampling::mask_row, exact, "The row of `masks` for each row of logits; -1: none.")
      .def_rw("masks", &BoundSampling::masks, exact, "[masks, words] a bit for each token that may be drawn.");
  nb::class_<Sampler>(m, "NativeSampler", "Draws tokens from logits; see homenode.compute.ops.SamplingArrays.")
      .def(nb::init<std::shared_ptr<ThreadPool>, Level>(), nb::arg("pool"), nb::arg("level"))
      .def("sample", &sample, nb::arg("logits"), nb::arg("arrays"), nb::arg("num_logprobs"),
           "Tokens, log-probabilities, most likely tokens and theirs. num_logprobs < 0: log-probabilities are not "
           "computed.")
      .def("score", &score, nb::arg("logits"), nb::arg("rows"), nb::arg("targets"), nb::arg("num_logprobs"),
           "The same for given tokens: targets[i] in row rows[i].");
  m.def("uniform", &uniform, nb::arg("seed"), nb::arg("counter"), "The number in [0, 1) a draw uses.");
}

}  // namespace homenode
