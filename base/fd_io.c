/* See fd_io.h. */
#include "base/fd_io.h"

#include <errno.h>
#include <unistd.h>

int fd_pread_all(int fd, void *to, size_t bytes, uint64_t offset)
{
    for (size_t have = 0; have < bytes;) {
        ssize_t n = pread(fd, (char *) to + have, bytes - have, (off_t) (offset + have));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;

        have += (size_t) n;
    }
    return 0;
}

int fd_pwrite_all(int fd, const void *from, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *) from + done, bytes - done, (off_t) (offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;

        done += (size_t) n;
    }
    return 0;
}

int fd_write_all(int fd, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *) from + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;

        done += (size_t) n;
    }
    return 0;
}

int fd_read_all(int fd, void *to, size_t bytes, size_t *ret_bytes)
{
    for (*ret_bytes = 0; *ret_bytes < bytes;) {
        ssize_t n = read(fd, (char *) to + *ret_bytes, bytes - *ret_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;

        *ret_bytes += (size_t) n;
    }
    return 0;
}
