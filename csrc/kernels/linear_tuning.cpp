#include "kernels/linear_tuning.h"

#include <algorithm>

namespace homenode {
namespace {

// Measured on one core of an EPYC 9004 that multiplies matrices larger than its caches, GB/s of weights before and after: Q8_0 with 1, 4, 6, 9 and 12
// tokens 25 -> 30, 21 -> 29, 20 -> 28, 12 -> 20, 11 -> 15; Q4_0 with 1, 2, 4 and 5 24 -> 30, 24 -> 30, 18 -> 24, 17 -> 20; BF16 with 1 and 8 26 -> 31,
// 20 -> 27. While nothing but reading takes time, asking disturbs what the processor does by itself; later, what is asked for into the
// nearest cache takes the place of a miss that is due there, where the second-level cache has room for more of them.
LinearTable for_zen4(LinearTable table) {
  table.asks_second = true;
  table.float_slice_bytes = 64 << 10;  // tiles of twelve tokens wait for nothing from the second-level cache, and sums pass through memory less often: 1 to 2 %
  for (int i = 0; i < kCodingCount; ++i) {
    CodedTiles& tiles = table.coded[i];
    tiles.asking_from = 3;
    if (kCodings[i].low_bits == 8) tiles.least_asking = std::min(5, tiles.max_tokens);  // four tokens alone: 24
  }
  for (int i = 0; i < kFloatFormats; ++i) table.floats[i].asking_from = table.floats[i].max_tokens > 6 ? 7 : 3;
  return table;
}

}  // namespace

LinearTable tuned_for(Processor processor, LinearTable table) { return processor == Processor::zen4 ? for_zen4(table) : table; }

}  // namespace homenode
