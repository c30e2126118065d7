// Reading and packing of weights: every thread of the team brings in the rows it will multiply.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>

#include "host/memory.h"
#include "host/team.h"
#include "kernels/linear.h"
#include "quant/coding.h"
#include "quant/pack.h"

namespace homenode {
namespace {

constexpr int64_t kMaxRows = int64_t(1) << 31, kMaxColumns = int64_t(1) << 24;
constexpr size_t kReadBytes = size_t(1) << 20;  // read at once by a thread, or one row where that is more
constexpr size_t kPage = 4096, kHugePage = size_t(2) << 20;

std::string shape_text(Format format, int64_t rows, int64_t columns) {
  return std::string(format_name(format)) + " matrix of " + std::to_string(rows) + " x " + std::to_string(columns);
}

Error user_error(std::string message) { return Error{Fault::user, 0, std::move(message)}; }
Error system_error(const std::string& call) {
  const int code = errno;
  return Error{Fault::host, code, call + " failed: " + std::strerror(code)};
}

std::optional<Error> check_request(Format source, int64_t rows, int64_t columns, Format target) {
  if (!can_decode(source)) return user_error("storage format " + std::to_string(int(source)) + " is not one that can be decoded");
  if (!has_kernel(target)) return user_error("no kernel for packed format " + std::to_string(int(target)));
  if (rows < 1 || rows > kMaxRows || columns < 1 || columns > kMaxColumns) {
    return user_error("a matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                      " is out of bounds: 1 .. 2^31 rows of 1 .. 2^24 columns");
  }
  const int block = file_block(source).columns;
  if (columns % block) {
    return user_error("a row of a " + shape_text(source, rows, columns) + " would end inside a block of " + std::to_string(block));
  }
  if (source != target && !can_encode(target)) {
    return user_error(std::string(format_name(source)) + " cannot be kept as " + format_name(target) +
                      ": only F32, F16, BF16, Q8_0 and Q4_0 are encoded");
  }
  return std::nullopt;
}

// The weight with its pieces laid out, one for each member, and none of its memory touched.
Result<std::shared_ptr<Weight>> lay_out(int members, int64_t rows, int64_t columns, Format target) {
  const int64_t groups = (rows + kGroupRows - 1) / kGroupRows, group_bytes = packed_group_bytes(target, columns);
  auto weight = std::make_shared<Weight>();
  weight->format = target;
  weight->rows = rows;
  weight->columns = columns;
  size_t total = 0;
  for (int64_t t = 0; t < members; ++t) {
    const int64_t begin = groups * t / members, end = groups * (t + 1) / members;
    const size_t bytes = size_t(end - begin) * size_t(group_bytes);
    weight->pieces.push_back({begin * kGroupRows, std::min(rows, end * kGroupRows), nullptr, bytes});
    total += (bytes + kPage - 1) / kPage * kPage;  // no small page has two owners
  }
  // From half a huge page on, a huge page is worth its unused rest.
  auto pages = allocate_pages(total >= kHugePage / 2 ? std::max(total, kHugePage) : total);
  if (!pages) return pages.error();
  weight->memory = pages.value().owner;
  weight->huge_pages = pages.value().huge;
  auto* at = reinterpret_cast<uint8_t*>(pages.value().data);
  for (auto& piece : weight->pieces) {
    piece.data = at;
    const size_t room = (piece.bytes + kPage - 1) / kPage * kPage;
    forbid(reinterpret_cast<const std::byte*>(at) + piece.bytes, room - piece.bytes);
    at += room;
  }
  return weight;
}

// One thread's way to pack rows of `source` format as `target`.
struct Packer {
  Format source, target;
  int64_t columns;
  std::vector<float> decoded;
  std::vector<uint8_t> encoded;

  Packer(Format from, Format to, int64_t n) : source(from), target(to), columns(n) {
    if (from == to) return;
    decoded.resize(size_t(n));
    encoded.resize(size_t(file_row_bytes(to, n)));
  }
  void pack(const uint8_t* row, int place, uint8_t* group) {
    if (source != target) {
      decode_row(source, row, decoded.data(), columns);
      encode_row(target, decoded.data(), encoded.data(), columns);
      row = encoded.data();
    }
    pack_row(target, row, columns, place, group);
  }
};

struct FileRows {
  int fd;
  uint64_t offset;
  size_t row_bytes;
  int64_t permuted_head;  // rows of a head whose halves are interleaved, or 0

  int64_t stored_row(int64_t row) const {
    if (!permuted_head) return row;
    const int64_t half = permuted_head / 2, in_head = row % permuted_head;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }

  std::optional<Error> read(int64_t row, int64_t count, uint8_t* out) const {
    if (!permuted_head) return read_bytes(offset + uint64_t(row) * row_bytes, size_t(count) * row_bytes, out);
    for (int64_t i = 0; i < count; ++i) {
      if (auto error = read_bytes(offset + uint64_t(stored_row(row + i)) * row_bytes, row_bytes, out + size_t(i) * row_bytes)) return error;
    }
    return std::nullopt;
  }

  std::optional<Error> read_bytes(uint64_t at, size_t bytes, uint8_t* out) const {
    while (bytes > 0) {
      const ssize_t got = pread(fd, out, bytes, off_t(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return system_error("pread of " + std::to_string(bytes) + " bytes at offset " + std::to_string(at));
      if (got == 0) {
        return user_error("the file ends at offset " + std::to_string(at) + ", inside a matrix: " + std::to_string(bytes) +
                          " more bytes were wanted");
      }
      at += uint64_t(got);
      out += got;
      bytes -= size_t(got);
    }
    return std::nullopt;
  }
};

// A regular file must hold the whole matrix before memory is set aside for it.
std::optional<Error> check_file(const FileRows& file, int64_t rows, Format source, int64_t columns) {
  uint64_t end;
  if (__builtin_mul_overflow(uint64_t(rows), uint64_t(file.row_bytes), &end) || __builtin_add_overflow(end, file.offset, &end) ||
      end > INT64_MAX) {
    return user_error("a " + shape_text(source, rows, columns) + " at offset " + std::to_string(file.offset) + " ends beyond any file");
  }
  struct stat status;
  if (fstat(file.fd, &status)) return system_error("fstat of file descriptor " + std::to_string(file.fd));
  if (S_ISREG(status.st_mode) && end > uint64_t(status.st_size)) {
    return user_error("the file has " + std::to_string(status.st_size) + " bytes; a " + shape_text(source, rows, columns) + " at offset " +
                      std::to_string(file.offset) + " ends at " + std::to_string(end));
  }
  return std::nullopt;
}

std::optional<Error> fill_from_file(const Weight& weight, const Weight::Piece& piece, const FileRows& file, Format source) {
  if (piece.row_begin >= piece.row_end) return std::nullopt;
  const int64_t at_once = std::clamp<int64_t>(int64_t(kReadBytes / file.row_bytes), 1, kGroupRows);
  const size_t group_bytes = size_t(packed_group_bytes(weight.format, weight.columns));
  Packer packer(source, weight.format, weight.columns);
  std::vector<uint8_t> buffer(size_t(at_once) * file.row_bytes);
  for (int64_t row = piece.row_begin; row < piece.row_end;) {
    const int64_t inside = row - piece.row_begin, place = inside % kGroupRows;
    const int64_t count = std::min({at_once, kGroupRows - place, piece.row_end - row});
    if (auto error = file.read(row, count, buffer.data())) return error;
    uint8_t* group = piece.data + size_t(inside / kGroupRows) * group_bytes;
    for (int64_t i = 0; i < count; ++i) packer.pack(buffer.data() + size_t(i) * file.row_bytes, int(place + i), group);
    row += count;
  }
  return std::nullopt;
}

// Each member fills its piece; the first member's error, if any, is the result.
template <class Fill>
Result<std::shared_ptr<Weight>> fill_pieces(Team& team, Result<std::shared_ptr<Weight>> made, Fill&& fill) {
  if (!made) return made;
  const Weight& weight = *made.value();
  std::vector<std::optional<Error>> errors(weight.pieces.size());
  team.run([&](int member) {
    try {
      errors[size_t(member)] = fill(weight, weight.pieces[size_t(member)]);
    } catch (const std::bad_alloc&) {
      errors[size_t(member)] =
          Error{Fault::host, ENOMEM, "no memory for the buffers to read a " + shape_text(weight.format, weight.rows, weight.columns)};
    }
  });
  for (auto& error : errors) {
    if (error) return std::move(*error);
  }
  return made;
}

}  // namespace

size_t Weight::bytes() const {
  return std::accumulate(pieces.begin(), pieces.end(), size_t(0), [](size_t sum, const Piece& p) { return sum + p.bytes; });
}

Result<std::shared_ptr<Weight>> weight_from_file(Team& team, int fd, uint64_t offset, Format source, int64_t rows, int64_t columns, Format target,
                                                 int permuted_heads) {
  if (auto error = check_request(source, rows, columns, target)) return *error;
  if (permuted_heads < 0 || (permuted_heads > 0 && rows % (2 * int64_t(permuted_heads)))) {
    return user_error(std::to_string(rows) + " rows are not " + std::to_string(permuted_heads) + " heads of an even size");
  }
  const FileRows file{fd, offset, size_t(file_row_bytes(source, columns)), permuted_heads ? rows / permuted_heads : 0};
  if (auto error = check_file(file, rows, source, columns)) return *error;
  return fill_pieces(team, lay_out(team.size(), rows, columns, target),
                     [&](const Weight& weight, const Weight::Piece& piece) { return fill_from_file(weight, piece, file, source); });
}

Result<std::shared_ptr<Weight>> weight_from_rows(Team& team, const float* source, int64_t rows, int64_t columns, Format target) {
  if (auto error = check_request(Format::f32, rows, columns, target)) return *error;
  const auto fill = [&](const Weight& weight, const Weight::Piece& piece) -> std::optional<Error> {
    Packer packer(Format::f32, target, columns);
    const size_t group_bytes = size_t(packed_group_bytes(target, columns));
    for (int64_t row = piece.row_begin; row < piece.row_end; ++row) {
      const int64_t inside = row - piece.row_begin;
      const auto* bytes = reinterpret_cast<const uint8_t*>(source + row * weight.columns);
      packer.pack(bytes, int(inside % kGroupRows), piece.data + size_t(inside / kGroupRows) * group_bytes);
    }
    return std::nullopt;
  };
  return fill_pieces(team, lay_out(team.size(), rows, columns, target), fill);
}

}  // namespace homenode
