#include "kernels/tensor.h"

#include <cstring>
#include <string>

namespace homenode {

int64_t row_stride(int64_t columns) {
  const int64_t lines = (columns + 15) / 16 * 16;
  return lines % 1024 == 0 ? lines + 16 : lines;
}

Result<BufferPool::Buffer> BufferPool::take(size_t floats) {
  // The smallest that is large enough, and of those the one free for longest: an operation may then follow its predecessor without a barrier.
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->floats < floats) continue;
    if (best == free_.end() || it->floats < best->floats || (it->floats == best->floats && it->free_since < best->free_since)) best = it;
  }
  if (best != free_.end()) {
    const Buffer buffer = *best;
    free_.erase(best);
    return buffer;
  }
  auto pages = allocate_pages(floats * sizeof(float));
  if (!pages) return pages.error();
  owners_.push_back(pages.value().owner);
  bytes_ += pages.value().bytes;
  return Buffer{reinterpret_cast<float*>(pages.value().data), floats, -1};
}

Result<Tensor> constant(const float* values, int64_t rows, int64_t columns) {
  auto pages = allocate_pages(static_cast<size_t>(rows * columns) * sizeof(float));
  if (!pages) return pages.error();
  auto* data = reinterpret_cast<float*>(pages.value().data);
  std::memcpy(data, values, static_cast<size_t>(rows * columns) * sizeof(float));
  return Tensor{std::make_shared<Storage>(pages.value().owner), data, columns, columns, RowKind::fixed, rows};
}

}  // namespace homenode
