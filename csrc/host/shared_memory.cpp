#include "host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "host/file.h"

namespace homenode {
namespace {

// linux/memfd.h, linux/fcntl.h, asm-generic/mman-common.h: newer than some C libraries.
constexpr unsigned kCloseOnExec = 1, kAllowSealing = 2, kNoExecution = 8;
constexpr int kAddSeals = 1033, kGetSeals = 1034;
constexpr int kSealSeal = 1, kSealShrink = 2, kSealGrow = 4, kSealWrite = 8, kSealFutureWrite = 16;
constexpr int kPopulateWrite = 23;

int create_file(const char* name) {
  const auto create = [name](unsigned flags) {
    return static_cast<int>(syscall(SYS_memfd_create, name, kCloseOnExec | kAllowSealing | flags));
  };
  const int fd = create(kNoExecution);
  return fd < 0 && errno == EINVAL ? create(0) : fd;
}

// On a boundary of huge pages in memory as in the file: the kernel puts none elsewhere.
Result<Pages> map_file(int fd, size_t bytes, int protection, size_t offset = 0) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kSmallPage,
               reserved = bytes + (alignment == kHugePage ? kHugePage : 0);
  void* base = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return system_error("mmap of " + std::to_string(reserved) + " bytes");
  Pages pages;
  pages.owner = std::shared_ptr<void>(base, [reserved](void* p) {
    permit(static_cast<std::byte*>(p), reserved);  // the next mapping there is another's
    munmap(p, reserved);
  });
  void* wanted = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(base) + alignment - 1) / alignment * alignment);
  if (mmap(wanted, bytes, protection, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    return system_error("mmap of " + std::to_string(bytes) + " bytes of a memfd");
  }
  pages.data = static_cast<std::byte*>(wanted);
  pages.bytes = bytes;
  pages.huge = alignment == kHugePage && madvise(wanted, bytes, MADV_HUGEPAGE) == 0;
  return pages;
}

std::optional<Error> seal(int fd, Sharing sharing) {
  const int size = kSealShrink | kSealGrow;
  if (sharing == Sharing::readable && fcntl(fd, kAddSeals, size | kSealFutureWrite) && errno != EINVAL)
    return system_error("sealing a memfd");
  if (fcntl(fd, kAddSeals, size | kSealSeal)) return system_error("sealing a memfd");
  return std::nullopt;
}

}  // namespace

Result<SharedFile> create_shared(size_t bytes, const char* name, Sharing sharing) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kSmallPage;
  if (!bytes || bytes > SIZE_MAX / 4)
    return Error{Fault::user, 0,
                 "shared memory of " + std::to_string(bytes) + " bytes; wanted 1 to a quarter of an address space"};
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  const int opened = create_file(name);
  if (opened < 0) return system_error("memfd_create");
  SharedFile file;
  file.fd = std::shared_ptr<const int>(new int(opened), [](const int* fd) {
    close(*fd);
    delete fd;
  });
  if (ftruncate(opened, static_cast<off_t>(size)))
    return system_error("a memfd of " + std::to_string(size) + " bytes: ftruncate");
  auto pages = map_file(opened, size, PROT_READ | PROT_WRITE);
  if (!pages) return pages.error();
  if (auto error = seal(opened, sharing)) return std::move(*error);
  file.pages = std::move(pages.value());
  return file;
}

Result<Pages> map_shared(int fd, size_t bytes, bool writable, size_t offset) {
  struct stat found;
  if (fstat(fd, &found)) return system_error("fstat of shared memory");
  const int seals = fcntl(fd, kGetSeals);
  if (seals < 0 || !(seals & kSealShrink))
    return Error{Fault::user, 0, "memory that is not sealed against shrinking; wanted a memfd with F_SEAL_SHRINK"};
  const auto size = static_cast<uint64_t>(std::max<off_t>(found.st_size, 0));
  if (!bytes || offset > size || bytes > size - offset) {
    return Error{Fault::user, 0,
                 "shared memory of " + std::to_string(found.st_size) + " bytes; wanted at least " +
                     std::to_string(bytes ? bytes : 1) +
                     (offset ? " from byte " + std::to_string(offset) + " on" : "")};
  }
  if (offset % kHugePage)
    return Error{
        Fault::user, 0,
        "shared memory from byte " + std::to_string(offset) + " on; wanted a multiple of " + std::to_string(kHugePage)};
  if (writable && seals & (kSealWrite | kSealFutureWrite))
    return Error{Fault::user, 0, "shared memory that is sealed for reading only; wanted to write it"};
  return map_file(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, offset);
}

std::optional<Error> populate(const Pages& pages) {
  if (!madvise(pages.data, pages.bytes, kPopulateWrite)) return std::nullopt;
  // Linux before 5.14 does not know this advice; a filter of system calls may refuse all of it.
  if (errno != EINVAL && errno != EPERM && errno != EACCES && errno != ENOSYS)
    return system_error("taking " + std::to_string(pages.bytes) + " bytes of memory");
  for (size_t at = 0; at < pages.bytes; at += kSmallPage)
    *reinterpret_cast<volatile std::byte*>(pages.data + at) = std::byte{};
  return std::nullopt;
}

}  // namespace homenode
