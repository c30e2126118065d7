// Lanes between threads that map the same memory, and under a writer who writes what he likes; announcements of pages.
#include "host/lane.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <numeric>
#include <thread>

#include "host/event_count.h"
#include "kv/announcement.h"
#include "kv/copy.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr int64_t kWaitNs = 60'000'000'000;

template <class T>
T& taken_from(Result<T>& result) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  require(static_cast<bool>(result), "what is asked for is had");
  return result.value();
}

std::vector<std::byte> record_number(uint64_t number) {
  Random random(number + 1);
  std::vector<std::byte> record(
      static_cast<size_t>(random.one_in(8) ? random.between(0, int(kMostRecordBytes)) : random.between(0, 200)));
  for (std::byte& byte : record) byte = static_cast<std::byte>(random.bits());
  return record;
}

// All records come, once, in order, however often the reader sleeps.
void check_way(Random& random) {
  auto made = LaneReader::create();
  const auto reader = taken_from(made);
  auto joined = LaneWriter::attach(reader->fd(), reader->waker_fd());
  const auto writer = taken_from(joined);
  const uint64_t count = static_cast<uint64_t>(random.between(1, 300));
  std::thread other([&] {
    const int64_t until = now_ns() + kWaitNs;
    for (uint64_t number = 0; number < count && now_ns() < until;) {
      if (number % 3 == 0) writer->hint_wake();
      if (writer->put(record_number(number))) ++number;
      else std::this_thread::yield();
    }
  });
  LaneReader* lane = reader.get();
  std::vector<std::byte> record;
  uint64_t number = 0;
  for (const int64_t until = now_ns() + kWaitNs; number < count && now_ns() < until;) {
    const Came came = reader->take(record);
    require(came != Came::garbage, "a writer that keeps to the rules writes no garbage");
    if (came == Came::record) require(record == record_number(number++), "records come as they were written, in order");
    else if (random.one_in(2)) watch_lanes(std::array{static_cast<const LaneReader*>(lane)}, -1, now_ns() + 1000);
    else if (reader->wake_hinted()) reader->clear_hint();
  }
  other.join();
  require(number == count, "all records come");
  require(reader->take(record) == Came::nothing, "and nothing else");
  reader->clear_wake();
}

// A writer that maps the lane itself: whatever he writes, what is taken lies within bounds, and it ends.
void check_hostile(Random& random) {
  auto made = LaneReader::create();
  const auto reader = taken_from(made);
  auto mapped = map_shared(reader->fd(), kSmallPage + kLaneBytes, true);
  std::byte* memory = taken_from(mapped).data;
  std::vector<std::byte> record;
  for (int turn = 0; turn < 50; ++turn) {
    const uint64_t choices[] = {random.bits(), uint64_t(random.between(0, 1 << 20)), uint64_t(random.between(0, 64)),
                                kLaneBytes, UINT64_MAX};
    const uint64_t written = choices[random.between(0, 4)];
    __atomic_store_n(reinterpret_cast<uint64_t*>(memory), written, __ATOMIC_RELEASE);
    for (int i = random.between(0, 64); i > 0; --i) {
      const uint64_t value = random.one_in(2) ? random.bits() : uint64_t(random.between(0, 300));
      std::memcpy(memory + kSmallPage + size_t(random.between(0, int(kLaneBytes) / 8 - 1)) * 8, &value, sizeof value);
    }
    for (int i = 0; i < 100; ++i) {
      const Came came = reader->take(record);
      if (came != Came::record) break;
      require(record.size() <= kMostRecordBytes, "a record has bounds");
      if (auto said = announcement_of(record))
        require(said->pages.size() == said->epochs.size() && !said->pages.empty(), "an announcement fits itself");
    }
  }
  auto writer = LaneWriter::attach(reader->fd(), reader->waker_fd());
  const uint64_t taken = random.bits();  // a reader that lies about what he took
  std::memcpy(memory + kLine, &taken, sizeof taken);
  std::memcpy(memory + 2 * kLine, &taken, sizeof taken);
  for (int i = 0; i < 20; ++i) taken_from(writer)->put(record_number(uint64_t(i)));
}

// A writer that hints and puts nothing is looked for a few times, and then no more until it puts a record.
void check_hints() {
  auto made = LaneReader::create();
  const auto reader = taken_from(made);
  auto joined = LaneWriter::attach(reader->fd(), reader->waker_fd());
  const auto writer = taken_from(joined);
  std::vector<std::byte> record;
  int looked = 0;
  for (int i = 0; i < 100; ++i) {
    writer->hint_wake();
    looked += reader->wake_hinted();
    reader->clear_hint();
    require(!reader->wake_hinted(), "a hint is looked for once");
  }
  require(looked > 0 && looked < 50, "vain hints do not count for ever");
  writer->put(record_number(1));
  require(reader->take(record) == Came::record, "what is put there comes all the same");
  writer->hint_wake();
  require(reader->wake_hinted(), "hints count again after a record");
  writer->put(record_number(2));
  require(reader->take(record) == Came::record && !reader->wake_hinted(), "a hint ends with its record");
}

