#include "weights/packed_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "host/arena.h"
#include "linear/linear.h"
#include "quant/checksum.h"
#include "quant/coding.h"
#include "tests/cases.h"

namespace homenode::checks {
namespace {

struct File {
  int fd = memfd_create("weights", 0);
  ~File() { close(fd); }
};

// Rows of any bytes in a file, somewhere, and the weight that was read from there.
std::shared_ptr<Weight> random_weight(Random& random, ThreadPool& pool, Arena* arena, NumaPolicy policy, Format format,
                                      int64_t rows, int64_t columns, int heads) {
  Exact<uint8_t> bytes(static_cast<size_t>(rows) * static_cast<size_t>(file_row_bytes(format, columns)));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.bits() >> 32);
  const File file;
  const uint64_t offset = static_cast<uint64_t>(random.between(0, 99));
  require(pwrite(file.fd, bytes.get(), bytes.size(), static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes.size()),
          "pwrite");
  return taken(weight_from_file(pool, {.fd = file.fd, .offset = offset, .format = format, .permuted_heads = heads},
                                {format, rows, columns, policy}, arena));
}

NumaPolicy random_policy(Random& random) { return static_cast<NumaPolicy>(random.between(0, 2)); }

// Members at one to three homes, of nodes the kernel chooses.
Homes random_homes(Random& random, int threads) {
  Homes homes;
  const int count = random.between(1, std::min(threads, 3));
  for (int thread = 0; thread < threads; ++thread)
    homes.of_thread.push_back(thread < count ? thread : random.between(0, count - 1));
  return homes;
}

// As any thread of either pool reads them.
bool same_rows(const Weight& a, const Weight& b) {
  Exact<float> one(static_cast<size_t>(a.columns)), other(static_cast<size_t>(a.columns));
  for (int64_t row = 0; row < a.rows; ++row) {
    unpack_row(a, row, one.get(), static_cast<int>(row % static_cast<int64_t>(a.pieces.size())));
    unpack_row(b, row, other.get(), static_cast<int>(row % static_cast<int64_t>(b.pieces.size())));
    if (std::memcmp(one.get(), other.get(), one.size() * sizeof(float))) return false;
  }
  return true;
}

void check_format(Random& random, Format format) {
  const int heads = random.one_in(3) ? random.between(1, 4) : 0, block = file_block(format).columns;
  const int64_t rows = heads ? heads * 2 * random.between(1, 20) : random.between(1, 140);
  const int64_t columns = block == 1 ? random.between(1, 200) : int64_t(block) * random.between(1, 3);
  const auto pool = pool_of(random.between(1, 3)), others = pool_of(random.between(1, 4));
  Arena arena(random_homes(random, pool->size())), other_arena(random_homes(random, others->size()));
  const auto weight = random_weight(random, *pool, random.one_in(2) ? &arena : nullptr, random_policy(random), format,
                                    rows, columns, heads);
  const File file;
  const uint64_t offset = static_cast<uint64_t>(random.between(0, 5000)),
                 bytes = taken(packed_bytes(format, rows, columns));
  const uint64_t written = taken(write_packed(*pool, *weight, file.fd, offset));
  const PackedWeight place{offset, {format, rows, columns, random_policy(random)}},
      other{offset, {format, rows, columns, random_policy(random)}};
  // Twice at once: the threads go from one matrix to the next by themselves.
  for (const ReadWeight& read :
       taken(read_packed(*others, file.fd, {place, other}, random.one_in(2) ? &other_arena : nullptr))) {
    require(read.checksum == written, std::string("what was written has its checksum, ") + format_name(format));
    require(same_rows(*weight, *read.weight), std::string("what was written is read, ") + format_name(format));
  }

  const auto at = static_cast<off_t>(offset + random.bits() % bytes);
  uint8_t byte;
  require(pread(file.fd, &byte, 1, at) == 1, "pread");
  byte ^= static_cast<uint8_t>(1 << random.between(0, 7));
  require(pwrite(file.fd, &byte, 1, at) == 1, "pwrite");
  require(taken(read_packed(*others, file.fd, {place})).front().checksum != written, "one bit changes the checksum");
  require(!ftruncate(file.fd, static_cast<off_t>(offset + bytes - 1)), "ftruncate");
  require(!read_packed(*others, file.fd, {place}), "a file that ends early is refused");
}

// Some columns, whole blocks, of a wider matrix: what the whole one has there, and nothing behind the end of the file.
void check_columns(Random& random, Format format) {
  const int heads = random.one_in(3) ? random.between(1, 4) : 0, block = file_block(format).columns;
  const int64_t rows = heads ? heads * 2 * random.between(1, 20) : random.between(1, 140);
  const int64_t before = random.between(0, 3) * int64_t(block), columns = random.between(1, 3) * int64_t(block),
                behind = random.between(0, 3) * int64_t(block);
  const auto stride = static_cast<uint64_t>(file_row_bytes(format, before + columns + behind));
  Exact<uint8_t> bytes(static_cast<size_t>(rows) * stride);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.bits() >> 32);
  const File file;
  const uint64_t offset = static_cast<uint64_t>(random.between(0, 99)),
                 first = offset + static_cast<uint64_t>(file_row_bytes(format, before));
  require(pwrite(file.fd, bytes.get(), bytes.size(), static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes.size()),
          "pwrite");
  const auto pool = pool_of(random.between(1, 3));
  const auto read = [&](int64_t n) {
    return weight_from_file(*pool, {file.fd, first, format, heads, stride}, {format, n, columns});
  };
  const auto whole =
      taken(weight_from_file(*pool, {.fd = file.fd, .offset = offset, .format = format, .permuted_heads = heads},
                             {format, rows, before + columns + behind}));
  const auto some = taken(read(rows));
  Exact<float> all(static_cast<size_t>(whole->columns)), part(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    unpack_row(*whole, row, all.get());
    unpack_row(*some, row, part.get());
    require(!std::memcmp(all.get() + before, part.get(), part.size() * sizeof(float)),
            std::string("columns of a wider matrix, ") + format_name(format));
  }
  require(!ftruncate(file.fd, static_cast<off_t>(first + static_cast<uint64_t>(rows - 1) * stride +
                                                 static_cast<uint64_t>(file_row_bytes(format, columns)) - 1)),
          "ftruncate");
  require(!read(rows), "columns that the file ends before are refused");
}

}  // namespace

// The widest registers of this processor and any processor's come to the same.
void check_checksum(Random& random) {
  Exact<uint8_t> bytes(static_cast<size_t>(random.between(0, 9000)));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.bits() >> 32);
  const uint64_t index = random.bits();
  require(block_checksum(bytes.get(), bytes.size(), index) == plain_block_checksum(bytes.get(), bytes.size(), index),
          "checksums of wide registers");
}

void check_packed(Random& random) {
  check_checksum(random);
  for (const Format format : {Format::f32, Format::f16, Format::bf16}) check_format(random, format);
  for (const Coding& coding : kCodings) check_format(random, coding.format);
  for (const Format format : {Format::f32, Format::f16, Format::bf16}) check_columns(random, format);
  for (const Coding& coding : kCodings) check_columns(random, coding.format);
  require(packing_fingerprint() == packing_fingerprint(), "packing is the same every time");
}

}  // namespace homenode::checks
