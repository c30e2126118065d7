// Pages of one KV memory into blocks of another, with a digest of what was read.
//
// A page is some tokens of a sequence: mostly a block of the source. The target may have blocks of another size, other
// strides, and fewer or more heads: what is copied are tiles. A page's digest for a head is over its tiles in the order
// layers, keys, values, so it does not depend on where they lie, nor on the size of the blocks.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "host/epoch_words.h"
#include "kernels/kernels.h"
#include "kv/memory.h"

namespace homenode {

// Pages first .. first + count - 1 of a sequence of `tokens` positions, each of page_tokens, a multiple of kTileKeys.
struct KvPages {
  const KvMemory* memory;
  std::span<const int32_t> table;  // the sequence's blocks; -1: one that is not there, and with it its pages
  int64_t first, count, tokens, page_tokens;
  int first_head, past_head;
};

struct KvTarget {
  KvMemory* memory;
  std::span<const int32_t> table;
  int first_head;  // where first_head of the source goes
};

// What the source's epoch words must be: `expected` holds for each page what those of its blocks are to be.
struct KvEpochs {
  const EpochWords* words;
  std::span<const uint64_t> expected;
};

// Whether all of a page's blocks are there. Of pages that copy_pages has taken.
bool is_there(const KvPages&, int64_t page);

// For each page and head a digest; 0 for pages that are not there.
using KvDigests = std::vector<uint64_t>;

// Of what a head of a page has added up to.
uint64_t finish_digest(const KvDigest&);

// Reads the pages and, with a target, copies them; with `threads` the pages are divided among so many. Nothing when an
// epoch word is not, or was not to the end, what it must be: what was copied is worth nothing then. Error for tables,
// heads or memories that do not fit.
Result<std::optional<KvDigests>> copy_pages(const KvPages&, const KvTarget*, const KvEpochs*, const Kernels&,
                                            int threads);

}  // namespace homenode
