// Operations that most decoders have besides products, attention and row operations: rows of tables, norms, rope,
// gates.
#pragma once
#include <memory>
#include <vector>

#include "graph/operation.h"
#include "linear/linear.h"
#include "weights/stored_table.h"

namespace homenode {

class LinearOperation;

class EmbeddingOperation : public Operation {
 public:
  EmbeddingOperation(std::shared_ptr<const Weight> from, int64_t first_row, Tensor to)
      : table(std::move(from)), first(first_row), out(std::move(to)) {}
  void lower(Lowering&) override;

  std::shared_ptr<const Weight> table;
  int64_t first;  // id of its first row; ids that are not in it give zeros
  Tensor out;
};

// Rows first + position of a table.
class PositionRowsOperation : public Operation {
 public:
  PositionRowsOperation(std::shared_ptr<const Weight> from, int64_t first_row, Tensor to)
      : table(std::move(from)), first(first_row), out(std::move(to)) {}
  void lower(Lowering&) override;

  std::shared_ptr<const Weight> table;
  int64_t first;
  Tensor out;
};

// Rows of a table by the types of the step's tokens.
class TypeRowsOperation : public Operation {
 public:
  TypeRowsOperation(std::shared_ptr<const Weight> from, Tensor to) : table(std::move(from)), out(std::move(to)) {}
  void lower(Lowering&) override;

  std::shared_ptr<const Weight> table;
  Tensor out;
};

class StoredRowsOperation : public Operation {
 public:
  StoredRowsOperation(std::shared_ptr<const StoredTable> from, int row_past_it, Tensor to)
      : table(std::move(from)), otherwise(row_past_it), out(std::move(to)) {}
  void lower(Lowering&) override;

  std::shared_ptr<const StoredTable> table;
  int otherwise;  // the row of ids past it
  Tensor out;
};

// Writes columns of rows that a step brings into x, or adds them to it, which is its result as well: nobody takes over
// what made x.
class PlaceRowsOperation : public Operation {
 public:
  PlaceRowsOperation(Tensor in, int64_t column, bool adding) : x(std::move(in)), first(column), adds(adding) {}
  void lower(Lowering&) override;

  Tensor x;
  int64_t first;  // of the columns of the brought rows
  bool adds;
};

class RmsNormOperation : public Operation {
 public:
  RmsNormOperation(Tensor from, Tensor by, float epsilon, Tensor to)
      : x(std::move(from)), weight(std::move(by)), eps(epsilon), out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor x, weight;
  float eps;
  Tensor out;
};

class SelectOperation : public Operation {
 public:
  SelectOperation(Tensor from, Tensor to) : x(std::move(from)), out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor x, out;
};

// If a selection of rows made x for its one reader, x becomes what they are selected of, and the reader picks them.
inline bool take_selection(Tensor& x) {
  auto* select = maker_of<SelectOperation>(x);
  if (!select) return false;
  select->fused = true;
  x = select->x;
  return true;
}

class RopeAnglesOperation : public Operation {
 public:
  RopeAnglesOperation(std::vector<float> by, float times, int positions_behind, std::vector<int> of_axes, Tensor to)
      : frequencies(std::move(by)),
        axes(std::move(of_axes)),
        scale(times),
        behind(positions_behind),
        out(std::move(to)) {}
  void lower(Lowering&) override;

  std::vector<float> frequencies;
  std::vector<int> axes;  // of each frequency, by which of the step's rope positions it turns; empty: by positions
  float scale;
  int behind;
  Tensor out;
};

class RopeOperation : public Operation {
 public:
  // adjacent: pairs that turn are neighbours in x, and halves apart in the result.
  RopeOperation(Tensor from, Tensor by, int head, bool adjacent_pairs, Tensor to)
      : x(std::move(from)), angles(std::move(by)), head_dim(head), adjacent(adjacent_pairs), out(std::move(to)) {}
  void lower(Lowering&) override;

  Tensor x, angles;
  int head_dim;
  bool adjacent;
  Tensor out;
};

// gated(gate) * up. Takes over the product that makes both halves, so that they never go through memory.
class GateOperation : public Operation {
 public:
  // factor: what is multiplied with, where `from` is the gate alone; an empty handle where it is in its right half.
  GateOperation(Tensor from, Tensor factor, Activation how, Tensor to)
      : gate_up(std::move(from)), up(std::move(factor)), gate(how), out(std::move(to)) {}
  void fuse_producers() override;
  void lower(Lowering&) override;

  // Asked by the one product that takes the result, before anything is lowered: true if this writes the product's
  // prepared rows instead.
  bool fill(LinearOperation* reader);

  Tensor gate_up, up;
  Activation gate;
  Tensor out;

 private:
  LinearOperation* product_ = nullptr;
  LinearOperation* reader_ = nullptr;
};

// The activation of x alone. Takes over the product that makes it, so that it is done where the sums are.
class ActivateOperation : public Operation {
 public:
  ActivateOperation(Tensor from, Activation by, Tensor to) : x(std::move(from)), how(by), out(std::move(to)) {}
  void fuse_producers() override;
  void lower(Lowering&) override;

  Tensor x;
  Activation how;
  Tensor out;

 private:
  LinearOperation* product_ = nullptr;
};

// x + y. Takes over the norm that makes y, and the selection of x's rows.
class AddOperation : public Operation {
 public:
  AddOperation(Tensor to, Tensor from, Tensor sum) : x(std::move(to)), y(std::move(from)), out(std::move(sum)) {}
  void fuse_producers() override;
  void lower(Lowering&) override;

  Tensor x, y, out;

 private:
  bool selected_ = false;  // x is what rows are selected of
  RmsNormOperation* norm_ = nullptr;
};

}  // namespace homenode
