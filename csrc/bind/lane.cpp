#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "bind/bind.h"
#include "host/gate.h"
#include "host/lane.h"
#include "kernels/kv_announcement.h"

namespace homenode {
namespace {

nb::bytes bytes_of(const void* data, size_t bytes) { return nb::bytes(static_cast<const char*>(data), bytes); }

std::vector<nb::bytes> digests_of(const Announcement& said) {
  const size_t each = said.pages.empty() ? 0 : said.digests.size() / said.pages.size();
  std::vector<nb::bytes> found;
  for (size_t at = 0; each && at < said.digests.size(); at += each) found.push_back(bytes_of(said.digests.data() + at, each));
  return found;
}

// What was said: pages that are found to be good by `take_pages`, or a message's fields.
struct Said : Announcement {};

std::shared_ptr<Said> take_said(LaneReader& lane) {
  std::vector<std::byte> record;
  const Came came = lane.take(record);
  if (came == Came::nothing) return nullptr;
  auto said = came == Came::record ? announcement_of(record) : std::nullopt;
  if (!said) raise({Fault::user, 0, "a lane holds what is no announcement"});
  return std::make_shared<Said>(Said{std::move(*said)});
}

// The seconds it took to read the pages; None when they are not what was announced, or not what is expected.
struct Expected : KvExpected {
  Level level;
};

using Sources = std::vector<std::tuple<nb::bytes, std::shared_ptr<KvMemory>, std::shared_ptr<EpochWords>>>;

std::shared_ptr<Expected> expect(Level level, std::shared_ptr<KvMemory> own, const Sources& sources, uint32_t first, uint32_t pages, int64_t tokens,
                                 uint32_t digest_bytes, std::vector<int32_t> blocks, std::vector<int32_t> seen) {
  auto made = std::make_shared<Expected>(Expected{{first, pages, digest_bytes, tokens, std::move(blocks), std::move(seen), {}, std::move(own)}, level});
  std::sort(made->seen.begin(), made->seen.end());
  for (const auto& [buffer, memory, words] : sources) {
    KvExpected::Source one{{}, memory, words};
    if (buffer.size() != one.buffer.size()) raise({Fault::user, 0, "a buffer without a name"});
    std::memcpy(one.buffer.data(), buffer.c_str(), one.buffer.size());
    made->sources.push_back(std::move(one));
  }
  return made;
}

bool fits(const Expected& expected, const Said& said) { return expected.source_of(said); }

std::shared_ptr<Said> rehearsal_of(const Expected& expected, uint64_t pull_id) { return std::make_shared<Said>(Said{expected.rehearsal(pull_id)}); }

std::optional<double> take_pages_of(const Expected& expected, const Said& said) {
  nb::gil_scoped_release unlocked;
  const int64_t begun = now_ns();
  if (!take_expected(said, expected, kernels(expected.level))) return std::nullopt;
  return static_cast<double>(now_ns() - begun) * 1e-9;
}

// The same pages as blocks of those that begin at `base`.
std::vector<int64_t> blocks_of(const Said& said, int64_t base, size_t first, size_t count) {
  if (first > said.pages.size() || count > said.pages.size() - first) raise({Fault::user, 0, "pages that were not announced"});
  std::vector<int64_t> found(count);
  for (size_t i = 0; i < count; ++i) found[i] = base + said.pages[first + i];
  return found;
}

// Pages that can be announced as soon as they are computed: everything that a caller in a hurry need not say.
struct Lending {
  std::shared_ptr<LaneWriter> lane;
  const Kernels* kernels;
  std::shared_ptr<KvMemory> memory;
  std::shared_ptr<EpochWords> words;
  uint32_t first, pages, most;
  int64_t tokens;  // from the first page on
  Said said;       // of the last announcement
};

std::shared_ptr<Lending> lend(std::shared_ptr<LaneWriter> lane, Level level, std::shared_ptr<KvMemory> memory, std::shared_ptr<EpochWords> words,
                              const nb::bytes& buffer, uint64_t pull_id, uint32_t first, uint32_t pages, uint32_t most, int64_t tokens) {
  auto made = std::make_shared<Lending>(Lending{std::move(lane), &kernels(level), std::move(memory), std::move(words), first, pages, most, tokens, {}});
  if (buffer.size() != made->said.buffer.size()) raise({Fault::user, 0, "a buffer without a name"});
  std::memcpy(made->said.buffer.data(), buffer.c_str(), made->said.buffer.size());
  made->said.pull_id = pull_id;
  return made;
}

// The seconds it took to read the pages. None, and nothing was said, of others than were foreseen, of pages that are not there, and when they do not fit into the lane.
std::optional<double> announce(Lending& lending, uint64_t after, uint32_t first, std::vector<int32_t> pages, bool last) {
  nb::gil_scoped_release unlocked;
  const size_t count = pages.size();
  if (first != lending.first || !count || count > lending.most || count > lending.pages - first || last != (first + count == lending.pages)) return std::nullopt;
  lending.lane->promise();  // it wakes up while pages are read
  Said& said = lending.said;
  said.after = after, said.first = first, said.last = last;
  said.pages = std::move(pages);
  said.epochs.clear(), said.digests.clear();
  const int64_t begun = now_ns(), tokens = std::min(lending.tokens, static_cast<int64_t>(count) * lending.memory->shape().block_size);
  auto record = announce_pages(said, *lending.memory, *lending.words, tokens, *lending.kernels);
  const int64_t read = now_ns();
  if (!record || !record.value() || !lending.lane->put(*record.value())) return std::nullopt;
  return static_cast<double>(read - begun) * 1e-9;
}

bool watch(const std::vector<std::shared_ptr<LaneReader>>& lanes, int epoll, double seconds) {
  std::vector<const LaneReader*> all;
  for (const auto& lane : lanes) all.push_back(lane.get());
  nb::gil_scoped_release unlocked;
  return watch_lanes(all, epoll, now_ns() + static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

void bind_lane(nb::module_& m) {
  nb::class_<LaneReader>(m, "LaneReader", "Of records that another process of this host writes. For one thread.")
      .def_static("create", [] { return homenode::take(LaneReader::create()); })
      .def_prop_ro("fd", &LaneReader::fd)
      .def_prop_ro("bell", &LaneReader::bell, "Can be read from when there is something, if nobody looked.")
      .def_prop_ro("rope", &LaneReader::bell_rope, "What it is rung by: for the writer.")
      .def("ring", &LaneReader::ring)
      .def("hear_bell", &LaneReader::hear_bell, "Makes it quiet.")
      .def_prop_ro("has_news", &LaneReader::has_news)
      .def_prop_ro("promised", &LaneReader::promised, "Whether the writer has said that something will come, and nothing was taken since.")
      .def("give_up", &LaneReader::give_up, "What was promised was looked for in vain.")
      .def("take", &take_said, "What was announced; None: nothing more. ValueError for garbage, after which nothing more is to be taken.");
  nb::class_<LaneWriter>(m, "LaneWriter", "For one thread.")
      .def_static("attach", [](int fd, int rope) { return homenode::take(LaneWriter::attach(fd, rope)); }, nb::arg("fd"), nb::arg("rope"))
      .def("promise", &LaneWriter::promise, "Something will be announced soon: who sleeps wakes up. From any thread.");
  nb::class_<Lending>(m, "Lending", "Pages that can be announced as soon as they are computed. For one thread.")
      .def_static("of", &lend, nb::arg("lane"), nb::arg("level"), nb::arg("memory"), nb::arg("epoch_words"), nb::arg("buffer"), nb::arg("pull_id"),
                  nb::arg("first"), nb::arg("pages"), nb::arg("most"), nb::arg("tokens"))
      .def("announce", &announce, nb::arg("after"), nb::arg("first"), nb::arg("pages"), nb::arg("last"),
           "Reads pages and tells of them; the seconds it took. None, and nothing was said, when they are not there, or not what was foreseen, or do not fit.")
      .def_prop_ro("digests", [](const Lending& lending) { return digests_of(lending.said); }, "Of the pages that were announced.");
  nb::class_<Said>(m, "Announcement", "Pages that another process lends.")
      .def_ro("pull_id", &Said::pull_id)
      .def_ro("after", &Said::after)
      .def_ro("first", &Said::first)
      .def_ro("last", &Said::last)
      .def_ro("pages", &Said::pages)
      .def_prop_ro("buffer", [](const Said& said) { return bytes_of(said.buffer.data(), said.buffer.size()); })
      .def_prop_ro("packed", [](const Said& said) {
        return std::tuple(bytes_of(said.digests.data(), said.digests.size()), bytes_of(said.pages.data(), said.pages.size() * sizeof(int32_t)),
                          bytes_of(said.epochs.data(), said.epochs.size() * sizeof(uint64_t)));
      }, "Digests, pages and epochs, each in one piece, little-endian.")
      .def_prop_ro("digests", [](const Said& said) { return digests_of(said); })
      .def_prop_ro("count", [](const Said& said) { return said.pages.size(); })
      .def("blocks", &blocks_of, nb::arg("base"), nb::arg("first"), nb::arg("count"), "Some of the pages, counted from a block on.");
  nb::class_<Expected>(m, "Expected", "Pages that can be taken as soon as they are announced.")
      .def_static("of", &expect, nb::arg("level"), nb::arg("own"), nb::arg("sources"), nb::arg("first"), nb::arg("pages"), nb::arg("tokens"),
                  nb::arg("digest_bytes"), nb::arg("blocks"), nb::arg("seen"))
      .def("fits", &fits, nb::arg("said"), "Whether it is what is expected, as far as that can be told without reading pages.")
      .def("rehearsal", &rehearsal_of, nb::arg("pull_id"), "What looks like that, and does not fit.")
      .def("take", &take_pages_of, nb::arg("said"),
           "Reads the pages, copies those with a block of the own memory (not -1); the seconds it took. None: they are not what was announced, or expected.");
  m.def("watch_lanes", &watch, nb::arg("lanes"), nb::arg("epoll"), nb::arg("seconds"), "Whether a lane has news or the descriptor events, within so long.");
}

}  // namespace homenode
