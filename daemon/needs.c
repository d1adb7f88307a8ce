/* System calls that kvcobrad cannot serve without. See needs_check() in start_check.h. */
#include "daemon/start_check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/memory_file.h"
#include "daemon/config/config.h"
#include "daemon/store/journal.h"

static int needs_fail(struct errmsg *e, int r, const char *call, const char *purpose)
{
    return fail(
        e, r,
        "this system does not let kvcobrad call %s, %s: %s. See its filters of system calls and its limits",
        call, purpose, strerror(-r));
}

static int needs_check_processes(struct errmsg *e)
{
    _cleanup_(closep) int fd = (int) syscall(SYS_pidfd_open, getpid(), 0);

    return fd < 0 ? needs_fail(e, -errno, "pidfd_open(2)", "without which no client can be served") : 0;
}

static int needs_check_mapping(void *p, size_t bytes, struct errmsg *e)
{
    static const struct {
        int advice;
        const char *name;
    } advice[] = {
        {MADV_DONTFORK, "madvise(2) with MADV_DONTFORK"},
        {MADV_DONTDUMP, "madvise(2) with MADV_DONTDUMP"},
        {MADV_REMOVE, "madvise(2) with MADV_REMOVE"},
    };

    for (size_t i = 0; i < sizeof(advice) / sizeof(advice[0]); i++)
        if (madvise(p, bytes, advice[i].advice) < 0)
            return needs_fail(e, -errno, advice[i].name, "which pools of memory need");
    return 0;
}

static int needs_check_memory(struct errmsg *e)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-check");
    const size_t bytes = (size_t) sysconf(_SC_PAGESIZE);
    void *p;
    int r;

    if (fd < 0)
        return needs_fail(e, fd, "memfd_create(2)", "which shared memory needs");
    if (fallocate(fd, 0, 0, (off_t) bytes) < 0)
        return needs_fail(e, -errno, "fallocate(2)", "which pools of memory need");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return needs_fail(e, -errno, "fcntl(2) with F_ADD_SEALS", "which shared memory needs");

    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return needs_fail(e, -errno, "mmap(2)", "which shared memory needs");

    r = needs_check_mapping(p, bytes, e);
    (void) munmap(p, bytes);
    return r;
}

static uint64_t needs_largest_object(const struct config *c)
{
    const uint64_t sizes[] = {journal_object_bytes(), c->extent_bytes, c->arena_bytes,
                              c->cluster_socket ? c->cluster_memory_bytes : 0};
    uint64_t most = 0;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static int needs_check_file_size(const struct config *c, struct errmsg *e)
{
    uint64_t need = needs_largest_object(c);
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 0;

    limit.rlim_cur = limit.rlim_max; /* the soft limit is for programs that do not know what they write */
    (void) setrlimit(RLIMIT_FSIZE, &limit);
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= need)
        return 0;
    return fail(e, -EFBIG,
                "the limit of file sizes is %" PRIu64
                " bytes, and the largest memory object of kvcobrad has %" PRIu64
                ": raise it (LimitFSIZE=, ulimit -f)",
                (uint64_t) limit.rlim_max, need);
}

int needs_check(const struct config *c, struct errmsg *e)
{
    int r = needs_check_file_size(c, e);

    if (r == 0)
        r = needs_check_processes(e);
    return r == 0 ? needs_check_memory(e) : r;
}
