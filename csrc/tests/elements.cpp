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
  for (int i = 0; i < kActivations; ++i) {
    table.gates[i](gates.get(), x.get(), product.get(), n);
    require_written(product, count, kActivationNames[i]);
    if (!is_plain(static_cast<Activation>(i))) continue;
    table.gates[i](gates.get(), nullptr, product.get(), n);
    require_written(product, count, kActivationNames[i]);
  }
  table.add_weighted(x.get(), gates.get(), 1, weight.get(), 0.5f, product.get(), n);
  require_written(product, count, "add_weighted");
  table.soft_cap(gates.get(), 30, product.get(), n);
  require_written(product, count, "soft_cap");
}

void check_scans(Random& random, const Kernels& table) {
  const int64_t n = random.between(1, 3000);
  const auto count = static_cast<size_t>(n);
  const Exact<float> x = reals(random, count, 20);
  for (int i = random.between(0, 9); i > 0; --i)
    x[static_cast<size_t>(random.between(0, static_cast<int>(n) - 1))] = -kInfinity;
  const Largest found = table.find_largest(x.get(), n);
  const float* largest = std::max_element(x.get(), x.get() + n);
  require(!found.nan && found.value == *largest && found.index == largest - x.get(),
          "find_largest finds the first of the largest");
  if (!std::isfinite(*largest)) return;
  Exact<float> out(count);
  table.exponentials(x.get(), out.get(), n, *largest, 1.5f);
  require_written(out, count, "exponentials");
  const double sum = table.sum_exponentials(x.get(), n, *largest, 1.5f);
  require(sum >= 0.999 && sum <= static_cast<double>(n) * 1.001,
          "a sum of exponentials of the largest and smaller ones");
}

void check_merge(Random& random, const Kernels& table) {
  const int rows = random.between(1, kQueryRows), head_dim = random.between(1, 130);
  const int64_t padded = padded_head(head_dim);
  const auto count = static_cast<size_t>(rows * padded), states = static_cast<size_t>(kQueryRows);
  const Exact<float> out = reals(random, count), added = reals(random, count), largest = reals(random, states),
                     largest2 = reals(random, states);
  Exact<float> sum(states), sum2(states), before(count), divided(static_cast<size_t>(head_dim));
  Exact<Merge> how(static_cast<size_t>(rows));
  std::fill(sum.get(), sum.get() + states, 2.0f), std::fill(sum2.get(), sum2.get() + states, 3.0f);
  std::copy(out.get(), out.get() + count, before.get());
  for (int r = 0; r < rows; ++r)
    how[static_cast<size_t>(r)] = random.of<Merge>({Merge::leave, Merge::take, Merge::add});
  table.merge({rows, padded, how.get(), largest.get(), sum.get(), out.get(), largest2.get(), sum2.get(), added.get()});
  require_written(out, count, "merge");
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const auto row = r * static_cast<size_t>(padded);
    const float* same = how[r] == Merge::leave ? before.get() : added.get();
    if (how[r] != Merge::add)
      require(!std::memcmp(out.get() + row, same + row, static_cast<size_t>(padded) * sizeof(float)),
              "merge leaves or takes a row as it is");
    require(how[r] == Merge::leave  ? sum[r] == 2
            : how[r] == Merge::take ? sum[r] == 3
                                    : sum[r] > 2 && sum[r] <= 5,
            "merged weights are no more than their sum");
  }
  table.divide(out.get(), sum[0], divided.get(), head_dim);
  require_written(divided, static_cast<size_t>(head_dim), "divide");
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
