#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "bind/bind.h"
#include "host/event_count.h"
#include "host/lane.h"
#include "kv/announcement.h"

namespace homenode {
namespace {

nb::bytes bytes_of(const void* data, size_t bytes) { return nb::bytes(static_cast<const char*>(data), bytes); }

std::vector<nb::bytes> digests_of(const Announcement& announcement) {
  const size_t each = announcement.pages.empty() ? 0 : announcement.digests.size() / announcement.pages.size();
  std::vector<nb::bytes> found;
  for (size_t at = 0; each && at < announcement.digests.size(); at += each)
    found.push_back(bytes_of(announcement.digests.data() + at, each));
  return found;
}

// Pages that were announced, and are found to be good by `take_pages`; or a message's fields.
struct BoundAnnouncement : Announcement {};

std::shared_ptr<BoundAnnouncement> take_announcement(LaneReader& lane) {
  std::vector<std::byte> record;
  const Came came = lane.take(record);
  if (came == Came::nothing) return nullptr;
  auto announcement = came == Came::record ? announcement_of(record) : std::nullopt;
  if (!announcement) raise({Fault::user, 0, "a lane holds what is no announcement"});
  return std::make_shared<BoundAnnouncement>(BoundAnnouncement{std::move(*announcement)});
}

// The seconds it took to read the pages; None when they are not what was announced, or not what is expected.
struct Expected : KvExpected {
  Level level;
};

using Sources = std::vector<std::tuple<nb::bytes, std::shared_ptr<KvMemory>, std::shared_ptr<EpochWords>>>;

// Pages `first` and so on of a hand-over of `pages`, whose positions from the first of these on are `tokens`.
struct PageRange {
  uint32_t first, pages;
  int64_t tokens;
};

std::shared_ptr<Expected> expect(Level level, std::shared_ptr<KvMemory> own, const Sources& sources,
                                 const PageRange& range, uint32_t digest_bytes, std::vector<int32_t> blocks,
                                 std::vector<int32_t> seen) {
  auto made = std::make_shared<Expected>(Expected{{.first = range.first,
                                                   .pages = range.pages,
                                                   .digest_bytes = digest_bytes,
                                                   .tokens = range.tokens,
                                                   .blocks = std::move(blocks),
                                                   .seen = std::move(seen),
                                                   .sources = {},
                                                   .own = std::move(own)},
                                                  level});
  std::sort(made->seen.begin(), made->seen.end());
  for (const auto& [buffer, memory, words] : sources) {
    KvExpected::Source one{{}, memory, words};
    if (buffer.size() != one.buffer.size()) raise({Fault::user, 0, "a buffer without a name"});
    std::memcpy(one.buffer.data(), buffer.c_str(), one.buffer.size());
    made->sources.push_back(std::move(one));
  }
  return made;
}

bool fits(const Expected& expected, const BoundAnnouncement& announcement) { return expected.source_of(announcement); }

std::shared_ptr<BoundAnnouncement> rehearsal_of(const Expected& expected, uint64_t pull_id) {
  return std::make_shared<BoundAnnouncement>(BoundAnnouncement{expected.rehearsal(pull_id)});
}

std::optional<double> take_pages_of(const Expected& expected, const BoundAnnouncement& announcement) {
  nb::gil_scoped_release unlocked;
  const int64_t begun = now_ns();
  if (!take_expected(announcement, expected, kernels(expected.level))) return std::nullopt;
  return static_cast<double>(now_ns() - begun) * 1e-9;
}

// The same pages as blocks of those that begin at `base`.
std::vector<int64_t> blocks_of(const BoundAnnouncement& announcement, int64_t base, size_t first, size_t count) {
  if (first > announcement.pages.size() || count > announcement.pages.size() - first)
    raise({Fault::user, 0, "pages that were not announced"});
  std::vector<int64_t> found(count);
  for (size_t i = 0; i < count; ++i) found[i] = base + announcement.pages[first + i];
  return found;
}

// Pages that can be announced as soon as they are computed: everything that a caller in a hurry need not pass again.
struct PageExport {
  std::shared_ptr<LaneWriter> lane;
  const Kernels* kernels;
  std::shared_ptr<KvMemory> memory;
  std::shared_ptr<EpochWords> words;
  PageRange range;
  uint32_t limit;                  // pages of one announcement
  BoundAnnouncement announcement;  // the last one
};

std::shared_ptr<PageExport> export_pages(std::shared_ptr<LaneWriter> lane, Level level,
                                         std::shared_ptr<KvMemory> memory, std::shared_ptr<EpochWords> words,
                                         const nb::bytes& buffer, uint64_t pull_id, const PageRange& range,
                                         uint32_t limit) {
  auto made = std::make_shared<PageExport>(PageExport{.lane = std::move(lane),
                                                      .kernels = &kernels(level),
                                                      .memory = std::move(memory),
                                                      .words = std::move(words),
                                                      .range = range,
                                                      .limit = limit,
                                                      .announcement = {}});
  if (buffer.size() != made->announcement.buffer.size()) raise({Fault::user, 0, "a buffer without a name"});
  std::memcpy(made->announcement.buffer.data(), buffer.c_str(), made->announcement.buffer.size());
  made->announcement.pull_id = pull_id;
  return made;
}

// The seconds it took to read the pages. None, and nothing was announced, for others than were foreseen, for pages that
// are not there, and when they do not fit into the lane.
std::optional<double> announce(PageExport& exported, uint64_t after, uint32_t first, std::vector<int32_t> pages,
                               bool last) {
  nb::gil_scoped_release unlocked;
  const size_t count = pages.size();
  const PageRange& range = exported.range;
  if (first != range.first || !count || count > exported.limit || count > range.pages - first ||
      last != (first + count == range.pages))
    return std::nullopt;
  exported.lane->hint_wake();  // the reader wakes up while pages are read
  BoundAnnouncement& announcement = exported.announcement;
  announcement.after = after, announcement.first = first, announcement.last = last;
  announcement.pages = std::move(pages);
  announcement.epochs.clear(), announcement.digests.clear();
  const int64_t begun = now_ns(),
                tokens = std::min(range.tokens, static_cast<int64_t>(count) * exported.memory->shape().block_size);
  auto record = announce_pages(announcement, *exported.memory, *exported.words, tokens, *exported.kernels);
  const int64_t read = now_ns();
  if (!record || !record.value() || !exported.lane->put(*record.value())) return std::nullopt;
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
  nb::class_<LaneReader>(m, "LaneReaderHandle", "Of records that another process of this host writes. For one thread.")
      .def_static("create", [] { return homenode::take(LaneReader::create()); })
      .def_prop_ro("fd", &LaneReader::fd)
      .def_prop_ro("wake_fd", &LaneReader::wake_fd, "Can be read from when there is something, if nobody looked.")
      .def_prop_ro("waker_fd", &LaneReader::waker_fd, "What it is rung by: for the writer.")
      .def("wake", &LaneReader::wake)
      .def("clear_wake", &LaneReader::clear_wake, "Makes it quiet.")
      .def_prop_ro("has_news", &LaneReader::has_news)
      .def_prop_ro("wake_hinted", &LaneReader::wake_hinted,
                   "Whether the writer has hinted that a record will come, and none was taken since.")
      .def("clear_hint", &LaneReader::clear_hint, "No record came after the last hint.")
      .def("take", &take_announcement, nb::sig("def take(self) -> Announcement | None"),
           "What was announced; None: nothing more. ValueError for garbage, after which nothing more is to be taken.");
  nb::class_<LaneWriter>(m, "LaneWriterHandle", "For one thread.")
      .def_static(
          "attach", [](int fd, int waker_fd) { return homenode::take(LaneWriter::attach(fd, waker_fd)); },
          nb::arg("fd"), nb::arg("waker_fd"))
      .def("hint_wake", &LaneWriter::hint_wake,
           "Something will be announced soon: a sleeping reader is woken. From any thread.");
  nb::class_<PageRange>(m, "PageRange", "Pages `first` and so on of a hand-over.")
      .def(
          "__init__",
          [](PageRange* self, uint32_t first, uint32_t pages, int64_t tokens) {
            new (self) PageRange{.first = first, .pages = pages, .tokens = tokens};
          },
          nb::kw_only(), nb::arg("first"), nb::arg("pages"), nb::arg("tokens"),
          "pages: of the whole hand-over. tokens: positions from the first of these pages on.");
  nb::class_<PageExport>(m, "NativePageExport",
                         "Pages that can be announced as soon as they are computed. For one thread.")
      .def_static("of", &export_pages, nb::kw_only(), nb::arg("lane"), nb::arg("level"), nb::arg("memory"),
                  nb::arg("epoch_words"), nb::arg("buffer"), nb::arg("pull_id"), nb::arg("range"), nb::arg("limit"),
                  "limit: the most pages of one announcement.")
      .def("announce", &announce, nb::arg("after"), nb::arg("first"), nb::arg("pages"), nb::arg("last"),
           "Read pages and announce them; the seconds it took. None, and nothing was announced, when they are not "
           "there, or not what was foreseen, or do not fit.")
      .def_prop_ro(
          "digests", [](const PageExport& exported) { return digests_of(exported.announcement); },
          "Of the pages that were announced.");
  nb::class_<BoundAnnouncement>(m, "Announcement", "Pages that another process exports.")
      .def_ro("pull_id", &BoundAnnouncement::pull_id)
      .def_ro("after", &BoundAnnouncement::after)
      .def_ro("first", &BoundAnnouncement::first)
      .def_ro("last", &BoundAnnouncement::last)
      .def_ro("pages", &BoundAnnouncement::pages)
      .def_prop_ro("buffer",
                   [](const BoundAnnouncement& announcement) {
                     return bytes_of(announcement.buffer.data(), announcement.buffer.size());
                   })
      .def_prop_ro(
          "packed",
          [](const BoundAnnouncement& announcement) {
            return std::tuple(bytes_of(announcement.digests.data(), announcement.digests.size()),
                              bytes_of(announcement.pages.data(), announcement.pages.size() * sizeof(int32_t)),
                              bytes_of(announcement.epochs.data(), announcement.epochs.size() * sizeof(uint64_t)));
          },
          "Digests, pages and epochs, each in one piece, little-endian.")
      .def_prop_ro("digests", [](const BoundAnnouncement& announcement) { return digests_of(announcement); })
      .def_prop_ro("count", [](const BoundAnnouncement& announcement) { return announcement.pages.size(); })
      .def("blocks", &blocks_of, nb::arg("base"), nb::arg("first"), nb::arg("count"),
           "Some of the pages, counted from a block on.");
  nb::class_<Expected>(m, "NativeExpected", "Pages that can be taken as soon as they are announced.")
      .def_static("of", &expect, nb::kw_only(), nb::arg("level"), nb::arg("own"), nb::arg("sources"), nb::arg("range"),
                  nb::arg("digest_bytes"), nb::arg("blocks"), nb::arg("seen"),
                  "sources: name of a buffer, its memory and epoch words. blocks: own ones, -1: read in place. seen: "
                  "pages that must not come again.")
      .def("fits", &fits, nb::arg("announcement"),
           "Whether it is what is expected, as far as that can be told without reading pages.")
      .def("rehearsal", &rehearsal_of, nb::arg("pull_id"), "What looks like that, and does not fit.")
      .def("take", &take_pages_of, nb::arg("announcement"),
           "Reads the pages, copies those with a block of the own memory (not -1); the seconds it took. None: they are "
           "not what was announced, or expected.");
  m.def("watch_lanes", &watch, nb::arg("lanes"), nb::arg("epoll"), nb::arg("seconds"),
        "Whether a lane has news or the descriptor events, within so long.");
}

}  // namespace homenode
