/* Stands in for libhccl.so and libascendcl.so: the functions that channel hccl calls, over sockets between processes and
 * in memory of the host. Compiled twice, with STREAMS defined for libascendcl.so.
 *
 * As on an NPU: its addresses are none of the host's, what is sent or received happens when its stream is waited for,
 * and a wait ends at its deadline. A thread that has not opened the NPU gets errors. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ROOT_BYTES = 4108, WRONG = 107002, LATE = 507046, LOST = 507899, UINT8 = 7 };
#define FAR ((uint64_t)1 << 62) /* added to every address of the NPU */

typedef struct stream {
    int (*act)(void *comm, void *near, uint64_t count, int sends, int64_t until);
    void *comm, *near;
    uint64_t count;
    int sends;
} stream;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *near_of(void *far) { return (uint64_t)far >= FAR ? (void *)((uint64_t)far - FAR) : NULL; }

#ifdef STREAMS
static int initialised;
static __thread int opened;

int aclInit(const char *config) {
    (void)config;
    return initialised++ ? 100002 : 0;
}
int aclrtSetDevice(int32_t device) {
    const char *count = getenv("STAND_IN_NPUS");
    if (device < 0 || device >= (count ? atoi(count) : 8)) return WRONG;
    opened = 1;
    return 0;
}
int aclrtMalloc(void **out, size_t size, int policy) {
    (void)policy;
    if (!opened || !initialised) return WRONG;
    void *near = malloc(size);
    if (!near) return 207001;
    *out = (void *)((uint64_t)near + FAR);
    return 0;
}
int aclrtFree(void *far) {
    free(near_of(far));
    return 0;
}
int aclrtMemcpy(void *to, size_t room, const void *from, size_t count, int kind) {
    if (!opened || count > room) return WRONG;
    int up = kind == 1;
    void *far = up ? to : (void *)from;
    void *near = near_of(far);
    if (!near || (kind != 1 && kind != 2) || near_of(up ? (void *)from : to)) return WRONG;
    memcpy(up ? near : to, up ? from : near, count);
    return 0;
}
int aclrtCreateStream(void **out) {
    if (!opened) return WRONG;
    *out = calloc(1, sizeof(stream));
    return *out ? 0 : 207001;
}
int aclrtDestroyStream(void *s) {
    free(s);
    return 0;
}
int aclrtSynchronizeStreamWithTimeout(void *given, int32_t ms) {
    stream *s = given;
    if (!opened || ms <= 0) return WRONG;
    if (!s->act) return 0;
    int code = s->act(s->comm, s->near, s->count, s->sends, now_ms() + ms);
    s->act = NULL;
    return code;
}
#else
typedef struct comm {
    int fd;
    uint32_t rank;
} comm;
/* What a root holds: where rank 0 listens, and in which process and as which descriptor. */
typedef struct root {
    char name[64];
    int fd;
    pid_t pid;
} root;

static socklen_t address_of(const root *r, struct sockaddr_un *a) {
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    strncpy(a->sun_path + 1, r->name, sizeof r->name - 1);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(r->name));
}
static int await(int fd, short what, int64_t until) {
    int64_t left = until - now_ms();
    struct pollfd p = {fd, what, 0};
    return left > 0 && poll(&p, 1, (int)left) == 1;
}
int HcclGetRootInfo(char *out) {
    static int count;
    root r = {.pid = getpid()};
    struct sockaddr_un a;
    snprintf(r.name, sizeof r.name, "hccl-stand-in-%d-%d", getpid(), __sync_add_and_fetch(&count, 1));
    socklen_t size = address_of(&r, &a);
    r.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (r.fd < 0 || bind(r.fd, (struct sockaddr *)&a, size) || listen(r.fd, 1)) return 9;
    memset(out, 0, ROOT_BYTES);
    memcpy(out, &r, sizeof r);
    return 0;
}
int HcclCommInitRootInfo(uint32_t ranks, const char *given, uint32_t rank, void **out) {
    root r;
    struct sockaddr_un a;
    const char *limit = getenv("HCCL_CONNECT_TIMEOUT");
    int64_t until = now_ms() + 1000 * (limit ? atoi(limit) : 120);
    memcpy(&r, given, sizeof r);
    r.name[sizeof r.name - 1] = 0;
    socklen_t size = address_of(&r, &a);
    if (ranks != 2 || rank > 1 || strncmp(r.name, "hccl-stand-in-", 14)) return 1;
    int fd = -1;
    if (rank == 0) {
        if (r.pid != getpid()) return 1;
        if (await(r.fd, POLLIN, until)) fd = accept4(r.fd, NULL, NULL, SOCK_CLOEXEC);
        close(r.fd);
    } else {
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, size)) {
            close(fd);
            fd = -1;
        }
    }
    comm *c = fd < 0 ? NULL : malloc(sizeof *c);
    if (!c) return 4;
    *c = (comm){fd, rank};
    *out = c;
    return 0;
}
static int act(void *given, void *near, uint64_t count, int sends, int64_t until) {
    comm *c = given;
    char *at = near;
    while (count) {
        if (!await(c->fd, sends ? POLLOUT : POLLIN, until)) return LATE;
        ssize_t step = sends ? send(c->fd, at, count, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(c->fd, at, count, MSG_DONTWAIT);
        if (step < 0 && errno == EAGAIN) continue;
        if (step <= 0) return LOST;
        at += step;
        count -= (uint64_t)step;
    }
    return 0;
}
static int queue(void *far, uint64_t count, int type, uint32_t other, void *given, void *on, int sends) {
    comm *c = given;
    stream *s = on;
    void *near = near_of(far);
    if (!c || !s || !near || type != UINT8 || other != 1 - c->rank || s->act) return 1;
    *s = (stream){act, c, near, count, sends};
    return 0;
}
int HcclSend(void *buf, uint64_t count, int type, uint32_t to, void *c, void *s) {
    return queue(buf, count, type, to, c, s, 1);
}
int HcclRecv(void *buf, uint64_t count, int type, uint32_t from, void *c, void *s) {
    return queue(buf, count, type, from, c, s, 0);
}
int HcclCommDestroy(void *given) {
    comm *c = given;
    close(c->fd);
    free(c);
    return 0;
}
#endif
