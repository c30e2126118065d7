#include "host/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace homenode {

Error system_error(const std::string& call) {
  const int code = errno;
  return Error{Fault::host, code, call + " failed: " + std::strerror(code)};
}

std::optional<Error> read_bytes(int fd, uint64_t at, size_t bytes, uint8_t* out) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, bytes, off_t(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("pread of " + std::to_string(bytes) + " bytes at offset " + std::to_string(at));
    if (got == 0) {
      return Error{Fault::user, 0,
                   "the file ends at offset " + std::to_string(at) + ", inside a matrix: " + std::to_string(bytes) +
                       " more bytes were wanted"};
    }
    at += uint64_t(got);
    out += got;
    bytes -= size_t(got);
  }
  return std::nullopt;
}

std::optional<Error> write_bytes(int fd, uint64_t at, size_t bytes, const uint8_t* from) {
  while (bytes > 0) {
    const ssize_t put = pwrite(fd, from, bytes, off_t(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error("pwrite of " + std::to_string(bytes) + " bytes at offset " + std::to_string(at));
    at += uint64_t(put);
    from += put;
    bytes -= size_t(put);
  }
  return std::nullopt;
}

std::optional<Error> check_extent(int fd, uint64_t at, uint64_t bytes, const std::string& what) {
  uint64_t end;
  if (__builtin_add_overflow(at, bytes, &end) || end > INT64_MAX) {
    return Error{Fault::user, 0, what + " at offset " + std::to_string(at) + " ends beyond any file"};
  }
  struct stat status;
  if (fstat(fd, &status)) return system_error("fstat of file descriptor " + std::to_string(fd));
  if (S_ISREG(status.st_mode) && end > uint64_t(status.st_size)) {
    return Error{Fault::user, 0,
                 "the file has " + std::to_string(status.st_size) + " bytes; " + what + " at offset " +
                     std::to_string(at) + " ends at " + std::to_string(end)};
  }
  return std::nullopt;
}

}  // namespace homenode
