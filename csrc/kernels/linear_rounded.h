// Activation rows as bfloat16, for the levels that multiply BF16 matrices so (LinearTable::round).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"
#include "kernels/linear_table.h"

namespace homenode {

// Does this level want the rounded rows for this weight?
bool takes_rounded(const LinearTable&, const Weight&);
bool any_takes_rounded(const LinearTable&, const LinearArgs&);

// Bytes from row to row, and of all rows at the level that wants them most.
size_t rounded_row_bytes(int64_t columns);
size_t rounded_bytes(int64_t tokens, int64_t columns, const Weight* const* weights, int count);

// One thread's share of the rows, into `out`.
void round_share(const LinearArgs&, const LinearTable&, uint8_t* out, int thread, int threads);

}  // namespace homenode
