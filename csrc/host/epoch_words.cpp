#include "host/epoch_words.h"

#include <string>

namespace homenode {
namespace {

Result<size_t> bytes_of(int64_t count) {
  if (count < 1 || count > INT32_MAX)
    return Error{Fault::user, 0, std::to_string(count) + " epoch words; wanted 1 to 2^31 - 1"};
  return static_cast<size_t>(count) * sizeof(uint64_t);
}

}  // namespace

Result<std::shared_ptr<EpochWords>> EpochWords::create(int64_t count) {
  auto bytes = bytes_of(count);
  if (!bytes) return bytes.error();
  auto file = create_shared(bytes.value(), "homenode KV epochs", Sharing::readable);
  if (!file) return file.error();
  if (auto error = populate(file.value().pages)) return std::move(*error);
  auto words = std::make_shared<EpochWords>();
  words->count_ = count;
  words->file_ = std::move(file.value());
  return words;
}

Result<std::shared_ptr<EpochWords>> EpochWords::map(int fd, int64_t count) {
  auto bytes = bytes_of(count);
  if (!bytes) return bytes.error();
  auto pages = map_shared(fd, bytes.value(), false);
  if (!pages) return pages.error();
  auto words = std::make_shared<EpochWords>();
  words->count_ = count;
  words->file_.pages = std::move(pages.value());
  return words;
}

void EpochWords::store(int64_t i, uint64_t epoch) {
  fence_stores();  // what was written before belongs to the former number
  __atomic_store_n(words() + i, epoch, __ATOMIC_SEQ_CST);
  fence_stores();
}

}  // namespace homenode
