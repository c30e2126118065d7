// A fast sum over bytes that tells damage; no protection against an adversary.
//
// Eight lanes of 64 bits, each a chain of steps that can be undone: one changed word always changes its lane. A sum of the checksums of blocks,
// each with its own index, is that of all of them, whoever computed which.
#pragma once
#include <cstddef>
#include <cstdint>

namespace homenode {

uint64_t block_checksum(const uint8_t* bytes, size_t count, uint64_t index);

}  // namespace homenode
