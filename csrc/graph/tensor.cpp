#include "graph/tensor.h"

#include <cstring>

#include "host/memory.h"

namespace homenode {

int64_t row_stride(int64_t columns) {
  const int64_t lines = (columns + 15) / 16 * 16;
  return lines % 1024 == 0 ? lines + 16 : lines;
}

Result<Tensor> constant(const float* values, int64_t rows, int64_t columns) {
  const size_t bytes = static_cast<size_t>(rows * columns) * sizeof(float);
  auto pages = allocate_pages(bytes);
  if (!pages) return pages.error();
  std::memcpy(pages.value().data, values, bytes);
  auto value = std::make_shared<Value>();
  value->columns = value->stride = columns;
  value->rows = RowKind::fixed;
  value->fixed_rows = rows;
  value->memory.data = pages.value().data;
  value->memory.bytes = bytes;
  value->owner = pages.value().owner;
  return Tensor{value, 0, columns, RowKind::fixed, rows};
}

}  // namespace homenode
