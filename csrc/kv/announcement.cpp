#include "kv/announcement.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host/lane.h"
#include "kv/copy.h"

namespace homenode {
namespace {

struct Head {
  uint64_t pull_id, after;
  uint32_t first, count, digest_bytes, last;
  std::array<std::byte, 16> buffer;
};
static_assert(sizeof(Head) == 48);
constexpr uint64_t kMostCount = kMostRecordBytes / (sizeof(int32_t) + sizeof(uint64_t));
constexpr uint32_t kMostFirst = 1u << 31;

template <class T>
std::byte* put(std::byte* to, const std::vector<T>& values) {
  std::memcpy(to, values.data(), values.size() * sizeof(T));
  return to + values.size() * sizeof(T);
}

template <class T>
const std::byte* get(std::vector<T>& values, const std::byte* from, size_t count) {
  values.resize(count);
  std::memcpy(values.data(), from, count * sizeof(T));
  return from + count * sizeof(T);
}

// What take_pages is given.
struct Taking {
  const Announcement& announcement;
  const KvMemory& source;
  const EpochWords& words;
  KvMemory& own;
  std::span<const int32_t> blocks;
  int64_t tokens;
};

// Pages begin .. end - 1 of an announcement, all to be copied or none of them.
bool take_some(const Taking& taking, size_t begin, size_t end, const Kernels& kernels) {
  const Announcement& announcement = taking.announcement;
  const KvShape& shape = taking.source.shape();
  const int64_t size = shape.block_size, count = static_cast<int64_t>(end - begin);
  const int64_t left = taking.tokens - static_cast<int64_t>(begin) * size;
  const KvPages pages{.memory = &taking.source,
                      .table = std::span(announcement.pages).subspan(begin, end - begin),
                      .first = 0,
                      .count = count,
                      .tokens = std::min(left, count * size),
                      .page_tokens = size,
                      .first_head = 0,
                      .past_head = shape.kv_heads};
  const KvTarget target{.memory = &taking.own, .table = taking.blocks.subspan(begin, end - begin), .first_head = 0};
  const KvEpochs epochs{.words = &taking.words, .expected = std::span(announcement.epochs).subspan(begin, end - begin)};
  auto found = copy_pages(pages, taking.blocks[begin] < 0 ? nullptr : &target, &epochs, kernels, 1);
  if (!found || !found.value()) return false;
  const KvDigests& digests = *found.value();
  const size_t each = announcement.digests.size() / announcement.pages.size(), bytes = (end - begin) * each;
  return digests.size() * sizeof(uint64_t) == bytes &&
         !std::memcmp(digests.data(), announcement.digests.data() + begin * each, bytes);
}

}  // namespace

std::optional<std::vector<std::byte>> record_of(const Announcement& announcement) {
  const size_t count = announcement.pages.size();
  const size_t bytes = sizeof(Head) + count * (sizeof(int32_t) + sizeof(uint64_t)) + announcement.digests.size();
  if (!count || count != announcement.epochs.size() || announcement.digests.size() % count || bytes > kMostRecordBytes)
    return std::nullopt;
  const Head head{announcement.pull_id,
                  announcement.after,
                  announcement.first,
                  static_cast<uint32_t>(count),
                  static_cast<uint32_t>(announcement.digests.size() / count),
                  announcement.last,
                  announcement.buffer};
  std::vector<std::byte> record(bytes);
  std::memcpy(record.data(), &head, sizeof head);
  put(put(put(record.data() + sizeof head, announcement.epochs), announcement.pages), announcement.digests);
  return record;
}

std::optional<Announcement> announcement_of(std::span<const std::byte> record) {
  Head head;
  if (record.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, record.data(), sizeof head);
  const uint64_t count = head.count, digests = count * head.digest_bytes;
  if (!count || count > kMostCount || head.last > 1 || head.first >= kMostFirst || head.pull_id >> 63)
    return std::nullopt;
  if (head.digest_bytes > kMostRecordBytes ||
      record.size() != sizeof head + count * (sizeof(int32_t) + sizeof(uint64_t)) + digests)
    return std::nullopt;
  Announcement announcement{head.pull_id, head.after, head.first, head.last == 1, head.buffer, {}, {}, {}};
  get(announcement.digests,
      get(announcement.pages, get(announcement.epochs, record.data() + sizeof head, count), count), digests);
  for (const int32_t page : announcement.pages) {
    if (page < 0) return std::nullopt;
  }
  for (const uint64_t epoch : announcement.epochs) {
    if (epoch >> 63) return std::nullopt;
  }
  return announcement;
}

Result<std::optional<std::vector<std::byte>>> announce_pages(Announcement& announcement, const KvMemory& memory,
                                                             const EpochWords& words, int64_t tokens,
                                                             const Kernels& kernels) {
  const int64_t size = memory.shape().block_size, count = static_cast<int64_t>(announcement.pages.size());
  for (const int32_t page : announcement.pages) {
    if (page < 0 || page >= std::min(memory.blocks(), words.count())) {
      return Error{Fault::user, 0,
                   "page " + std::to_string(page) + " of " + std::to_string(memory.blocks()) + " cannot be announced"};
    }
    announcement.epochs.push_back(words.load(page));
  }
  auto found = copy_pages({&memory, announcement.pages, 0, count, tokens, size, 0, memory.shape().kv_heads}, nullptr,
                          nullptr, kernels, 1);
  if (!found) return found.error();
  get(announcement.digests, reinterpret_cast<const std::byte*>(found.value()->data()),
      found.value()->size() * sizeof(uint64_t));
  return record_of(announcement);
}

bool take_pages(const Announcement& announcement, const KvMemory& source, const EpochWords& words, KvMemory& own,
                std::span<const int32_t> blocks, int64_t tokens, const Kernels& kernels) {
  const size_t count = announcement.pages.size();
  if (blocks.size() != count || source.shape().block_size != own.shape().block_size) return false;
  const Taking taking{announcement, source, words, own, blocks, tokens};
  for (size_t begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && (blocks[end] < 0) == (blocks[begin] < 0);) ++end;
    if (!take_some(taking, begin, end, kernels)) return false;
  }
  return true;
}

