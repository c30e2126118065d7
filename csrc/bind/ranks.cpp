#include <cstring>
#include <optional>

#include <nanobind/stl/optional.h>

#include "bind/bind.h"
#include "host/rank_bridge.h"
#include "host/rank_group.h"
#include "host/shared_ring.h"

namespace homenode {
namespace {

using Values = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

FloatRows rows_of(float* data, size_t rows, size_t columns) {
  return {data, static_cast<int64_t>(columns), static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
}

// One call of one thread, the interpreter free meanwhile.
template <class Call>
void alone(RankGroup& group, Call&& call) {
  std::optional<Error> error;
  {
    nb::gil_scoped_release unlocked;
    const auto turn = group.turn();
    Caller caller;
    if (!call(caller)) error = group.error();
  }
  if (error) raise(*error);
}

void sum(RankGroup& group, const Values& values) {
  const FloatRows rows = rows_of(values.data(), values.shape(0), values.shape(1));
  alone(group, [&](Caller& caller) { return group.sum(rows, rows, caller); });
}

auto gather(RankGroup& group, const Values& values, const std::vector<int64_t>& widths) {
  int64_t total = 0;
  for (const int64_t width : widths) {
    if (width < 0 || width > INT32_MAX)
      raise({Fault::user, 0, "gather: a rank with " + std::to_string(width) + " columns"});
    total += width;
  }
  if (widths.size() != static_cast<size_t>(group.size()) ||
      widths[static_cast<size_t>(group.rank())] != static_cast<int64_t>(values.shape(1))) {
    raise({Fault::user, 0, "gather: widths that are not those of the ranks"});
  }
  std::vector<float> out(values.shape(0) * static_cast<size_t>(total));
  const FloatRows to{out.data(), total, static_cast<int64_t>(values.shape(0)), total};
  alone(group, [&](Caller& caller) {
    return group.gather(rows_of(values.data(), values.shape(0), values.shape(1)), to, widths, caller);
  });
  return array_of(std::move(out), {values.shape(0), static_cast<size_t>(total)});
}

// Seconds of each of so many sums of all threads of a pool, a barrier after each, and of copies of as many values by
// the same threads.
std::pair<std::vector<double>, std::vector<double>> time_sums(RankGroup& group, ThreadPool& pool, int64_t rows,
                                                              int64_t columns, int rounds) {
  if (rows < 1 || columns < 1 || rounds < 1) raise({Fault::user, 0, "sums of nothing"});
  std::vector<float> x(static_cast<size_t>(rows * columns), 1.0f), out(x.size());
  std::vector<double> sums, copies;
  {
    nb::gil_scoped_release unlocked;
    const auto turn = group.turn();
    const auto timed = [&](std::vector<double>& seconds, auto&& work) {
      pool.run([&](int thread) {
        for (int i = 0; i < rounds; ++i) {
          const int64_t begin = now_ns();
          if (!work(Caller{thread, pool.size(), i})) group.leave();  // every later call ends at once
          pool.barrier(thread);
          if (thread == 0) seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
        }
      });
    };
    const FloatRows from{x.data(), columns, rows, columns}, to{out.data(), columns, rows, columns};
    timed(sums, [&](Caller caller) { return group.sum(from, to, caller); });
    timed(copies, [&](Caller caller) {
      const size_t n = x.size(), begin = n * size_t(caller.thread) / size_t(caller.threads),
                   end = n * size_t(caller.thread + 1) / size_t(caller.threads);
      std::memcpy(out.data() + begin, x.data() + begin, (end - begin) * sizeof(float));
      return true;
    });
  }
  if (auto error = group.error()) raise(*error);
  return {sums, copies};
}

std::shared_ptr<RankGroup> join(std::shared_ptr<RankMemory> memory, int rank, double timeout_s, int spin_us) {
  return std::shared_ptr<RankGroup>(take(RankGroup::join(std::move(memory), rank, timeout_s, spin_us)));
}

// A sender or receiver, whose end waits for its thread.
template <class T>
class Ending {
 public:
  explicit Ending(std::unique_ptr<T> it) : it_(std::move(it)) {}
  ~Ending() { close(); }
  void close() {
    nb::gil_scoped_release unlocked;
    it_.reset();
  }

 private:
  std::unique_ptr<T> it_;
};

std::shared_ptr<Ending<RankSender>> send_rank(std::shared_ptr<RankMemory> memory, int rank,
                                              const std::vector<std::pair<int, std::vector<int>>>& hosts,
                                              double timeout_s) {
  std::vector<RankSender::Host> to;
  for (const auto& [fd, ranks] : hosts) to.push_back({Stream(fd), ranks});
  return std::make_shared<Ending<RankSender>>(
      take(RankSender::start(std::move(memory), rank, std::move(to), timeout_s)));
}

std::shared_ptr<Ending<RankReceiver>> receive_rank(std::shared_ptr<RankMemory> memory, int rank, int fd,
                                                   double timeout_s) {
  return std::make_shared<Ending<RankReceiver>>(
      take(RankReceiver::start(std::move(memory), rank, Stream(fd), timeout_s)));
}

template <class Call>
auto unlocked(Call&& call) {
  nb::gil_scoped_release released;
  return call();
}

void write(RingWriter& ring, uint64_t number, const float* data, int64_t stride, int64_t rows, int64_t columns,
           double timeout_s) {
  if (auto error = unlocked([&] { return ring.write(number, data, stride, rows, columns, timeout_s); })) raise(*error);
}

auto read(const std::shared_ptr<RingReader>& ring, uint64_t number, int64_t columns, double timeout_s) {
  const auto rows = take(unlocked([&] { return ring->read(number, columns, timeout_s); }));
  return nb::ndarray<nb::numpy, const float>(
      rows.data, {static_cast<size_t>(rows.rows), static_cast<size_t>(rows.columns)}, nb::cast(ring));
}

nb::ndarray<nb::numpy, uint8_t> bytes_of(const std::shared_ptr<RingMemory>& memory) {
  return {reinterpret_cast<uint8_t*>(memory->pages().data), {memory->pages().bytes}, nb::cast(memory)};
}

void bind_ring(nb::module_& m) {
  nb::class_<RingMemory>(m, "NativeRingMemory", "Rows between stages, in a memfd.")
      .def_static(
          "create",
          [](int64_t slots, int64_t readers, int64_t rows, int64_t columns) {
            return take(RingMemory::create({slots, readers, rows, columns}));
          },
          nb::arg("slots"), nb::arg("readers"), nb::arg("rows"), nb::arg("columns"))
      .def_static(
          "attach", [](int fd) { return take(RingMemory::attach(fd)); }, nb::arg("fd"))
      .def_prop_ro("fd", &RingMemory::fd)
      .def_prop_ro("slots", [](const RingMemory& r) { return r.sizes().slots; })
      .def_prop_ro("readers", [](const RingMemory& r) { return r.sizes().readers; })
      .def_prop_ro("rows", [](const RingMemory& r) { return r.sizes().rows; })
      .def_prop_ro("columns", [](const RingMemory& r) { return r.sizes().columns; })
      .def_prop_ro("bytes", &bytes_of, "All of its memory.")
      .def("end", &RingMemory::end);
  nb::class_<RingWriter>(m, "NativeRingWriter")
      .def(
          "write",
          [](RingWriter& ring, uint64_t number, const Array2<float>& rows, double timeout_s) {
            const auto columns = static_cast<int64_t>(rows.shape(1));
            write(ring, number, rows.data(), columns, static_cast<int64_t>(rows.shape(0)), columns, timeout_s);
          },
          nb::arg("number"), nb::arg("rows"), nb::arg("timeout_s"))
      .def(
          "write_output",
          [](RingWriter& ring, uint64_t number, const Output& o, double timeout_s) {
            write(ring, number, o.data, o.stride, o.rows, o.columns, timeout_s);
          },
          nb::arg("number"), nb::arg("output"), nb::arg("timeout_s"))
      .def("leave", &RingWriter::leave);
  nb::class_<RingReader>(m, "NativeRingReader")
      .def("read", &read, nb::arg("number"), nb::arg("columns"), nb::arg("timeout_s"))
      .def("release", &RingReader::release)
      .def("leave", &RingReader::leave);
  m.def(
      "ring_writer",
      [](std::shared_ptr<RingMemory> memory, int spin_us) {
        return std::shared_ptr<RingWriter>(take(RingWriter::join(std::move(memory), spin_us)));
      },
      nb::arg("memory"), nb::arg("spin_us"));
  m.def(
      "ring_reader",
      [](std::shared_ptr<RingMemory> memory, int reader, int spin_us) {
        return std::shared_ptr<RingReader>(take(RingReader::join(std::move(memory), reader, spin_us)));
      },
      nb::arg("memory"), nb::arg("reader"), nb::arg("spin_us"));
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<RankMemory>(m, "NativeRankMemory", "The memory of a group of ranks, in a memfd.")
      .def_static(
          "create", [](int ranks, int64_t bytes_per_rank) { return take(RankMemory::create(ranks, bytes_per_rank)); },
          nb::arg("ranks"), nb::arg("bytes_per_rank"))
      .def_static(
          "attach", [](int fd) { return take(RankMemory::attach(fd)); }, nb::arg("fd"))
      .def_prop_ro("fd", &RankMemory::fd)
      .def_prop_ro("ranks", &RankMemory::ranks)
      .def_prop_ro("half_floats", &RankMemory::half_floats)
      .def(
          "end", [](RankMemory& memory, const std::vector<int>& gone) { memory.end(gone, RankMemory::Fate::left); },
          nb::arg("gone"));
  nb::class_<RankGroup>(m, "RankGroupHandle", "One rank of a group.")
      .def_prop_ro("rank", &RankGroup::rank)
      .def_prop_ro("size", &RankGroup::size)
      .def("sum", &sum, nb::arg("values"), "In place.")
      .def("gather", &gather, nb::arg("values"), nb::arg("widths"))
      .def("leave", &RankGroup::leave);
  m.def("join_ranks", &join, nb::arg("memory"), nb::arg("rank"), nb::arg("timeout_s"), nb::arg("spin_us"));
  nb::class_<Ending<RankSender>>(m, "RankSender", "Sends what a rank of this host writes to other hosts.")
      .def("close", &Ending<RankSender>::close);
  nb::class_<Ending<RankReceiver>>(m, "RankReceiver", "Writes here what a rank of another host sends.")
      .def("close", &Ending<RankReceiver>::close);
  m.def("send_rank", &send_rank, nb::arg("memory"), nb::arg("rank"), nb::arg("hosts"), nb::arg("timeout_s"),
        "Hosts: a connected descriptor, which is taken over, and the ranks there.");
  m.def("receive_rank", &receive_rank, nb::arg("memory"), nb::arg("rank"), nb::arg("fd"), nb::arg("timeout_s"));
  m.def("time_sums", &time_sums, nb::arg("group"), nb::arg("pool"), nb::arg("rows"), nb::arg("columns"),
        nb::arg("rounds"), "Seconds of sums by all threads of a thread pool, and of copies of as many values.");
  bind_ring(m);
}

}  // namespace homenode
