/*
 * See calls_table.h. Calls that cannot fail, that are never checked for a reason (close, munmap), or whose
 * failure a library answers with abort() are not in the table.
 */
#include "tests/fault/calls_table.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#define KIND(name, ...)                                                                                      \
    {                                                                                                        \
        SYS_##name, #name,                                                                                   \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

const struct call_kind calls_table[] = {
    KIND(accept4, EMFILE, ENFILE, ENOMEM, ECONNABORTED, EINTR),
    KIND(bind, EADDRINUSE, ENOMEM),
    KIND(clone, EAGAIN, ENOMEM),
    KIND(clone3, EAGAIN, ENOMEM),
    KIND(connect, ECONNREFUSED, EAGAIN, EINTR),
    KIND(epoll_create1, EMFILE, ENOMEM),
    KIND(epoll_ctl, ENOMEM, ENOSPC),
    KIND(epoll_pwait, EINTR),
    KIND(eventfd2, EMFILE, ENFILE, ENOMEM),
    KIND(faccessat, EIO),
    KIND(fallocate, ENOSPC, EINTR, EOPNOTSUPP),
    KIND(fchmod, EPERM, EIO),
    KIND(fcntl, EMFILE, ENOMEM),
    KIND(flock, EINTR, ENOLCK),
    KIND(fstat, EIO, ENOMEM),
    KIND(fsync, EIO, ENOSPC, EDQUOT),
    KIND(ftruncate, EINTR, EIO, ENOSPC),
    KIND(getdents64, EIO, ENOMEM),
    KIND(getrandom, EINTR),
    KIND(getsockname, ENOBUFS),
    KIND(getsockopt, ENOMEM),
    KIND(ioctl, EINVAL),
    KIND(linkat, ENOSPC, EIO, EROFS, EDQUOT),
    KIND(listen, EADDRINUSE),
    KIND(lseek, EIO),
    KIND(madvise, ENOMEM),
    KIND(memfd_create, EMFILE, ENFILE, ENOMEM),
    KIND(mkdirat, ENOSPC, EROFS),
    KIND(mmap, ENOMEM),
    KIND(mprotect, ENOMEM),
    KIND(mremap, ENOMEM),
    KIND(newfstatat, EIO, ENOMEM),
    KIND(openat, EMFILE, ENFILE, ENOMEM, EACCES, EIO, ENOSPC),
    KIND(pidfd_open, EMFILE, ENOMEM),
    KIND(ppoll, EINTR, ENOMEM),
    KIND(pread64, EINTR, EIO, CALL_HALF),
    KIND(prlimit64, EPERM),
    KIND(pwrite64, EINTR, EIO, ENOSPC, CALL_HALF),
    KIND(read, EINTR, EIO, CALL_HALF),
    KIND(recvfrom, EINTR, ENOMEM, ECONNRESET),
    KIND(recvmsg, EINTR, ENOMEM, ECONNRESET),
    KIND(renameat2, ENOSPC, EIO, EROFS),
    KIND(sendmsg, EINTR, ENOBUFS, ENOMEM, EPIPE, ETOOMANYREFS, EAGAIN),
    KIND(sendto, EINTR, ENOBUFS, ENOMEM, EPIPE, EAGAIN),
    KIND(setsockopt, ENOMEM),
    KIND(signalfd4, EMFILE, ENOMEM),
    KIND(socket, EMFILE, ENFILE, ENOMEM),
    KIND(socketpair, EMFILE, ENFILE, ENOMEM),
    KIND(timerfd_create, EMFILE, ENOMEM),
    KIND(timerfd_settime, ENOMEM),
    KIND(unlinkat, EIO, EROFS),
    KIND(write, EINTR, EIO, ENOSPC, CALL_HALF),
/* the older names of some of these */
#ifdef SYS_open
    KIND(access, EIO),
    KIND(epoll_wait, EINTR),
    KIND(lstat, EIO, ENOMEM),
    KIND(mkdir, ENOSPC, EROFS),
    KIND(open, EMFILE, ENFILE, ENOMEM, EACCES, EIO, ENOSPC),
    KIND(poll, EINTR, ENOMEM),
    KIND(rename, ENOSPC, EIO, EROFS),
    KIND(stat, EIO, ENOMEM),
    KIND(unlink, EIO, EROFS),
#endif
};

const size_t calls_table_n = sizeof(calls_table) / sizeof(calls_table[0]);

static const struct call_kind seal = {SYS_fcntl, "fcntl(F_ADD_SEALS)", {EPERM, EBUSY}};

const struct call_kind *calls_find(long nr, const uint64_t args[6])
{
    if (nr == SYS_fcntl && args[1] == F_ADD_SEALS)
        return &seal;
    /* reading and writing of flags cannot fail; only an addition to an epoll set needs memory */
    if (nr == SYS_fcntl && args[1] != F_DUPFD_CLOEXEC && args[1] != F_DUPFD)
        return NULL;
    if (nr == SYS_epoll_ctl && args[1] != EPOLL_CTL_ADD)
        return NULL;
    for (size_t i = 0; i < calls_table_n; i++)
        if (calls_table[i].nr == nr)
            return &calls_table[i];
    return NULL;
}
