// Activation rows on their way into a matrix product: what linear_prepare leaves in the scratch memory and
// linear_multiply reads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "linear/linear.h"
#include "linear/table.h"

namespace homenode {

const LinearTable& linear_table(Level);

// Is the weight kept in a block format, so that it is multiplied with encoded activations?
bool is_coded(const Weight&);
int64_t parts_of(int64_t columns);

// Does the level multiply this weight with rounded activations?
bool takes_rounded(const LinearTable&, const Weight&);

// The forms in which the weights of a product want its rows at a level.
struct RowForms {
  bool encoded = false, rounded = false, floats = false;
};
RowForms forms_of(const LinearArgs&, const LinearTable&);

// The rows of a product in these forms; null where a form is not wanted.
struct PreparedRows {
  EncodedPart* encoded = nullptr;  // [tokens, encoded_stride]
  int64_t encoded_stride = 0;
  uint16_t* rounded = nullptr;     // [tokens, rounded_stride]
  int64_t rounded_stride = 0;
  uint16_t* rest = nullptr;        // the same, what that rounding left: of fine products
  float* floats = nullptr;         // [tokens, float_stride]
  int64_t float_stride = 0;
};
// As they lie in the product's scratch memory. Rows that are multiplied as they are, are x itself and not among them.
PreparedRows prepared_rows(const LinearArgs&, const LinearTable&);

// Puts `count` columns of a row, from `column` on, into their places. `column` is a multiple of 32, and so is `count`
// but for the end of a row.
void store_columns(const PreparedRows&, const LinearTable&, int64_t token, int64_t column, const float* values,
                   int64_t count);
// Puts `count` columns of tokens first .. first + n - 1 into their places, which are as for store_columns; `values` is
// [columns / 32, n, 32].
void store_parts(const PreparedRows&, const LinearTable&, int64_t first, int64_t n, int64_t column, const float* values,
                 int64_t count);

// Activation rows as one weight's kernel wants them.
struct ActivationRows {
  const uint8_t* data;
  size_t stride;
  int64_t part_bytes;  // of 32 columns
  int64_t columns;     // padded to whole parts when encoded
  int64_t readable;    // rows there is memory for, whether they hold anything or not
  int64_t rest = 0;    // bytes from a row to what its rounding left; 0: that is not multiplied
};
ActivationRows rows_for(const LinearArgs&, const Weight&, const LinearTable&);

}  // namespace homenode
