#include "kernels/kv_announcement.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host/lane.h"
#include "kernels/kv_copy.h"

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

// Pages begin .. end - 1 of an announcement, all to be copied or none; tokens: of all its pages.
bool take_some(const Announcement& said, size_t begin, size_t end, const KvMemory& source, const EpochWords& words, KvMemory& own,
               std::span<const int32_t> blocks, int64_t tokens, const Kernels& kernels) {
  const int64_t size = source.shape().block_size, count = static_cast<int64_t>(end - begin);
  const int64_t left = tokens - static_cast<int64_t>(begin) * size;
  const KvPages pages{&source, std::span(said.pages).subspan(begin, end - begin), 0, count, std::min(left, count * size), size, 0, source.shape().kv_heads};
  const KvTarget target{&own, blocks.subspan(begin, end - begin), 0};
  const KvEpochs epochs{&words, std::span(said.epochs).subspan(begin, end - begin)};
  auto found = copy_pages(pages, blocks[begin] < 0 ? nullptr : &target, &epochs, kernels, 1);
  if (!found || !found.value()) return false;
  const KvDigests& digests = *found.value();
  const size_t each = said.digests.size() / said.pages.size(), bytes = (end - begin) * each;
  return digests.size() * sizeof(uint64_t) == bytes && !std::memcmp(digests.data(), said.digests.data() + begin * each, bytes);
}

}  // namespace

std::optional<std::vector<std::byte>> record_of(const Announcement& said) {
  const size_t count = said.pages.size();
  const size_t bytes = sizeof(Head) + count * (sizeof(int32_t) + sizeof(uint64_t)) + said.digests.size();
  if (!count || count != said.epochs.size() || said.digests.size() % count || bytes > kMostRecordBytes) return std::nullopt;
  const Head head{said.pull_id, said.after, said.first, static_cast<uint32_t>(count), static_cast<uint32_t>(said.digests.size() / count), said.last, said.buffer};
  std::vector<std::byte> record(bytes);
  std::memcpy(record.data(), &head, sizeof head);
  put(put(put(record.data() + sizeof head, said.epochs), said.pages), said.digests);
  return record;
}

std::optional<Announcement> announcement_of(std::span<const std::byte> record) {
  Head head;
  if (record.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, record.data(), sizeof head);
  const uint64_t count = head.count, digests = count * head.digest_bytes;
  if (!count || count > kMostCount || head.last > 1 || head.first >= kMostFirst || head.pull_id >> 63) return std::nullopt;
  if (head.digest_bytes > kMostRecordBytes || record.size() != sizeof head + count * (sizeof(int32_t) + sizeof(uint64_t)) + digests) return std::nullopt;
  Announcement said{head.pull_id, head.after, head.first, head.last == 1, head.buffer, {}, {}, {}};
  get(said.digests, get(said.pages, get(said.epochs, record.data() + sizeof head, count), count), digests);
  for (const int32_t page : said.pages) {
    if (page < 0) return std::nullopt;
  }
  for (const uint64_t epoch : said.epochs) {
    if (epoch >> 63) return std::nullopt;
  }
  return said;
}

Result<std::optional<std::vector<std::byte>>> announce_pages(Announcement& said, const KvMemory& memory, const EpochWords& words, int64_t tokens,
                                                            const Kernels& kernels) {
  const int64_t size = memory.shape().block_size, count = static_cast<int64_t>(said.pages.size());
  for (const int32_t page : said.pages) {
    if (page < 0 || page >= std::min(memory.blocks(), words.count())) {
      return Error{Fault::user, 0, "page " + std::to_string(page) + " of " + std::to_string(memory.blocks()) + " cannot be announced"};
    }
    said.epochs.push_back(words.load(page));
  }
  auto found = copy_pages({&memory, said.pages, 0, count, tokens, size, 0, memory.shape().kv_heads}, nullptr, nullptr, kernels, 1);
  if (!found) return found.error();
  get(said.digests, reinterpret_cast<const std::byte*>(found.value()->data()), found.value()->size() * sizeof(uint64_t));
  return record_of(said);
}

bool take_pages(const Announcement& said, const KvMemory& source, const EpochWords& words, KvMemory& own, std::span<const int32_t> blocks, int64_t tokens,
                const Kernels& kernels) {
  const size_t count = said.pages.size();
  if (blocks.size() != count || source.shape().block_size != own.shape().block_size) return false;
  for (size_t begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && (blocks[end] < 0) == (blocks[begin] < 0);) ++end;
    if (!take_some(said, begin, end, source, words, own, blocks, tokens, kernels)) return false;
  }
  return true;
}

Announcement KvExpected::rehearsal(uint64_t pull_id) const {
  const size_t count = std::max<size_t>(1, std::min<size_t>(blocks.size(), pages - std::min(pages, first)));
  Announcement said{pull_id, 0, kMostFirst, true, {}, std::vector<int32_t>(count), std::vector<uint64_t>(count), std::vector<std::byte>(count * digest_bytes)};
  if (!sources.empty()) said.buffer = sources.front().buffer;
  return said;
}

const KvExpected::Source* KvExpected::source_of(const Announcement& said) const {
  const size_t count = said.pages.size();
  if (said.first != first || count > blocks.size() || said.last != (first + count == pages) || said.digests.size() != count * digest_bytes) return nullptr;
  std::vector<int32_t> sorted = said.pages;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return nullptr;
  for (const int32_t page : said.pages) {
    if (std::binary_search(seen.begin(), seen.end(), page)) return nullptr;
  }
  const auto found = std::find_if(sources.begin(), sources.end(), [&](const Source& one) { return one.buffer == said.buffer; });
  return found == sources.end() ? nullptr : &*found;
}

bool take_expected(const Announcement& said, const KvExpected& expected, const Kernels& kernels) {
  const KvExpected::Source* source = expected.source_of(said);
  if (!source) return false;
  const int64_t count = static_cast<int64_t>(said.pages.size());
  const int64_t tokens = std::min(expected.tokens, count * source->memory->shape().block_size);
  return take_pages(said, *source->memory, *source->words, *expected.own, std::span(expected.blocks).first(said.pages.size()), tokens, kernels);
}

}  // namespace homenode
