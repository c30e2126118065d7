#include "host/shared_words.h"

#include <string>

namespace homenode {
namespace {

constexpr int64_t kMostWords = int64_t(1) << 20;

}  // namespace

Result<std::shared_ptr<SharedWords>> SharedWords::map(int fd, int64_t count) {
  if (count < 1 || count > kMostWords)
    return Error{Fault::user, 0, std::to_string(count) + " shared words; wanted 1 to " + std::to_string(kMostWords)};
  auto pages = map_shared(fd, static_cast<size_t>(count) * sizeof(uint64_t), true);
  if (!pages) return pages.error();
  auto words = std::make_shared<SharedWords>();
  words->pages_ = std::move(pages.value());
  words->count_ = count;
  return words;
}

}  // namespace homenode
