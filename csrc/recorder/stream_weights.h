// The weights by which layers join and part streams of rows (hyper-connections): see homenode.compute.ops.Ops.
#pragma once
#include <algorithm>
#include <cmath>

#include "graph/row_fields.h"

namespace homenode {

struct StreamWeights {
  static constexpr const char *kName = "stream_weights", *kPhase = "stream weights";
  static constexpr int kMostStreams = 64, kMostRounds = 1000;
  Tensor mixes;
  Vector scales, base;
  int streams = 1, rounds = 1;
  float eps = 0;
  static constexpr auto fields() {
    using Op = StreamWeights;
    return std::tuple(Field("mixes", &Op::mixes), Field("scales", &Op::scales), Field("base", &Op::base),
                      Field("streams", &Op::streams), Field("rounds", &Op::rounds), Field("eps", &Op::eps));
  }

  int64_t columns() const { return mixes.columns; }
  bool only_joins() const { return mixes.columns == streams; }
  std::string problem() const {
    const int64_t n = streams;
    if (n >= 1 && n <= kMostStreams && rounds >= 1 && rounds <= kMostRounds &&
        (only_joins() || mixes.columns == (2 + n) * n) && base.columns() == mixes.columns &&
        scales.columns() == (only_joins() ? 1 : 3))
      return "";
    return "rows of " + std::to_string(mixes.columns) + " for " + std::to_string(streams) + " streams, " +
           std::to_string(rounds) + " rounds, with " + std::to_string(scales.columns()) + " factors";
  }
  void compute(const RowPiece& p) const {
    const float *mix = row_of(mixes, p.row), *by = scales.data(), *plus = base.data();
    const int n = streams;
    for (int i = 0; i < n; ++i) p.out[i] = sigmoid(mix[i] * by[0] + plus[i]) + eps;
    if (only_joins()) return;
    for (int i = n; i < 2 * n; ++i) p.out[i] = 2.0f * sigmoid(mix[i] * by[1] + plus[i]);
    // Row j of the matrix goes from stream j; it lies turned.
    float* matrix = p.out + 2 * n;
    const auto at = [matrix, n](int row, int column) -> float& { return matrix[column * n + row]; };
    const auto divide = [&](bool rows) {
      for (int a = 0; a < n; ++a) {
        float sum = 0;
        for (int b = 0; b < n; ++b) sum += rows ? at(a, b) : at(b, a);
        for (int b = 0; b < n; ++b) (rows ? at(a, b) : at(b, a)) /= sum + eps;
      }
    };
    for (int j = 0; j < n; ++j) {
      float largest = 0, sum = 0;
      for (int i = 0; i < n; ++i) {
        const int k = 2 * n + j * n + i;
        at(j, i) = mix[k] * by[2] + plus[k];
        largest = i ? std::max(largest, at(j, i)) : at(j, i);
      }
      for (int i = 0; i < n; ++i) sum += at(j, i) = std::exp(at(j, i) - largest);
      for (int i = 0; i < n; ++i) at(j, i) = at(j, i) / sum + eps;
    }
    divide(false);
    for (int round = 1; round < rounds; ++round) divide(true), divide(false);
  }

 private:
  static float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
};

}  // namespace homenode
