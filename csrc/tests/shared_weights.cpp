// Weights in memory that several processes map: those that are put there, those that are read there, and places where
// none can be.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "host/shared_words.h"
#include "tests/matrices.h"
#include "weights/packed_file.h"
#include "weights/weight_memory.h"

namespace homenode::checks {
namespace {

constexpr int kAddSeals = 1033, kSealShrink = 2;  // linux/fcntl.h

struct File {
  int fd = memfd_create("weights", MFD_ALLOW_SEALING);
  ~File() { close(fd); }

  void grow(uint64_t bytes) const { require(!ftruncate(fd, static_cast<off_t>(bytes)), "ftruncate"); }
  void seal() const { require(!fcntl(fd, kAddSeals, kSealShrink), "sealing"); }
};

uint64_t pages(uint64_t bytes) { return (bytes + kSmallPage - 1) / kSmallPage * kSmallPage; }

bool same_rows(const Weight& a, const Weight& b) {
  Exact<float> one(static_cast<size_t>(a.columns)), other(static_cast<size_t>(a.columns));
  for (int64_t row = 0; row < a.rows; ++row) {
    unpack_row(a, row, one.get());
    unpack_row(b, row, other.get(), static_cast<int>(row % static_cast<int64_t>(b.pieces.size())));
    if (std::memcmp(one.get(), other.get(), one.size() * sizeof(float))) return false;
  }
  return true;
}

bool same_products(Random& random, const Weight& a, ThreadPool& of_a, const Weight& b, ThreadPool& of_b) {
  const int64_t tokens = random.between(1, 9);
  const Exact<float> x = reals(random, static_cast<size_t>(tokens * a.columns));
  const std::vector<const float*> no_bias{nullptr};
  for (const Level level : levels()) {
    const Exact<float> one =
        Product{{&a}, no_bias, a.columns, a.rows, level}.of(of_a, x.get(), a.columns, tokens, nullptr);
    const Exact<float> other =
        Product{{&b}, no_bias, b.columns, b.rows, level}.of(of_b, x.get(), b.columns, tokens, nullptr);
    if (std::memcmp(one.get(), other.get(), one.size() * sizeof(float))) return false;
  }
  return true;
}

// One matrix among pages that are others', filled by one pool from rows or from a packed file, read by another of
// another size.
void check_format(Random& random, Format format) {
  const auto writers = pool_of(random.between(1, 3)), readers = pool_of(random.between(1, 4));
  const Matrix plain = random_matrix(random, *writers, format, random.between(1, 140), random_columns(random, format));
  const Weight& weight = *plain.weight;
  const uint64_t bytes = taken(packed_bytes(format, weight.rows, weight.columns)),
                 room = pages(bytes) + kSmallPage * static_cast<uint64_t>(random.between(0, 2));
  const uint64_t begin = kSmallPage * static_cast<uint64_t>(random.between(0, 3)), end = begin + room,
                 total = end + kSmallPage * static_cast<uint64_t>(random.between(0, 2));
  const uint64_t offset =
      begin + random.bits() % ((room - bytes) / WeightMemory::kAlignment + 1) * WeightMemory::kAlignment;
  const File file, packed;
  file.grow(total);
  file.seal();
  const uint64_t written = taken(write_packed(*writers, weight, packed.fd, 0));
  const auto memory = taken(WeightMemory::map(file.fd, total)), others = taken(WeightMemory::map(file.fd, total));
  const PackedWeight place{0, {format, weight.rows, weight.columns, NumaPolicy::shard, {memory, offset}}};
  require(!read_packed(*writers, packed.fd, {place}), "nothing is written before it is opened");
  require(!memory->open(begin, end), "some pages are opened");

  const bool encoded = format == Format::f32 && random.one_in(2);
  if (random.one_in(2)) {  // what a process that ended has left
    std::memset(taken(memory->at(offset, bytes, true)), 0x5a, bytes);
    require(!memory->clear(begin, end), "pages are zeros again");
  }
  if (encoded) taken(weight_from_rows(*writers, plain.values.data(), place.shape));
  else
    require(taken(read_packed(*writers, packed.fd, {place})).front().checksum == written,
            "a packed file has what was written");
  require(!memory->close(), "and closed");
  require(!read_packed(*writers, packed.fd, {place}), "nothing is written after that");

  require(!others->enter(*readers, begin, end) && others->enter(*readers, begin, total + kSmallPage),
          "pages that are there are entered");
  const auto attached =
      taken(attach_weight(readers->size(), {format, weight.rows, weight.columns, NumaPolicy::shard, {others, offset}}));
  require(attached->pieces.size() == static_cast<size_t>(readers->size()) && attached->bytes() == bytes,
          "a piece for every thread");
  require(same_rows(weight, *attached), std::string("what was put there is read, ") + format_name(format));
  require(same_products(random, weight, *writers, *attached, *readers),
          std::string("a shared matrix multiplies as a private one, ") + format_name(format));
  require(taken(write_packed(*readers, *attached, packed.fd, 0)) == written, "and is written as such");
}

void check_refusals(Random& random) {
  const File file;
  const uint64_t total = kSmallPage * static_cast<uint64_t>(random.between(2, 5));
  file.grow(total);
  require(!WeightMemory::map(file.fd, total) && !SharedWords::map(file.fd, 4), "memory that may shrink is refused");
  file.seal();
  require(!WeightMemory::map(file.fd, total + 1) && !WeightMemory::map(file.fd, 0) &&
              !WeightMemory::map(file.fd, UINT64_MAX),
          "sizes that are none");
  const auto memory = taken(WeightMemory::map(file.fd, total));
  require(memory->open(0, total + kSmallPage) && memory->open(kSmallPage, kSmallPage) && memory->open(1, kSmallPage) &&
              memory->open(kSmallPage, 0),
          "ranges that are none");
  require(!memory->open(kSmallPage, total), "a range that is one");
  require(memory->clear(0, kSmallPage).has_value(), "what is not open is not cleared");
  for (const uint64_t offset :
       {uint64_t(0), kSmallPage - WeightMemory::kAlignment, total, UINT64_MAX - 127, uint64_t(kSmallPage + 1)}) {
    require(!memory->at(offset, 256, true), "a place outside of what is open, or on no boundary");
  }
  require(!memory->at(total - 128, 129, false) && !memory->at(128, UINT64_MAX, false), "a place that ends outside");
  require(!attach_weight(2, {Format::f32, 33, 1 << 20, NumaPolicy::shard, {memory, 0}}) &&
              !attach_weight(0, {Format::f32, 1, 1, NumaPolicy::shard, {memory, 0}}),
          "a matrix that is too large, or nobody's");
  const auto words = taken(SharedWords::map(file.fd, 16));
  const int64_t i = random.between(0, 15);
  require(words->exchange(i, 0, 7) == 0 && words->exchange(i, 0, 8) == 7 && words->load(i) == 7,
          "a word is written once");
  words->store(i, 9);
  require(taken(SharedWords::map(file.fd, 16))->load(i) == 9, "and read by others");
}

}  // namespace

void check_shared_weights(Random& random) {
  for (const Format format : kFormats) check_format(random, format);
  check_refusals(random);
}

}  // namespace homenode::checks
