// Reading and packing of weights: every thread of the pool brings in the rows it will multiply.
#include <algorithm>
#include <memory>
#include <optional>

#include "host/file.h"
#include "host/thread_pool.h"
#include "quant/coding.h"
#include "quant/pack.h"
#include "weights/weight_pieces.h"

namespace homenode {
namespace {

// Read at once by a thread: little enough to stay in its cache until it is packed, enough that the calls cost little. A
// group whose rows take more is read in parts of this size, down to kPackedRows rows.
constexpr int64_t kReadBytes = int64_t(256) << 10, kLargestRead = int64_t(4) << 20;

Error user_error(std::string message) { return Error{Fault::user, 0, std::move(message)}; }

std::optional<Error> check_request(Format source, int64_t rows, int64_t columns, Format target) {
  if (!can_decode(source))
    return user_error("storage format " + std::to_string(int(source)) + " is not one that can be decoded");
  if (auto error = check_packed(target, rows, columns)) return error;
  const int block = file_block(source).columns;
  if (columns % block) {
    return user_error("a row of a " + shape_text(source, rows, columns) + " would end inside a block of " +
                      std::to_string(block));
  }
  if (source != target && !can_encode(target)) {
    return user_error(std::string(format_name(source)) + " cannot be kept as " + format_name(target) +
                      ": only F32, F16, BF16, Q8_0 and Q4_0 are encoded");
  }
  return std::nullopt;
}

// One thread's way to pack rows of `source` format as `target`.
class Packer {
 public:
  Packer(Format source, Format target, int64_t columns)
      : source_(source), target_(target), columns_(columns), stored_bytes_(size_t(file_row_bytes(source, columns))),
        kept_bytes_(size_t(file_row_bytes(target, columns))) {
    if (source == target) return;
    decoded_.resize(size_t(columns));
    encoded_.resize(kPackedRows * kept_bytes_);
  }

  // `count` rows that follow each other, at most those left in the group, in places `place`, ... (a multiple of
  // kPackedRows).
  void pack(const uint8_t* rows, int count, int place, uint8_t* group) {
    if (source_ == target_) return pack_rows(target_, rows, kept_bytes_, count, columns_, place, group);
    for (int row = 0; row < count; row += kPackedRows) {
      const int some = std::min(kPackedRows, count - row);
      for (int i = 0; i < some; ++i) {
        decode_row(source_, rows + size_t(row + i) * stored_bytes_, decoded_.data(), columns_);
        encode_row(target_, decoded_.data(), encoded_.data() + size_t(i) * kept_bytes_, columns_);
      }
      pack_rows(target_, encoded_.data(), kept_bytes_, some, columns_, place + row, group);
    }
  }

 private:
  Format source_, target_;
  int64_t columns_;
  size_t stored_bytes_, kept_bytes_;
  std::vector<float> decoded_;
  std::vector<uint8_t> encoded_;
};

struct FileRows {
  int fd;
  uint64_t offset;
  size_t row_bytes;
  uint64_t stride;        // from row to row
  int64_t permuted_head;  // rows of a head whose halves are interleaved, or 0

  int64_t stored_row(int64_t row) const {
    if (!permuted_head) return row;
    const int64_t half = permuted_head / 2, in_head = row % permuted_head;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }

