// The portable level: four lanes of the compiler's own vectors, which become SSE2 or NEON. For correctness everywhere,
// not for speed.
#include <cmath>
#include <cstring>

#include "quant/coding.h"
#include "quant/half.h"

namespace homenode {
namespace {

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kFloatTokens = 1, kPairTokens = 1, kCodedTokens = 1;
constexpr bool kWideDotSubtracts128 = false;

template <class T>
inline T load(const void* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline Floats zero_floats() { return Floats{}; }
inline Floats load_floats(const float* p) { return load<Floats>(p); }
inline void store_floats(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }
inline Floats add(Floats a, Floats b) { return a + b; }
inline Floats subtract(Floats a, Floats b) { return a - b; }
inline Floats multiply(Floats a, Floats b) { return a * b; }
inline Floats fma(Floats a, Floats b, Floats c) {
  for (int i = 0; i < kLanes; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}
inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Ints round_to_ints(Floats x) {
  Ints out{};
  for (int i = 0; i < kLanes; ++i) out[i] = int32_t(std::lrint(x[i]));
  return out;
}
inline Floats as_floats(Ints x) { return Floats(x); }
inline Ints as_ints(Floats x) { return Ints(x); }
inline Floats load_halves(const uint8_t* p) {
  Floats out{};
  for (int i = 0; i < kLanes; ++i) out[i] = half_to_float(load<uint16_t>(p + 2 * i));
  return out;
}
inline Floats broadcast_float(const void* p) { return Floats{} + load<float>(p); }

inline Ints zero_ints() { return Ints{}; }
inline Ints broadcast_int(int32_t x) { return Ints{x, x, x, x}; }
inline Ints broadcast_bytes4(const void* p) { return broadcast_int(load<int32_t>(p)); }
inline Ints load_bytes(const uint8_t* p) { return load<Ints>(p); }
inline Ints load_codes(const uint8_t* p) { return load_bytes(p); }
inline Ints load_signed8(const uint8_t* p) { return Ints{int8_t(p[0]), int8_t(p[1]), int8_t(p[2]), int8_t(p[3])}; }
inline Ints load_unsigned8(const uint8_t* p) { return Ints{p[0], p[1], p[2], p[3]}; }
inline Ints load_unsigned16(const uint8_t* p) {
  Ints out{};
  for (int i = 0; i < kLanes; ++i) out[i] = load<uint16_t>(p + 2 * i);
  return out;
}
inline void store_signed8(int8_t* p, Ints x) {
  for (int i = 0; i < kLanes; ++i) p[i] = int8_t(x[i]);
}
inline Ints add_ints(Ints a, Ints b) { return a + b; }
inline Ints larger_ints(Ints a, Ints b) { return a > b ? a : b; }
inline int32_t largest_lane(Ints x) {
  const int32_t a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
inline int32_t sum_lanes(Ints x) { return x[0] + x[1] + x[2] + x[3]; }
inline Ints bit_and(Ints a, Ints b) { return a & b; }
inline Ints bit_or(Ints a, Ints b) { return a | b; }
template <int N>
inline Ints shift_left32(Ints x) { return Ints(Words(x) << N); }
template <int N>
inline Ints shift_left16(Ints x) { return Ints(Halves(x) << N); }
template <int N>
inline Ints shift_right16(Ints x) { return Ints(Halves(x) >> N); }

constexpr int run_lines(int) { return 8; }
inline Ints begin_run(Ints sum) { return sum; }
inline Ints end_run(Ints, Ints run) { return run; }
inline Ints add_products(Ints run, Ints weights, Ints codes) {
  const Words w = Words(weights);
  return run + Ints(w & 255) * (codes << 24 >> 24) + Ints(w >> 8 & 255) * (codes << 16 >> 24) +
         Ints(w >> 16 & 255) * (codes << 8 >> 24) + Ints(w >> 24) * (codes >> 24);
}
inline Ints add_wide_products(Ints run, Ints weights, Ints codes) { return add_products(run, weights, codes); }

template <Table T, int Zero>
inline Ints table_bytes() {
  Bytes bytes{};
  for (int i = 0; i < 16; ++i) bytes[i] = uint8_t(kTables[int(T) - 1][i] + Zero);
  return Ints(bytes);
}
inline Ints look_up(Ints table, Ints codes) {
#if defined(__clang__)  // shuffles by constants only
  const Bytes from(table), which(codes);
  Bytes out{};
  for (int i = 0; i < int(sizeof(Bytes)); ++i) out[i] = from[which[i] & 15];
  return Ints(out);
#else
  return Ints(__builtin_shuffle(Bytes(table), Bytes(codes)));
#endif
}

}  // namespace
}  // namespace homenode

#include "linear/tiles.h"

namespace homenode {

const LinearTable& linear_table_scalar() {
  static constexpr LinearTable table = make_table();
  return table;
}

}  // namespace homenode
