// Preloaded into a test's child process: the n-th call of a kind fails there, as the kernel and the allocator can fail
// it. The child says by the functions at the end which kind, which n, and how many calls there were.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <new>

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_memalign(size_t, size_t);

namespace {

// `files`: calls for paths below a folder. `core`: memory that the native core asks for, and threads. `large`: pieces
// of memory of anybody's but the tokenizer library's, which is written in Rust and ends the process when it gets none.
enum Kind { kNone, kFiles, kCore, kLarge };

constexpr int kMostDescriptors = 4096, kMostRanges = 16;

std::atomic<int> kind{kNone};
std::atomic<long> calls{0};
long failing = 0;
size_t smallest = 0;  // pieces of memory from so many bytes on count
int error_number = 0;
bool onwards = false;
char folder[4096];
char last_call[128];
std::atomic<bool> watched[kMostDescriptors];

struct Range {
  uintptr_t begin, end;
};
struct Modules {
  Range ranges[kMostRanges];
  int count = 0;
  const char* names[2];

  bool hold(const void* address) const {
    for (int i = 0; i < count; ++i) {
      if (reinterpret_cast<uintptr_t>(address) - ranges[i].begin < ranges[i].end - ranges[i].begin) return true;
    }
    return false;
  }
};
Modules core{{}, 0, {"_native", "libstdc++"}}, rust{{}, 0, {"tokenizers", "tokenizers"}};

int add_ranges(dl_phdr_info* info, size_t, void* data) {
  auto* modules = static_cast<Modules*>(data);
  if (!strstr(info->dlpi_name, modules->names[0]) && !strstr(info->dlpi_name, modules->names[1])) return 0;
  for (int i = 0; i < info->dlpi_phnum && modules->count < kMostRanges; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || !(header.p_flags & PF_X)) continue;
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    modules->ranges[modules->count++] = {begin, begin + header.p_memsz};
  }
  return 0;
}

// Whether this call, one of the kind, is to fail; errno is set then.
bool fails(const char* name) {
  const long number = calls.fetch_add(1) + 1;
  if (number != failing && !(onwards && number > failing)) return false;
  if (number == failing) strncpy(last_call, name, sizeof last_call - 1);
  errno = error_number;
  return true;
}

bool below(const char* path) { return kind.load() == kFiles && path && !strncmp(path, folder, strlen(folder)); }
bool is_watched(int fd) { return kind.load() == kFiles && fd >= 0 && fd < kMostDescriptors && watched[fd].load(); }
bool of_core(const void* caller) { return kind.load() == kCore && core.hold(caller); }
bool is_large(size_t bytes, const void* caller) {
  return kind.load() == kLarge && bytes >= smallest && !rust.hold(caller);
}

int watch(int fd, bool wanted) {
  if (fd >= 0 && fd < kMostDescriptors) watched[fd].store(wanted);
  return fd;
}

