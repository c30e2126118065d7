#include "weights/stored_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <vector>

namespace homenode {

Result<std::shared_ptr<const StoredTable>> StoredTable::open(int fd, int64_t offset, Format format, int64_t rows,
                                                             int64_t columns) {
  int64_t bytes, end;
  if (offset < 0 || rows < 1 || columns < 1 || !file_block(format).bytes || columns > int64_t(1) << 31 ||
      __builtin_mul_overflow(rows, file_row_bytes(format, columns), &bytes) ||
      __builtin_add_overflow(offset, bytes, &end)) {
    return Error{Fault::user, 0,
                 "a table in a file: " + std::to_string(rows) + " rows of " + std::to_string(columns) + " " +
                     format_name(format) + " from byte " + std::to_string(offset) + " on cannot be read"};
  }
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return Error{Fault::host, errno, "fcntl of a table's file"};
  return std::shared_ptr<const StoredTable>(new StoredTable(own, offset, format, rows, columns));
}

StoredTable::~StoredTable() { close(fd_); }

void StoredTable::read(int64_t row, float* out) const {
  thread_local std::vector<uint8_t> stored;
  const auto bytes = static_cast<size_t>(file_row_bytes(format_, columns_));
  stored.resize(std::max(stored.size(), bytes));
  const int64_t from = offset_ + row * static_cast<int64_t>(bytes);
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = pread(fd_, stored.data() + done, bytes - done, from + static_cast<int64_t>(done));
    if (count > 0) done += static_cast<size_t>(count);
    else if (count == 0 || errno != EINTR)
      return void(std::fill_n(out, columns_, std::numeric_limits<float>::quiet_NaN()));
  }
  decode_row(format_, stored.data(), out, columns_);
}

}  // namespace homenode
