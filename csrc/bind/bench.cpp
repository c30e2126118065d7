#include "bench/ceilings.h"

#include <nanobind/stl/pair.h>

#include "bind/bind.h"

namespace homenode {
namespace {

// Runs `measure` without the interpreter lock.
template <class F>
auto measured(F&& measure) {
  auto result = [&] {
    nb::gil_scoped_release unlocked;
    return measure();
  }();
  return take(std::move(result));
}

std::shared_ptr<ReadBuffer> make_buffer(std::shared_ptr<ThreadPool> pool, size_t bytes_per_thread) {
  return measured([&] { return ReadBuffer::create(std::move(pool), bytes_per_thread); });
}

std::pair<int64_t, std::vector<double>> burst(ThreadPool& pool, Level level, Multiply kind, int64_t rounds) {
  auto done = measured([&] { return multiply_burst(pool, level, kind, rounds); });
  return {done.operations, std::move(done.seconds)};
}

}  // namespace

void bind_bench(nb::module_& m) {
  nb::class_<ReadBuffer>(m, "ReadBuffer", "Memory to read, a slice for each thread of a thread pool.")
      .def(nb::new_(&make_buffer), nb::arg("pool"), nb::arg("bytes_per_thread"))
      .def_prop_ro("nbytes", &ReadBuffer::bytes)
      .def_prop_ro("huge_pages", &ReadBuffer::huge_pages)
      .def(
          "read",
          [](const ReadBuffer& b, Level level, bool eight, int part, int parts) {
            return measured([&] { return b.read(level, eight, part, parts); });
          },
          nb::arg("level"), nb::arg("eight_streams"), nb::arg("part"), nb::arg("parts"),
          "Seconds in which all threads read a part of their slices.");
  nb::enum_<Multiply>(m, "Multiply", "Kinds of products.")
      .value("int8", Multiply::int8)
      .value("bf16", Multiply::bf16)
      .value("f32", Multiply::f32)
      .value("int6", Multiply::int6);
  m.def("multiply_burst", &burst, nb::arg("pool"), nb::arg("level"), nb::arg("kind"), nb::arg("rounds"),
        "Operations each thread did in registers, and the seconds it took.");
  m.def(
      "round_trip_ns",
      [](ThreadPool& t, int other, int rounds) { return measured([&] { return round_trip_ns(t, other, rounds); }); },
      nb::arg("pool"), nb::arg("other"), nb::arg("rounds"), "Nanoseconds until thread 0 has an answer from another.");
}

}  // namespace homenode
