#include "weights/packed_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "host/file.h"
#include "host/thread_pool.h"
#include "quant/checksum.h"
#include "quant/coding.h"
#include "quant/pack.h"
#include "weights/weight_pieces.h"

namespace homenode {
namespace {

constexpr size_t kAtOnce = size_t(256) << 10;  // read, then summed while it is in the cache

// Calls work(first group, groups, data) for some groups of a piece after the other, until one has an Error.
template <class Work>
std::optional<Error> for_groups(const Weight& weight, const Weight::Piece& piece, Work&& work) {
  const auto group_bytes = size_t(packed_group_bytes(weight.format, weight.columns));
  const size_t groups = piece.bytes / group_bytes, some = std::max(size_t(1), kAtOnce / group_bytes);
  const auto first = uint64_t(piece.row_begin / kGroupRows);
  for (size_t group = 0; group < groups; group += some) {
    if (auto error = work(first + group, std::min(some, groups - group), piece.data + group * group_bytes))
      return error;
  }
  return std::nullopt;
}

uint64_t checksum_of(const uint8_t* data, uint64_t first, size_t groups, size_t group_bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < groups; ++i) sum += block_checksum(data + i * group_bytes, group_bytes, first + i);
  return sum;
}

// Bytes of every kind, the same everywhere; as floats they are of any size.
std::vector<uint8_t> known_bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  uint64_t state = 1;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = uint8_t(state >> 56);
  }
  return bytes;
}

uint64_t fingerprint_of(Format format) {
  constexpr int kColumns = 512;
  const auto row_bytes = size_t(file_row_bytes(format, kColumns));
  std::vector<uint8_t> rows = known_bytes(kPackedRows * row_bytes);
  if (can_encode(format)) {
    std::vector<float> values(kColumns);
    for (int i = 0; i < kColumns; ++i)
      values[size_t(i)] = float(rows[size_t(i) % rows.size()] - 128) / float(1 + i % 7);
    encode_row(format, values.data(), rows.data(), kColumns);
  }
  std::vector<uint8_t> group(size_t(packed_group_bytes(format, kColumns)));
  for (int place = 0; place < kGroupRows; place += kPackedRows)
    pack_rows(format, rows.data(), row_bytes, kPackedRows, kColumns, place, group.data());
  return block_checksum(group.data(), group.size(), uint64_t(format));
}

}  // namespace

Result<uint64_t> packed_bytes(Format format, int64_t rows, int64_t columns) {
  if (auto error = check_packed(format, rows, columns)) return *error;
  return uint64_t((rows + kGroupRows - 1) / kGroupRows) * uint64_t(packed_group_bytes(format, columns));
}

uint64_t packing_fingerprint() {
  uint64_t sum = fingerprint_of(Format::f32) + fingerprint_of(Format::f16) + fingerprint_of(Format::bf16);
  for (const Coding& coding : kCodings) sum += fingerprint_of(coding.format);
  return sum;
}

Result<uint64_t> head_checksum(int fd, uint64_t bytes) {
  struct stat status;
  if (fstat(fd, &status)) return system_error("fstat of file descriptor " + std::to_string(fd));
  bytes = std::min(bytes, uint64_t(std::max<off_t>(0, status.st_size)));
  const std::unique_ptr<uint8_t[]> buffer(new uint8_t[kAtOnce]);
  uint64_t sum = 0;
  for (uint64_t at = 0; at < bytes; at += kAtOnce) {
    const auto some = size_t(std::min<uint64_t>(kAtOnce, bytes - at));
    if (auto error = read_bytes(fd, at, some, buffer.get())) return *error;
    sum += block_checksum(buffer.get(), some, at);
  }
  return sum;
}

Result<uint64_t> write_packed(ThreadPool& pool, const Weight& weight, int fd, uint64_t offset) {
  if (weight.pieces.size() != size_t(pool.size())) {
    return Error{Fault::internal, 0,
                 "a weight of " + std::to_string(weight.pieces.size()) + " pieces and a thread pool of " +
                     std::to_string(pool.size())};
  }
  const auto group_bytes = size_t(packed_group_bytes(weight.format, weight.columns));
  std::vector<uint64_t> sums(weight.pieces.size());
  std::vector<std::optional<Error>> errors(weight.pieces.size());
  pool.run([&](int thread) {
    errors[size_t(thread)] =
        for_groups(weight, weight.pieces[size_t(thread)], [&](uint64_t first, size_t groups, const uint8_t* data) {
          sums[size_t(thread)] += checksum_of(data, first, groups, group_bytes);
          return write_bytes(fd, offset + first * group_bytes, groups * group_bytes, data);
        });
  });
  for (auto& error : errors) {
    if (error) return std::move(*error);
  }
  return std::accumulate(sums.begin(), sums.end(), uint64_t(0));
}

Result<std::vector<ReadWeight>> read_packed(ThreadPool& pool, int fd, const std::vector<PackedWeight>& weights,
                                            Arena* arena) {
  std::vector<WeightShape> shapes;
  for (const auto& [offset, shape] : weights) {
    auto bytes = packed_bytes(shape.format, shape.rows, shape.columns);
    if (!bytes) return bytes.error();
    const std::string what = "a packed " + shape_text(shape.format, shape.rows, shape.columns);
    if (auto error = check_extent(fd, offset, bytes.value(), what)) return *error;
    shapes.push_back(shape);
  }
  const auto threads = size_t(pool.size());
  std::vector<uint64_t> sums(weights.size() * threads);
  auto made = make_weights(
      pool, arena, shapes, [&](int thread, size_t index, const Weight& weight, const Weight::Piece& piece) {
        const auto group_bytes = size_t(packed_group_bytes(weight.format, weight.columns));
        return for_groups(weight, piece, [&](uint64_t first, size_t groups, uint8_t* data) -> std::optional<Error> {
          if (auto error = read_bytes(fd, weights[index].offset + first * group_bytes, groups * group_bytes, data))
            return error;
          sums[index * threads + size_t(thread)] += checksum_of(data, first, groups, group_bytes);
          return std::nullopt;
        });
      });
  if (!made) return made.error();
  std::vector<ReadWeight> read;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto begin = sums.begin() + std::ptrdiff_t(i * threads);
    read.push_back({made.value()[i], std::accumulate(begin, begin + std::ptrdiff_t(threads), uint64_t(0))});
  }
  return read;
}

}  // namespace homenode
