/* See table_copy.h. */
#include "daemon/tables/table_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/memory_file.h"

static int table_copy_fill(int fd, const void *bytes, size_t n_bytes)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
    int r = fd_write_all(fd, bytes, n_bytes);

    if (r < 0)
        return r;
    if (fchmod(fd, 0400) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0)
        return -errno;
    return 0;
}

int table_copy_new(const struct table *t, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-table");
    int r;

    if (fd < 0)
        return fail(e, fd, "cannot create a copy of the table: %s", strerror(-fd));

    r = table_copy_fill(fd, t->bytes, t->n_bytes);
    if (r < 0)
        return fail(e, r, "cannot fill a copy of the table: %s", strerror(-r));

    return table_copy_open(fd, ret_fd, e);
}

int table_copy_open(int fd, int *ret_fd, struct errmsg *e)
{
    char path[64];
    int copy;

    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    copy = open(path, O_RDONLY | O_CLOEXEC); /* a client cannot make this descriptor writable */
    if (copy < 0)
        return fail(e, errno == EMFILE || errno == ENFILE ? -EAGAIN : -errno,
                    "cannot open a copy of the table: %s", strerror(errno));

    *ret_fd = copy;
    return 0;
}
