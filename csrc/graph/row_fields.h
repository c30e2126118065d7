// What a row operation says of itself, in fields.
//
// Such an operation makes each row of its result from the same row of its inputs, and is a struct of named fields:
//
//   struct Clamp {
//     static constexpr const char *kName = "clamp", *kPhase = "clamp";
//     Tensor x;
//     float limit = 0;
//     static constexpr auto fields() { return std::tuple(Field("x", &Clamp::x), Field("limit", &Clamp::limit)); }
//     std::string problem() const;
//     void compute(const RowPiece&) const;
//   };
//
// From it follow the call that records it with its checks (Recorder::rows), the method of the Python class with the
// names and defaults of the fields (bind/row_operations.h), and the phase of the program. The type of a field says
// what is checked of it: a Tensor and a RowsOrVector is there, and its rows are selected where those of the others are;
// a Vector is a parameter of one row. `problem`, if it is there, says what is wrong with shapes and numbers ("" if
// nothing is).
//
// The result is as wide as x, unless there is `columns`. Threads divide the rows; with `piece` they divide pieces of
// rows of so many columns, so that one token's row is work for all of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

#include "base/fields.h"
#include "graph/step.h"
#include "graph/tensor.h"
#include "kernels/kernels.h"

namespace homenode {

// A parameter that is a vector.
struct Vector {
  Tensor tensor;

  const float* data() const { return View(tensor).row(0); }
  int64_t columns() const { return tensor.columns; }
};

// Rows, or a parameter that is a vector and stands for every row.
struct RowsOrVector {
  Tensor tensor;
};

// A number, or a parameter that is a vector of one.
struct Number {
  std::variant<float, Tensor> given = 0.0f;

  float value() const {
    const auto* tensor = std::get_if<Tensor>(&given);
    return tensor ? View(*tensor).row(0)[0] : std::get<float>(given);
  }
};

// Columns begin .. begin + count of a row of a step; all of them where there is no `piece`.
struct RowPiece {
  const Step& step;
  const Kernels& kernels;  // of the program's level
  int64_t row, begin, count;
  float* out;  // the whole row of the result
};

inline bool is_vector(const Tensor& x) { return x.value && x.rows == RowKind::fixed && x.fixed_rows == 1; }

inline const float* row_of(const Tensor& x, int64_t row) { return View(x).row(is_vector(x) ? 0 : row); }

}  // namespace homenode
