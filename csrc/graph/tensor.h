// Handles of a recorded forward function, and the values they stand for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace homenode {

class Operation;

// How many rows a tensor has: known at each step, or fixed (parameters and constant inputs).
enum class RowKind { tokens, sampled, fixed };

// A piece of memory that phases of a program use, from the first to the last of them; where it lies is decided when all
// phases are known.
struct Memory {
  std::byte* data = nullptr;
  size_t bytes = 0;
  size_t row_bytes = 0;  // where it holds rows of a step: from row to row, else 0
  RowKind rows = RowKind::tokens;
  size_t own_bytes = 0;       // where each thread has a part of its own: from one to the next, else 0
  int first = -1, last = -1;  // phases; -1: no phase uses it
  bool given = false;         // the caller of each step says where it lies
};

// What an operation makes, or a constant: float32 [rows, columns], row-major with `stride` floats from row to row.
struct Value {
  int64_t columns = 0, stride = 0;
  RowKind rows = RowKind::tokens;
  int64_t fixed_rows = 0;
  Memory memory;
  Operation* made_by = nullptr;      // while its program is recorded
  int uses = 0;                      // operations that take it, and one if it is the program's result
  std::shared_ptr<const void> home;  // tells programs apart; null: a constant
  std::shared_ptr<void> owner;       // of a constant's memory

  float* data() const { return reinterpret_cast<float*>(memory.data); }
};

// A handle: some columns of a value.
struct Tensor {
  std::shared_ptr<Value> value;
  int64_t begin = 0, columns = 0;
  RowKind rows = RowKind::tokens;
  int64_t fixed_rows = 0;

  bool whole() const { return columns == value->columns; }
};

// A constant tensor holding a copy of [rows, columns] values.
Result<Tensor> constant(const float* values, int64_t rows, int64_t columns);

// Floats from row to row for a width: whole cache lines, and not a multiple of the page size (rows would fight for the
// same cache sets).
int64_t row_stride(int64_t columns);

// A tensor as phases read and write it.
class View {
 public:
  explicit View(const Tensor& t) : value_(t.value.get()), begin_(t.begin), columns_(t.columns) {}
  float* row(int64_t i) const { return value_->data() + i * value_->stride + begin_; }
  int64_t columns() const { return columns_; }
  bool exists() const { return value_; }
  int64_t stride() const { return value_->stride; }

 private:
  const Value* value_;
  int64_t begin_, columns_;
};

}  // namespace homenode
