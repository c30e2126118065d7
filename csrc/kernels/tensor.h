// Handles of a recorded forward function, and the memory behind them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "host/memory.h"

namespace homenode {

// How many rows a tensor has: known at each step, or fixed (parameters and constant inputs).
enum class RowKind { tokens, sampled, fixed };

// Memory for activations. A buffer goes back when the last handle on it goes; operations recorded later may then write to it.
class BufferPool {
 public:
  struct Buffer {
    float* data;
    size_t floats;
    int free_since;  // number of phases recorded when it was given back; -1: never used
  };

  Result<Buffer> take(size_t floats);
  void give_back(Buffer buffer, int phases) { buffer.free_since = phases, free_.push_back(buffer); }
  size_t bytes() const { return bytes_; }

  int phases = 0;  // recorded so far; kept here for handles that outlive the recorder

 private:
  std::vector<Buffer> free_;
  std::vector<std::shared_ptr<void>> owners_;
  size_t bytes_ = 0;
};

// The storage several views share: lent from a pool, or owned (parameters).
class Storage {
 public:
  Storage(std::shared_ptr<BufferPool> pool, BufferPool::Buffer buffer) : pool_(std::move(pool)), buffer_(buffer) {}
  explicit Storage(std::shared_ptr<void> owner) : owner_(std::move(owner)) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    if (pool_) pool_->give_back(buffer_, pool_->phases);
  }
  // Whether operations may write to it.
  bool lent() const { return pool_ != nullptr; }
  const BufferPool* pool() const { return pool_.get(); }
  int free_since() const { return buffer_.free_since; }

 private:
  std::shared_ptr<BufferPool> pool_;
  BufferPool::Buffer buffer_{};
  std::shared_ptr<void> owner_;
};

// float32 [rows, columns], row-major with `stride` floats from row to row. Column views share storage.
struct Tensor {
  std::shared_ptr<Storage> storage;
  float* data = nullptr;
  int64_t columns = 0, stride = 0;
  RowKind rows = RowKind::tokens;
  int64_t fixed_rows = 0;
};

// A constant tensor holding a copy of [rows, columns] values.
Result<Tensor> constant(const float* values, int64_t rows, int64_t columns);

// Floats from row to row for a width: whole cache lines, and not a multiple of the page size (rows would fight for the same cache sets).
int64_t row_stride(int64_t columns);

}  // namespace homenode
