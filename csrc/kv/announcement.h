// What an engine says of pages that another one may read: where they are, under which epochs, and what they contain; as
// a record of a lane.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host/epoch_words.h"
#include "kernels/kernels.h"
#include "kv/memory.h"

namespace homenode {

struct Announcement {
  uint64_t pull_id, after;  // after: so many frames, which went another way
  uint32_t first;           // page of the hand-over
  bool last;                // it has no more
  std::array<std::byte, 16> buffer;
  std::vector<int32_t> pages;       // of the buffer
  std::vector<uint64_t> epochs;     // theirs
  std::vector<std::byte> digests;   // as many bytes for each
};

// Nothing for more pages than a record holds.
std::optional<std::vector<std::byte>> record_of(const Announcement&);
// Nothing for what is no announcement: sizes that do not fit each other, no pages, page numbers that are none.
std::optional<Announcement> announcement_of(std::span<const std::byte> record);

// Reads the pages of an announcement that says no epochs and digests yet, adds these, and makes a record of it.
// `tokens`: as below.
Result<std::optional<std::vector<std::byte>>> announce_pages(Announcement&, const KvMemory&, const EpochWords&,
                                                             int64_t tokens, const Kernels&);

// Pages that a reader can take as soon as they are announced: pages `first` and so on of `pages`, of `tokens` from the
// first on, as many as there are `blocks` for (own ones, -1: they are read where they are). None of them may be in
// `seen`.
struct KvExpected {
  struct Source {
    std::array<std::byte, 16> buffer;
    std::shared_ptr<KvMemory> memory;
    std::shared_ptr<EpochWords> words;
  };
  uint32_t first, pages, digest_bytes;
  int64_t tokens;
  std::vector<int32_t> blocks;
  std::vector<int32_t> seen;  // in order
  std::vector<Source> sources;
  std::shared_ptr<KvMemory> own;

  // One that looks like what is expected, and is not.
  Announcement rehearsal(uint64_t pull_id) const;
  // Where these are; nothing for an announcement of others, of too many, or of one page for two places.
  const Source* source_of(const Announcement&) const;
};

// As `take_pages`, of what was expected.
bool take_expected(const Announcement&, const KvExpected&, const Kernels&);

// Reads the pages where they are; those with a block of the own memory (not -1) are copied there. Whether all of them
// were to the end what was announced; false, too, for pages and blocks that are not there. `tokens`: of these pages, a
// page has as many as a block of either memory.
bool take_pages(const Announcement&, const KvMemory& source, const EpochWords&, KvMemory& own,
                std::span<const int32_t> blocks, int64_t tokens, const Kernels&);

}  // namespace homenode
