// Packed weights in files, as they are in memory: groups in order, so that a pool of any size finds its rows.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "weights/weight.h"

namespace homenode {

// Bytes of a packed matrix; an Error for a format or a shape that cannot be packed.
Result<uint64_t> packed_bytes(Format, int64_t rows, int64_t columns);

// The same number as long as rows are encoded and packed in the same way: the checksum of known rows in every format.
uint64_t packing_fingerprint();

// The checksum of the first `bytes` bytes of a file, or of all where it ends before.
Result<uint64_t> head_checksum(int fd, uint64_t bytes);

// Writes the pieces of a weight, each by the thread that owns it. The result is the checksum of the matrix.
Result<uint64_t> write_packed(ThreadPool&, const Weight&, int fd, uint64_t offset);

struct ReadWeight {
  std::shared_ptr<Weight> weight;
  uint64_t checksum;  // of what was read
};
// A matrix that write_packed wrote at `offset` of a file.
struct PackedWeight {
  uint64_t offset;
  WeightShape shape;
};
// Reads what write_packed wrote, straight into place: every thread its own rows of all of them, without waiting for the
// others in between.
Result<std::vector<ReadWeight>> read_packed(ThreadPool&, int fd, const std::vector<PackedWeight>&,
                                            Arena* arena = nullptr);

}  // namespace homenode
