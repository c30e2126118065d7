// A table that stays in its file: rows are read and decoded when a step asks for them, so it takes no memory of the
// process, and its pages are the kernel's to keep or to drop.
#pragma once
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "quant/format.h"

namespace homenode {

class StoredTable {
 public:
  // Rows of `columns` elements, one behind the other from byte `offset` of an open file on, which is duplicated. Error
  // for sizes that cannot be, or where the machine refuses.
  static Result<std::shared_ptr<const StoredTable>> open(int fd, int64_t offset, Format, int64_t rows, int64_t columns);
  ~StoredTable();
  StoredTable(const StoredTable&) = delete;
  StoredTable& operator=(const StoredTable&) = delete;

  // The values of a row; NaNs where the file no longer has it. From any thread.
  void read(int64_t row, float* out) const;

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

 private:
  StoredTable(int fd, int64_t offset, Format format, int64_t rows, int64_t columns)
      : fd_(fd), format_(format), offset_(offset), rows_(rows), columns_(columns) {}

  int fd_;
  Format format_;
  int64_t offset_, rows_, columns_;
};

}  // namespace homenode
