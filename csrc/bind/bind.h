// The Python face: handles in, exceptions out. Nothing here computes.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>

#include "base/status.h"
#include "host/thread_pool.h"
#include "linear/linear.h"
#include "recorder/recorder.h"

namespace homenode {

namespace nb = nanobind;

template <class T>
using Array1 = nb::ndarray<nb::numpy, const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<nb::numpy, const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Array1<T>& array) {
  return {array.data(), array.shape(0)};
}

// ValueError for a wrong argument, OSError (with errno) for a refusal of the machine, RuntimeError for a bug of ours.
[[noreturn]] void raise(const Error&);

template <class T>
T take(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(result.value());
}

// A packed matrix with the pool its pieces belong to.
struct WeightHandle {
  std::shared_ptr<Weight> weight;
  std::shared_ptr<ThreadPool> pool;
};

// A NumPy array that owns `values`.
template <class T>
auto array_of(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape, owner);
}

void bind_thread_pool(nb::module_&);
void bind_weights(nb::module_&);
void bind_kv_memory(nb::module_&);
void bind_kv_stream(nb::module_&);
void bind_lane(nb::module_&);
void bind_program(nb::module_&);
void bind_ranks(nb::module_&);
void bind_recorder(nb::module_&);
void bind_sampling(nb::module_&);
void bind_bench(nb::module_&);

}  // namespace homenode
