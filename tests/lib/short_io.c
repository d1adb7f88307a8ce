/* See short_io.h. */
#include "tests/lib/short_io.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/types.h>

struct short_io short_io;

ssize_t __real_read(int fd, void *to, size_t n);
ssize_t __real_write(int fd, const void *from, size_t n);
ssize_t __real_pread64(int fd, void *to, size_t n, off_t at);
ssize_t __real_pwrite64(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_read(int fd, void *to, size_t n);
ssize_t __wrap_write(int fd, const void *from, size_t n);
ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *from, size_t n, off_t at);

/* Whether the call fails; *n: at most bytes_max. */
static bool fails(size_t *n)
{
    unsigned call;

    if (short_io.bytes_max == 0)
        return false;

    call = ++short_io.n_calls;
    errno = call == short_io.fail_at ? short_io.fail_errno : EINTR;
    *n = *n < short_io.bytes_max ? *n : short_io.bytes_max;
    return call == short_io.fail_at || call % 2 == 1;
}

ssize_t __wrap_read(int fd, void *to, size_t n)
{
    return fails(&n) ? -1 : __real_read(fd, to, n);
}

ssize_t __wrap_write(int fd, const void *from, size_t n)
{
    return fails(&n) ? -1 : __real_write(fd, from, n);
}

ssize_t __wrap_pread64(int fd, void *to, size_t n, off_t at)
{
    return fails(&n) ? -1 : __real_pread64(fd, to, n, at);
}

ssize_t __wrap_pwrite64(int fd, const void *from, size_t n, off_t at)
{
    return fails(&n) ? -1 : __real_pwrite64(fd, from, n, at);
}