void check_descriptors() {
  auto made = LaneReader::create();
  const auto reader = taken_from(made);
  require(!LaneWriter::attach(reader->fd(), reader->fd()), "a wake pipe is a pipe");
  const int plain = open("/dev/zero", O_RDWR);
  require(!LaneWriter::attach(plain, reader->waker_fd()), "a lane is a sealed memfd");
  close(plain);
}

// What is expected is taken, and no other announcement is: another first page, too many, one that was seen, one twice,
// another end, another buffer.
void check_expected(const Announcement& said, std::shared_ptr<KvMemory> source, std::shared_ptr<KvMemory> own,
                    std::shared_ptr<EpochWords> words, std::vector<int32_t> blocks, int64_t tokens,
                    const Kernels& table) {
  const auto count = static_cast<uint32_t>(said.pages.size());
  const auto each = static_cast<uint32_t>(said.digests.size() / count);
  const KvExpected expected{said.first, said.first + count + !said.last, each, tokens + (said.last ? 0 : 1000), blocks,
                            {},         {{said.buffer, source, words}},  own};
  const bool whole = said.last || tokens == static_cast<int64_t>(count) * source->shape().block_size;
  if (whole) require(take_expected(said, expected, table), "pages that are expected are taken");
  const auto refused = [&](const KvExpected& what, const Announcement& which) {
    require(!take_expected(which, what, table), "others are not");
  };
  KvExpected other = expected;
  other.first += 1, refused(other, said);
  other = expected, other.blocks.pop_back(), refused(other, said);
  other = expected, other.seen = {said.pages[0]}, refused(other, said);
  other = expected, other.pages += 1;
  if (said.last) refused(other, said);
  other = expected, other.digest_bytes += 1, refused(other, said);
  other = expected, other.sources[0].buffer[0] ^= std::byte{1}, refused(other, said);
  Announcement twice = said;
  twice.pages.push_back(twice.pages[0]), twice.epochs.push_back(twice.epochs[0]);
  twice.digests.insert(twice.digests.end(), said.digests.begin(), said.digests.begin() + each);
  other = expected, other.blocks.push_back(-1), other.pages += 1, other.tokens += source->shape().block_size;
  refused(other, twice);
}

// What was announced is found to be so, and nothing else is; a record holds it all, and no other bytes are one.
void check_pages(Random& random) {
  const KvShape shape{random.between(1, 3), random.between(1, 3), 8 * random.between(1, 4),
                      2 * kTileKeys * random.between(1, 2), KvType::bf16};
  const int64_t blocks = random.between(2, 12), count = random.between(1, static_cast<int>(blocks) - 1);
  auto made = KvMemory::pool(shape, blocks, Sharing::readable, {}),
       mine = KvMemory::pool(shape, blocks, Sharing::readable, {});
  auto words = EpochWords::create(blocks);
  KvMemory &source = *taken_from(made), &own = *taken_from(mine);
  for (const KvMemory::Extent& extent : source.extents()) {
    for (int64_t i = 0; i < extent.bytes; ++i) extent.data[i] = static_cast<std::byte>(random.bits());
  }
  for (int64_t i = 0; i < blocks; ++i) taken_from(words)->store(i, random.bits() >> 1);
  const int64_t tokens = count * shape.block_size - random.between(0, shape.block_size - 1);
  std::vector<int32_t> all(static_cast<size_t>(blocks)), to(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  for (int32_t& block : to) block = random.one_in(2) ? -1 : static_cast<int32_t>(&block - to.data());
  Announcement said{random.bits() >> 1, 3, 5, random.one_in(2), {}, {all.begin() + 1, all.begin() + 1 + count}, {}, {}};
  const Kernels& table = kernels(random.of(levels()));
  auto record = announce_pages(said, source, *words.value(), tokens, table);
  std::vector<std::byte> bytes = *taken_from(record);
  const auto heard = announcement_of(bytes);
  require(heard && heard->pages == said.pages && heard->epochs == said.epochs && heard->digests == said.digests &&
              heard->pull_id == said.pull_id && heard->last == said.last,
          "an announcement is heard as it was said");
  const auto good = [&](const Announcement& what) {
    return take_pages(what, source, *words.value(), own, to, tokens, table);
  };
  require(good(*heard), "pages that are what was announced are good");
  check_expected(*heard, made.value(), mine.value(), words.value(), to, tokens, table);
  Announcement wrong = *heard;
  switch (random.between(0, 3)) {
    case 0: wrong.epochs[0] ^= 1; break;
    case 1: wrong.digests[wrong.digests.size() - 1] ^= std::byte{1}; break;
    case 2: wrong.pages[0] = static_cast<int32_t>(blocks); break;
    default: wrong.digests.pop_back();
  }
  require(!good(wrong), "others are not");
  bytes.resize(bytes.size() - 1);
  require(!announcement_of(bytes), "a record that was cut is none");
  for (int i = random.between(1, 8); i > 0; --i)
    bytes[static_cast<size_t>(random.between(0, static_cast<int>(bytes.size()) - 1))] =
        static_cast<std::byte>(random.bits());
  bytes.push_back(std::byte{});
  if (auto other = announcement_of(bytes)) good(*other);  // whatever it says, memory is not touched out of bounds
}

}  // namespace

void check_lane(Random& random) {
  check_way(random);
  check_hostile(random);
  check_hints();
  check_descriptors();
  check_pages(random);
}

}  // namespace homenode::checks
