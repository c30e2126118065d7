#include "linear/tuning.h"

#include <algorithm>

namespace homenode {
namespace {

// One thread of an EPYC 9004, `homenode bench kernels --threads 1 --shapes 1024x4096 --repeat 1` in turns with the
// version before, GB/s of weights before and after:
//   Q8_0 with 1, 4, 6, 9 and 12 tokens   25 -> 31, 22 -> 32, 20 -> 28, 12 -> 19, 10 -> 15
//   Q4_0 with 1, 2, 4 and 6              24 -> 31, 23 -> 29, 18 -> 23, 15 -> 16
//   BF16 with 1, 8 and 9                 28 -> 32, 21 -> 26, 19 -> 24
// While nothing but reading takes time, asking disturbs what the processor does by itself; later, what is asked for
// into the nearest cache takes the place of a miss that is due there, where the second-level cache has room for more of
// them.
LinearTable for_zen4(LinearTable table) {
  table.prefetch_into_l2 = true;
  // Tiles of twelve tokens wait for nothing from the second-level cache, and sums pass through memory less often: 1 to
  // 2 %
  table.float_slice_bytes = 64 << 10;
  for (int i = 0; i < kCodingCount; ++i) {
    CodedTiles& tiles = table.coded[i];
    tiles.prefetch_from_tokens = 3;
    if (kCodings[i].low_bits == 8) tiles.min_prefetch_tile = std::min(5, tiles.max_tokens);  // four tokens alone: 24
  }
  for (int i = 0; i < kFloatFormats; ++i) table.floats[i].prefetch_from_tokens = table.floats[i].max_tokens > 6 ? 7 : 3;
  return table;
}

}  // namespace

LinearTable tuned_for(Processor processor, LinearTable table) {
  return processor == Processor::zen4 ? for_zen4(table) : table;
}

}  // namespace homenode
