#include "quant/block.h"

#include <algorithm>

#include "quant/half.h"
#include "quant/split.h"

namespace homenode {

const Coding* coding_of(Format format) {
  const Coding* end = kCodings + kCodingCount;
  const Coding* found = std::find_if(kCodings, end, [format](const Coding& c) { return c.format == format; });
  return found == end ? nullptr : found;
}

void split_block(Format format, const uint8_t* source, RowBlock& b) { split::block(format, source, b); }

void block_values(const Coding& c, const RowBlock& b, float* out, int columns) {
  const float d = c.scale_bf16 ? bf16_to_float(b.d) : half_to_float(b.d), minimum = half_to_float(b.minimum);
  const int columns_per_scale = c.scales == 2 ? 16 : 32;
  for (int i = 0; i < columns; ++i) {
    const int j = i / columns_per_scale;
    const float scale = c.scales ? d * float(b.s[j]) : d;
    const int value = c.table == Table::none ? b.codes[i] - c.zero : kTables[int(c.table) - 1][b.codes[i]];
    out[i] = scale * float(value);
    if (c.minimum == Minimum::added) out[i] += minimum;
    if (c.minimum == Minimum::subtracted || c.minimum == Minimum::paired) out[i] -= minimum * float(b.m[j]);
  }
}

}  // namespace homenode
