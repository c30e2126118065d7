// Activation rows on their way into a matrix product: what linear_prepare leaves in the scratch memory and linear_multiply reads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "kernels/linear.h"
#include "kernels/linear_table.h"

namespace homenode {

const LinearTable& linear_table(Level);

// Is the weight kept in a block format, so that it is multiplied with encoded activations?
bool is_coded(const Weight&);
int64_t parts_of(int64_t columns);

// Activation rows as one weight's kernel wants them.
struct ActivationRows {
  const uint8_t* data;
  size_t stride;
  int64_t part_bytes;  // of 32 columns
  int64_t columns;     // padded to whole parts when encoded
};
ActivationRows rows_for(const LinearArgs&, const Weight&, const LinearTable&);

}  // namespace homenode