Announcement KvExpected::rehearsal(uint64_t pull_id) const {
  const size_t count = std::max<size_t>(1, std::min<size_t>(blocks.size(), pages - std::min(pages, first)));
  Announcement announcement{pull_id,
                            0,
                            kMostFirst,
                            true,
                            {},
                            std::vector<int32_t>(count),
                            std::vector<uint64_t>(count),
                            std::vector<std::byte>(count * digest_bytes)};
  if (!sources.empty()) announcement.buffer = sources.front().buffer;
  return announcement;
}

const KvExpected::Source* KvExpected::source_of(const Announcement& announcement) const {
  const size_t count = announcement.pages.size();
  if (announcement.first != first || count > blocks.size() || announcement.last != (first + count == pages) ||
      announcement.digests.size() != count * digest_bytes)
    return nullptr;
  std::vector<int32_t> sorted = announcement.pages;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return nullptr;
  for (const int32_t page : announcement.pages) {
    if (std::binary_search(seen.begin(), seen.end(), page)) return nullptr;
  }
  const auto found = std::find_if(sources.begin(), sources.end(),
                                  [&](const Source& one) { return one.buffer == announcement.buffer; });
  return found == sources.end() ? nullptr : &*found;
}

bool take_expected(const Announcement& announcement, const KvExpected& expected, const Kernels& kernels) {
  const KvExpected::Source* source = expected.source_of(announcement);
  if (!source) return false;
  const int64_t count = static_cast<int64_t>(announcement.pages.size());
  const int64_t tokens = std::min(expected.tokens, count * source->memory->shape().block_size);
  return take_pages(announcement, *source->memory, *source->words, *expected.own,
                    std::span(expected.blocks).first(announcement.pages.size()), tokens, kernels);
}

}  // namespace homenode
