// AVX2 with AVX-VNNI: the integer dot product of AVX-512 VNNI in registers half as wide (client processors since Alder
// Lake, and Zen 5).
#include "kernels/avx2/vectors.h"

namespace homenode {
namespace {

constexpr int kPanelTokens = 2;
constexpr bool kWideDotSubtracts128 = false;

// Unsigned bytes times signed bytes, summed in fours: exact for all values, so a run is the sum itself.
constexpr int run_lines(int) { return 8; }
inline Ints begin_run(Ints sum) { return sum; }
inline Ints end_run(Ints, Ints run) { return run; }
inline Ints add_products(Ints run, Ints weights, Ints codes) { return _mm256_dpbusd_avx_epi32(run, weights, codes); }
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) {
  return _mm256_dpbusd_avx_epi32(run, weights, codes);
}

}  // namespace
}  // namespace homenode

#include "linear/panel.h"
#include "linear/tiles.h"

namespace homenode {
namespace {

// With sixteen registers, tiles of panels are of two tokens only. Measured on Zen 5 with 96 tokens, the formats with
// two scales a part gain from them (Q6_K a third); Q8_0 lost by them, and so did Q4_0 and Q4_K unpacked to bytes.
constexpr LinearTable make_avx2vnni_table() {
  LinearTable table = with_panels(make_table());
  for (int i = 0; i < kCodingCount; ++i) {
    if (kCodings[i].scales != 2) table.panels[i] = {};
  }
  return table;
}

}  // namespace

const LinearTable& linear_table_avx2vnni() {
  static constexpr LinearTable table = make_avx2vnni_table();
  return table;
}

}  // namespace homenode
