// Whole reads and writes at an offset of an open file: interrupted and short ones go on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace homenode {

// The failure of the last system call.
Error system_error(const std::string& call);

// Nothing, or why not all bytes came; a file that ends before is the user's fault and named with the offset.
std::optional<Error> read_bytes(int fd, uint64_t at, size_t bytes, uint8_t* out);
std::optional<Error> write_bytes(int fd, uint64_t at, size_t bytes, const uint8_t* from);

// A regular file must hold `bytes` bytes at `at`, or there is an Error that names `what` is there; others are found out
// when they are read.
std::optional<Error> check_extent(int fd, uint64_t at, uint64_t bytes, const std::string& what);

}  // namespace homenode
