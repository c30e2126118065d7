// The product of one packed group of 32 weight rows with some activation rows, cut so that weights and activations stay
// in the caches.
#pragma once
#include <cstdint>

#include "linear/rows.h"
#include "quant/pack.h"

namespace homenode {

inline int64_t ceiling_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens multiplied with one group before the next: what GroupProduct::multiply takes at most.
constexpr int64_t kTokensAtOnce = 256;

// Tokens of a block, with which all the groups of a piece are multiplied before the next: about equal blocks whose
// activations stay in the second-level cache, or kTokensAtOnce where too few would.
int64_t block_tokens(const LinearTable&, int64_t tokens, int64_t row_bytes);

// Groups multiplied together at most.
constexpr int64_t kGroupsAtOnce = 8;

// Where the outputs of some tokens will be written: `bytes` from `at` on for the first of them, and `stride` further
// for each other; of several groups, `group_bytes` for each.
struct Destination {
  const void* at;
  size_t stride, bytes, group_bytes;
};

// One weight's groups times one step's activations, as one thread computes them.
class GroupProduct {
 public:
  GroupProduct(const Weight&, const ActivationRows&, const LinearTable&);

  // sums[group][token][32] = tokens first .. first + n - 1 (n at most kTokensAtOnce) times the `groups` groups from
  // `packed` on; kSpareRows more may be overwritten. Meanwhile the lines of the destination, if any, come to this
  // thread.
  void multiply(const uint8_t* packed, int64_t groups, int64_t first, int64_t n, float* sums,
                const Destination& to = {}) const;
  // With how many groups n tokens are best multiplied at once: 1 .. kGroupsAtOnce.
  int64_t groups_at_once(int64_t n) const;

  int64_t group_bytes() const { return group_bytes_; }
  const ActivationRows& rows() const { return rows_; }

 private:
  // Some columns of a group and of the rows from a token on.
  struct Slice {
    const uint8_t *weights, *row;
    int64_t columns, bytes;  // bytes: of the weights
  };
  Slice slice(const uint8_t* packed, int64_t first, int64_t column, int64_t columns) const;
  void multiply_one(const uint8_t* packed, int64_t first, int64_t n, float* sums, const Destination& to) const;
  int64_t prefetch_bytes(int64_t tokens) const { return prefetch_bytes_[tokens >= 4]; }
  void multiply_floats(const uint8_t* packed, int64_t groups, int64_t first, int64_t n, float* sums,
                       const Destination& to) const;
  void multiply_coded(const uint8_t* packed, int64_t first, int64_t n, float* sums) const;
  void multiply_panels(const uint8_t* packed, int64_t first, int64_t n, float* sums, const Destination& to) const;

  const Tiles* floats_ = nullptr;
  const CodedTiles* coded_ = nullptr;
  const PanelTiles* panels_ = nullptr;  // null where there are none
  PackedStep step_;
  ActivationRows rows_;
  int64_t group_bytes_, prefetch_bytes_[2];  // with fewer than four tokens, and with four and more
  bool prefetch_into_l2_;
  int64_t slice_bytes_, block_bytes_;
};

}  // namespace homenode