template <class F>
F next(F, const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

void* new_memory(size_t bytes, const void* caller, bool throwing) {
  const bool failed = of_core(caller) && bytes >= smallest && fails("operator new");
  void* memory = failed ? nullptr : __libc_malloc(bytes ? bytes : 1);
  if (!memory && throwing) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define CALLER __builtin_return_address(0)
#define NEXT(name) static const auto real = next(&::name, #name)

extern "C" {

#define OPEN(name)                                      \
  int name(const char* path, int flags, ...) {          \
    NEXT(name);                                         \
    va_list list;                                       \
    va_start(list, flags);                              \
    const auto mode = va_arg(list, mode_t);             \
    va_end(list);                                       \
    const bool mine = below(path);                      \
    if (mine && fails(#name)) return -1;                \
    return watch(real(path, flags, mode), mine);        \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                       \
  int name(int at, const char* path, int flags, ...) {     \
    NEXT(name);                                            \
    va_list list;                                          \
    va_start(list, flags);                                 \
    const auto mode = va_arg(list, mode_t);                \
    va_end(list);                                          \
    const bool mine = below(path) || is_watched(at);       \
    if (mine && fails(#name)) return -1;                   \
    return watch(real(at, path, flags, mode), mine);       \
  }
OPENAT(openat)
OPENAT(openat64)

#define ON_PATH(name, result, parameters, arguments, failure) \
  result name parameters {                                    \
    NEXT(name);                                               \
    if (below(path) && fails(#name)) return failure;          \
    return real arguments;                                    \
  }
ON_PATH(stat, int, (const char* path, struct stat* out), (path, out), -1)
ON_PATH(stat64, int, (const char* path, struct stat64* out), (path, out), -1)
ON_PATH(lstat, int, (const char* path, struct stat* out), (path, out), -1)
ON_PATH(lstat64, int, (const char* path, struct stat64* out), (path, out), -1)
ON_PATH(fstatat, int, (int at, const char* path, struct stat* out, int flags), (at, path, out, flags), -1)
ON_PATH(fstatat64, int, (int at, const char* path, struct stat64* out, int flags), (at, path, out, flags), -1)
ON_PATH(access, int, (const char* path, int mode), (path, mode), -1)
ON_PATH(readlink, ssize_t, (const char* path, char* out, size_t size), (path, out, size), -1)
ON_PATH(opendir, DIR*, (const char* path), (path), nullptr)
ON_PATH(mkdir, int, (const char* path, mode_t mode), (path, mode), -1)
ON_PATH(unlink, int, (const char* path), (path), -1)
ON_PATH(rename, int, (const char* path, const char* to), (path, to), -1)

#define ON_DESCRIPTOR(name, result, parameters, arguments) \
  result name parameters {                                 \
    NEXT(name);                                            \
    if (is_watched(fd) && fails(#name)) return -1;         \
    return real arguments;                                 \
  }
ON_DESCRIPTOR(read, ssize_t, (int fd, void* to, size_t size), (fd, to, size))
ON_DESCRIPTOR(pread, ssize_t, (int fd, void* to, size_t size, off_t at), (fd, to, size, at))
ON_DESCRIPTOR(pread64, ssize_t, (int fd, void* to, size_t size, off64_t at), (fd, to, size, at))
ON_DESCRIPTOR(preadv, ssize_t, (int fd, const struct iovec* to, int count, off_t at), (fd, to, count, at))
ON_DESCRIPTOR(preadv64, ssize_t, (int fd, const struct iovec* to, int count, off64_t at), (fd, to, count, at))
ON_DESCRIPTOR(write, ssize_t, (int fd, const void* from, size_t size), (fd, from, size))
ON_DESCRIPTOR(pwrite, ssize_t, (int fd, const void* from, size_t size, off_t at), (fd, from, size, at))
ON_DESCRIPTOR(pwrite64, ssize_t, (int fd, const void* from, size_t size, off64_t at), (fd, from, size, at))
ON_DESCRIPTOR(fstat, int, (int fd, struct stat* out), (fd, out))
ON_DESCRIPTOR(fstat64, int, (int fd, struct stat64* out), (fd, out))
ON_DESCRIPTOR(lseek, off_t, (int fd, off_t at, int whence), (fd, at, whence))
ON_DESCRIPTOR(lseek64, off64_t, (int fd, off64_t at, int whence), (fd, at, whence))
ON_DESCRIPTOR(ftruncate, int, (int fd, off_t size), (fd, size))
ON_DESCRIPTOR(ftruncate64, int, (int fd, off64_t size), (fd, size))
ON_DESCRIPTOR(fsync, int, (int fd), (fd))
ON_DESCRIPTOR(fdatasync, int, (int fd), (fd))

#define READDIR(name, entry)                                          \
  entry* name(DIR* of) {                                              \
    NEXT(name);                                                       \
    if (is_watched(dirfd(of)) && fails(#name)) return nullptr;        \
    return real(of);                                                  \
  }
READDIR(readdir, struct dirent)
READDIR(readdir64, struct dirent64)

int close(int fd) {
  NEXT(close);
  watch(fd, false);
  return real(fd);
}

#define MMAP(name, offset)                                                                                \
  void* name(void* where, size_t bytes, int protection, int flags, int fd, offset at) {                   \
    NEXT(name);                                                                                           \
    if ((of_core(CALLER) || is_watched(fd)) && fails(#name)) return MAP_FAILED;                           \
    return real(where, bytes, protection, flags, fd, at);                                                 \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

void* malloc(size_t bytes) { return is_large(bytes, CALLER) && fails("malloc") ? nullptr : __libc_malloc(bytes); }

void* calloc(size_t count, size_t bytes) {
  return is_large(count * bytes, CALLER) && fails("calloc") ? nullptr : __libc_calloc(count, bytes);
}

int posix_memalign(void** out, size_t alignment, size_t bytes) {
  if ((of_core(CALLER) || is_large(bytes, CALLER)) && fails("posix_memalign")) return ENOMEM;
  void* memory = __libc_memalign(alignment, bytes);
  if (!memory) return ENOMEM;
  *out = memory;
  return 0;
}

int pthread_create(pthread_t* out, const pthread_attr_t* attributes, void* (*start)(void*), void* context) {
  NEXT(pthread_create);
  if (kind.load() == kCore && fails("pthread_create")) return EAGAIN;
  return real(out, attributes, start, context);
}

// What the child calls.

void fail_call(int of_kind, long number, int code, int all_after, size_t smallest_bytes, const char* below_folder) {
  kind.store(kNone);
  core.count = rust.count = 0;
  dl_iterate_phdr(add_ranges, &core);
  dl_iterate_phdr(add_ranges, &rust);
  failing = number, error_number = code, onwards = all_after, smallest = smallest_bytes;
  strncpy(folder, below_folder, sizeof folder - 1);
  last_call[0] = 0;
  calls.store(0);
  kind.store(of_kind);
}

long end_failing() {
  kind.store(kNone);
  return calls.load();
}

const char* failed_call() { return last_call; }

}  // extern "C"

void* operator new(size_t bytes) { return new_memory(bytes, CALLER, true); }
void* operator new[](size_t bytes) { return new_memory(bytes, CALLER, true); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return new_memory(bytes, CALLER, false); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return new_memory(bytes, CALLER, false); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  if (of_core(CALLER) && fails("operator new")) throw std::bad_alloc();
  void* memory = __libc_memalign(static_cast<size_t>(alignment), bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete[](void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
void operator delete[](void* memory, size_t) noexcept { free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { free(memory); }
