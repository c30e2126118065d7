// top-n-sigma: only tokens within some standard deviations of the largest logit can be drawn (Tang and others, 2024,
// "Top-nσ: Not All Logits Are You Need").
#include <cmath>
#include <limits>
#include <span>

#include "sampling/sampling.h"

namespace homenode {
namespace {

// Sums of a row's values run in so many lanes, lane l over the values l, l + kLanes, ...; the lanes are added in their
// order. So the sums, and with them the threshold, are the same at every instruction set level and in the reference
// backend (compute/reference/sampling.py), which adds in the same order.
constexpr size_t kLanes = 16;

template <class F>
double sum_of(std::span<const float> row, F&& term) {
  double lanes[kLanes] = {};
  const size_t whole = row.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += term(row[i + l]);
  }
  for (size_t i = whole; i < row.size(); ++i) lanes[i - whole] += term(row[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

bool forbidden(float x) { return x == -std::numeric_limits<float>::infinity(); }

}  // namespace

void keep_top_n_sigma(std::span<float> row, float largest, float n) {
  const double count = sum_of(row, [](float x) { return forbidden(x) ? 0.0 : 1.0; });
  const double mean = sum_of(row, [](float x) { return forbidden(x) ? 0.0 : static_cast<double>(x); }) / count;
  const double squares = sum_of(row, [mean](float x) { return forbidden(x) ? 0.0 : (x - mean) * (x - mean); });
  const auto least = static_cast<float>(largest - n * std::sqrt(squares / count));
  for (float& x : row) x = x < least ? -std::numeric_limits<float>::infinity() : x;
}

}  // namespace homenode
