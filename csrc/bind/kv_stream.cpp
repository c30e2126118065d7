#include "kv/stream.h"

#include "bind/bind.h"

namespace homenode {
namespace {

template <class Work>
auto unlocked(Work&& work) {
  auto result = [&] {
    nb::gil_scoped_release released;
    return work();
  }();
  return take(std::move(result));
}

// Bytes that were read; 0: there was nothing; -1: the stream has ended, and nothing came before that.
int64_t receive(PageReceiver& receiver, int socket, int64_t most, int64_t wait_us) {
  const PageReceiver::Came came = unlocked([&] { return receiver.receive(socket, most, wait_us); });
  return came.ended && !came.bytes ? -1 : came.bytes;
}

int64_t take_bytes(PageReceiver& receiver, const nb::bytes& bytes) {
  return receiver.take({reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size()});
}

std::vector<nb::bytes> digests_of(const PageReceiver& receiver) {
  const auto heads = static_cast<size_t>(receiver.heads());
  std::vector<nb::bytes> found;
  for (size_t at = 0; at < receiver.digests().size(); at += heads) {
    found.emplace_back(reinterpret_cast<const char*>(receiver.digests().data() + at), heads * sizeof(uint64_t));
  }
  return found;
}

}  // namespace

void bind_kv_stream(nb::module_& m) {
  nb::class_<PageReceiver>(m, "NativePageReceiver",
                           "Bytes of KV pages from a socket into their blocks; digested on the way.")
      .def_static(
          "create",
          [](std::shared_ptr<KvMemory> memory, Level level, std::vector<int32_t> blocks, std::vector<int32_t> tiles) {
            return take(PageReceiver::create({std::move(memory), std::move(blocks), std::move(tiles)}, kernels(level)));
          },
          nb::arg("memory"), nb::arg("level"), nb::arg("blocks"), nb::arg("tiles"))
      .def("receive", &receive, nb::arg("socket"), nb::arg("most"), nb::arg("wait_us"),
           "Bytes read; 0: there was nothing; -1: the stream has ended.")
      .def("take", &take_bytes, nb::arg("data"), "What was read already; how many bytes of it belong here.")
      .def_prop_ro("complete", &PageReceiver::complete)
      .def("digests", &digests_of, "Of each page that is complete.");
  nb::class_<PageSender>(m, "NativePageSender", "Bytes of KV pages from their blocks into a socket.")
      .def_static(
          "create",
          [](std::shared_ptr<KvMemory> memory, std::vector<int32_t> blocks, std::vector<int32_t> tiles) {
            return take(PageSender::create({std::move(memory), std::move(blocks), std::move(tiles)}));
          },
          nb::arg("memory"), nb::arg("blocks"), nb::arg("tiles"))
      .def(
          "send",
          [](PageSender& sender, int socket, int64_t most) {
            return unlocked([&] { return sender.send(socket, most); });
          },
          nb::arg("socket"), nb::arg("most"), "Bytes the kernel took; 0: none now.")
      .def_prop_ro("done", &PageSender::done);
}

}  // namespace homenode