  std::optional<Error> read(int64_t row, int64_t count, uint8_t* out) const {
    if (!permuted_head && stride == row_bytes)
      return read_bytes(fd, offset + uint64_t(row) * row_bytes, size_t(count) * row_bytes, out);
    for (int64_t i = 0; i < count; ++i) {
      if (auto error =
              read_bytes(fd, offset + uint64_t(stored_row(row + i)) * stride, row_bytes, out + size_t(i) * row_bytes))
        return error;
    }
    return std::nullopt;
  }
};

// How many rows to read at once: whole groups, or where one is large a part of it.
int64_t rows_at_once(int64_t row_bytes) {
  if (kGroupRows * row_bytes <= kReadBytes) return kReadBytes / (kGroupRows * row_bytes) * kGroupRows;
  if (kGroupRows * row_bytes <= kLargestRead) return kGroupRows;
  return std::max<int64_t>(kPackedRows, kLargestRead / row_bytes / kPackedRows * kPackedRows);
}

std::optional<Error> fill_from_file(const Weight& weight, const Weight::Piece& piece, const FileRows& file,
                                    Format source) {
  if (piece.row_begin >= piece.row_end) return std::nullopt;
  const int64_t at_once = std::min(rows_at_once(int64_t(file.row_bytes)), piece.row_end - piece.row_begin);
  const size_t group_bytes = size_t(packed_group_bytes(weight.format, weight.columns));
  Packer packer(source, weight.format, weight.columns);
  const std::unique_ptr<uint8_t[]> buffer(new uint8_t[size_t(at_once) * file.row_bytes]);
  int64_t read_end = piece.row_begin, read_begin = read_end;
  for (int64_t row = piece.row_begin; row < piece.row_end;) {
    if (row == read_end) {
      read_begin = row;
      read_end = std::min(row + at_once, piece.row_end);
      if (auto error = file.read(row, read_end - row, buffer.get())) return error;
    }
    const int64_t inside = row - piece.row_begin, place = inside % kGroupRows;
    const int64_t count = std::min(kGroupRows - place, read_end - row);
    packer.pack(buffer.get() + size_t(row - read_begin) * file.row_bytes, int(count), int(place),
                piece.data + size_t(inside / kGroupRows) * group_bytes);
    row += count;
  }
  return std::nullopt;
}

}  // namespace

bool has_kernel(Format format) { return packed_step(format).columns > 0; }
bool can_decode(Format format) { return file_block(format).bytes > 0; }

Result<std::shared_ptr<Weight>> weight_from_file(ThreadPool& pool, const WeightFile& stored, const WeightShape& shape,
                                                 Arena* arena) {
  const auto [fd, offset, source, permuted_heads, stride] = stored;
  const int64_t rows = shape.rows, columns = shape.columns;
  if (auto error = check_request(source, rows, columns, shape.format)) return *error;
  if (permuted_heads < 0 || (permuted_heads > 0 && rows % (2 * int64_t(permuted_heads)))) {
    return user_error(std::to_string(rows) + " rows are not " + std::to_string(permuted_heads) +
                      " heads of an even size");
  }
  const auto row_bytes = size_t(file_row_bytes(source, columns));
  if (stride && stride < row_bytes) {
    return user_error("rows of " + std::to_string(row_bytes) + " bytes cannot begin " + std::to_string(stride) +
                      " bytes after each other");
  }
  const FileRows file{fd, offset, row_bytes, stride ? stride : row_bytes, permuted_heads ? rows / permuted_heads : 0};
  uint64_t bytes;
  if (__builtin_mul_overflow(uint64_t(rows - 1), file.stride, &bytes) ||
      __builtin_add_overflow(bytes, uint64_t(row_bytes), &bytes))
    bytes = UINT64_MAX;
  if (auto error = check_extent(fd, offset, bytes, "a " + shape_text(source, rows, columns))) return *error;
  const auto fill = [&, from = source](int, size_t, const Weight& weight, const Weight::Piece& piece) {
    return fill_from_file(weight, piece, file, from);
  };
  return make_weight(pool, arena, shape, fill);
}

Result<std::shared_ptr<Weight>> weight_from_rows(ThreadPool& pool, const float* source, const WeightShape& shape,
                                                 Arena* arena) {
  if (auto error = check_request(Format::f32, shape.rows, shape.columns, shape.format)) return *error;
  return make_weight(
      pool, arena, shape, [&](int, size_t, const Weight& weight, const Weight::Piece& piece) -> std::optional<Error> {
        Packer packer(Format::f32, shape.format, shape.columns);
        const size_t group_bytes = size_t(packed_group_bytes(shape.format, shape.columns));
        uint8_t* group = piece.data;
        for (int64_t row = piece.row_begin; row < piece.row_end; row += kGroupRows, group += group_bytes) {
          const auto count = int(std::min<int64_t>(kGroupRows, piece.row_end - row));
          packer.pack(reinterpret_cast<const uint8_t*>(source + row * weight.columns), count, 0, group);
        }
        return std::nullopt;
      });
}

}  // namespace homenode
