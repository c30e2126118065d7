// A fast sum over bytes that tells damage; no protection against an adversary.
//
// The bytes are eight columns of 64-bit words, of each of which the upper half is folded onto the lower one (else the
// highest bits of two words could change unseen). Of every column, over 64 words at a time, two sums are kept: the
// words' own, and that of all the sums on the way, which tells where a word stood. Each sum is then one link of a chain
// of steps that can be undone, so a single changed word always changes the result. For a word only four cheap
// operations are made, on several words at once: summing costs a fraction of reading.
//
// A sum of the checksums of blocks, each with its own index, is that of all of them, whoever computed which.
#pragma once
#include <cstddef>
#include <cstdint>

namespace homenode {

uint64_t block_checksum(const uint8_t* bytes, size_t count, uint64_t index);

// The same as any processor can compute it; the other takes wider registers where there are.
uint64_t plain_block_checksum(const uint8_t* bytes, size_t count, uint64_t index);

}  // namespace homenode
