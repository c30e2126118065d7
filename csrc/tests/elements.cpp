#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void require_written(const Exact<float>& values, size_t count, const char* kernel) {
  for (size_t i = 0; i < count; ++i) require(!std::isnan(values[i]), std::string(kernel) + " writes every value");
}

void check_rows(Random& random, const Kernels& table) {
  const int64_t n = random.between(1, 300);
  const auto count = static_cast<size_t>(n);
  const Exact<float> x = reals(random, count, 9), weight = reals(random, count), gates = reals(random, count, 90);
  Exact<float> out(count);
  table.rms_norm(x.get(), weight.get(), out.get(), n, 1e-6f);
  require_written(out, count, "rms_norm");
  Exact<float> product(count);
  table.silu_mul(gates.get(), x.get(), product.get(), n);
  require_written(product, count, "silu_mul");
}

void check_scans(Random& random, const Kernels& table) {
  const int64_t n = random.between(1, 3000);
  const auto count = static_cast<size_t>(n);
  const Exact<float> x = reals(random, count, 20);
  for (int i = random.between(0, 9); i > 0; --i) x[static_cast<size_t>(random.between(0, static_cast<int>(n) - 1))] = -kInfinity;
  const Largest found = table.find_largest(x.get(), n);
  const float* largest = std::max_element(x.get(), x.get() + n);
  require(!found.nan && found.value == *largest && found.index == largest - x.get(), "find_largest finds the first of the largest");
  if (!std::isfinite(*largest)) return;
  Exact<float> out(count);
  table.exponentials(x.get(), out.get(), n, *largest, 1.5f);
  require_written(out, count, "exponentials");
  const double sum = table.sum_exponentials(x.get(), n, *largest, 1.5f);
  require(sum >= 0.999 && sum <= static_cast<double>(n) * 1.001, "a sum of exponentials of the largest and smaller ones");
}

void check_merge(Random& random, const Kernels& table) {
  const int64_t padded = padded_head(random.between(1, 130));
  const auto count = static_cast<size_t>(padded);
  const Exact<float> state = reals(random, count), other = reals(random, count);
  Exact<float> largest(1), sum(1);
  largest[0] = random.real(), sum[0] = 2;
  table.merge(largest.get(), sum.get(), state.get(), largest[0] + random.real(), 3, other.get(), padded);
  require_written(state, count, "merge");
  require(sum[0] > 0 && sum[0] <= 5, "merged weights are no more than their sum");
}

}  // namespace

void check_elements(Random& random) {
  for (const Level level : levels()) {
    const Kernels& table = kernels(level);
    check_rows(random, table);
    check_scans(random, table);
    check_merge(random, table);
  }
}

}  // namespace homenode::checks
