// Matrices of every format from random bytes, and their products with rows.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "linear/linear.h"
#include "tests/cases.h"

namespace homenode::checks {

inline const std::vector<Format> kFormats = {Format::f32,  Format::f16,    Format::bf16,   Format::q8_0,
                                             Format::q4_0, Format::q4_1,   Format::q5_0,   Format::q5_1,
                                             Format::q2_k, Format::q3_k,   Format::q4_k,   Format::q5_k,
                                             Format::q6_k, Format::iq4_nl, Format::iq4_xs, Format::mxfp4};

struct Matrix {
  std::shared_ptr<Weight> weight;
  std::vector<float> values;  // [rows, columns], as the file says
};

// Rows of any bytes, read from a file. Without bit 6 of every byte no float in any format is large, infinite or a NaN.
inline Matrix random_matrix(Random& random, ThreadPool& pool, Format format, int64_t rows, int64_t columns) {
  const auto row_bytes = static_cast<size_t>(file_row_bytes(format, columns));
  Exact<uint8_t> bytes(static_cast<size_t>(rows) * row_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.bits() >> 32) & 0xbf;
  const int file = memfd_create("matrix", 0);
  const uint64_t offset = static_cast<uint64_t>(random.between(0, 99));
  require(pwrite(file, bytes.get(), bytes.size(), static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes.size()),
          "pwrite");
  Matrix made{taken(weight_from_file(pool, {.fd = file, .offset = offset, .format = format}, {format, rows, columns})),
              std::vector<float>(static_cast<size_t>(rows * columns))};
  close(file);
  for (int64_t r = 0; r < rows; ++r)
    decode_row(format, bytes.get() + static_cast<size_t>(r) * row_bytes, made.values.data() + r * columns, columns);
  return made;
}

inline int64_t random_columns(Random& random, Format format) {
  const int block = file_block(format).columns;
  return block == 1 ? random.between(1, 200) : int64_t(block) * random.between(1, block == 256 ? 3 : 9);
}

inline int random_tokens(Random& random) { return random.one_in(8) ? random.between(90, 300) : random.between(1, 20); }

struct Product {
  const std::vector<const Weight*>& weights;
  const std::vector<const float*>& biases;
  int64_t columns, outputs;
  Level level;
  Precision precision = Precision::usual;

  // Of `tokens` rows; the last row of x and of the result ends where it ends, whatever the stride.
  Exact<float> of(ThreadPool& pool, const float* x, int64_t stride, int64_t tokens, const float* residual) const {
    const int64_t out_stride = outputs + stride % 7;
    Exact<float> out(static_cast<size_t>((tokens - 1) * out_stride + outputs));
    const int count = static_cast<int>(weights.size());
    Exact<uint8_t> scratch(linear_scratch_bytes(tokens, columns, weights.data(), count, false, precision));
    LinearArgs call{x,        stride,  tokens,    weights.data(), count,        biases.data(),
                    residual, outputs, out.get(), out_stride,     scratch.get()};
    call.precision = precision;
    pool.run([&](int thread) {
      const LevelScope scope(level);
      linear_prepare(call, thread, pool.size());
      pool.barrier(thread);
      linear_multiply(call, thread, pool.size());
    });
    Exact<float> dense(static_cast<size_t>(tokens * outputs));
    for (int64_t t = 0; t < tokens; ++t) std::copy_n(out.get() + t * out_stride, outputs, dense.get() + t * outputs);
    return dense;
  }
};

}  // namespace homenode::checks
