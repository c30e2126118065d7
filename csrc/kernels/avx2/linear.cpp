// AVX2 with FMA and F16C.
#include "kernels/avx2/vectors.h"

namespace homenode {
namespace {

constexpr bool kWideDotSubtracts128 = true;

// The products of adjacent bytes are summed in 16 bits, with saturation. |codes| are at most 127, so a line adds at
// most 254 * (largest weight): a run of as many lines as stay below 2^15 is summed in 16 bits, then widened.
constexpr int run_lines(int largest_weight) {
  int lines = 8;
  while (lines > 1 && lines * 254 * largest_weight > 32767) lines /= 2;
  return lines;
}
inline Ints begin_run(Ints) { return _mm256_setzero_si256(); }
inline Ints end_run(Ints sum, Ints run) { return _mm256_add_epi32(sum, _mm256_madd_epi16(run, _mm256_set1_epi16(1))); }
inline Ints add_products(Ints run, Ints weights, Ints codes) {
  return _mm256_add_epi16(run, _mm256_maddubs_epi16(weights, codes));
}
// Weights up to 255 would saturate alone. Less 128 they are signed; |weight| times the code with the weight's sign is
// at most 2 * 128 * 127.
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) {
  const Ints value = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
  return add_products(run, _mm256_abs_epi8(value), _mm256_sign_epi8(codes, value));
}

}  // namespace
}  // namespace homenode

#include "kernels/avx2/half_groups_coded.h"
#include "kernels/avx2/half_groups_floats.h"
#include "kernels/avx2/halved.h"
#include "kernels/avx2/pairs.h"
#include "kernels/avx2/panel.h"
#include "linear/tiles.h"

namespace homenode {
namespace {

constexpr LinearTable make_avx2_table() {
  LinearTable table = make_table();
  // On Zen 3 weights asked for less than a page ahead come at the speed of reading, those further ahead at 85 % of it;
  // but where tokens take longer than that, they had better come early.
  table.prefetch_bytes = 2 << 10;
  table.prefetch_bytes_of_four = 6 << 10;
  fill_half_groups<F32Columns>(table.floats[0]);
  fill_half_groups<F16Columns>(table.floats[1]);
  table.floats[2].tile[2] = tile_triple;
  fill_half_groups<Bf16Columns>(table.floats[2]);
  fill_panels(table);
  fill_half_coded(table);
  fill_halved(table);
  return table;
}

}  // namespace

const LinearTable& linear_table_avx2() {
  static constexpr LinearTable table = make_avx2_table();
  return table;
}

}  // namespace homenode
