/* Whole-file reading and atomic replacement; see atomic_file.h. */
#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

static int write_all(int fd, const void *data, size_t bytes)
{
    const char *p = data;

    while (bytes > 0) {
        ssize_t n = write(fd, p, bytes < SSIZE_MAX ? bytes : SSIZE_MAX);

        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        p += n;
        bytes -= (size_t) n;
    }
    return 0;
}

/* The name is the last step that can be undone, so the folder is synced after it. */
static int sync_folder_of(const char *path)
{
    _cleanup_(freep) char *copy = strdup(path);
    _cleanup_(closep) int fd = -1;

    if (!copy)
        return -ENOMEM;
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return fsync(fd) < 0 ? -errno : 0;
}

static int write_and_rename(int fd, const char *tmp, const char *path, const void *data, size_t bytes)
{
    int r = write_all(fd, data, bytes);

    if (r < 0)
        return r;
    if (fsync(fd) < 0 || rename(tmp, path) < 0)
        return -errno;
    return sync_folder_of(path);
}

int atomic_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e)
{
    _cleanup_(freep) char *tmp = NULL;
    _cleanup_(closep) int fd = -1;
    uint64_t unique;
    int r;

    if (getrandom(&unique, sizeof(unique), 0) != sizeof(unique))
        return fail(e, -EIO, "cannot draw a temporary name for %s", path);
    if (asprintf(&tmp, "%s.%016" PRIx64 ".tmp", path, unique) < 0) {
        tmp = NULL;
        return fail(e, -ENOMEM, "out of memory while writing %s", path);
    }
    /* not mkstemp: that would make every output 0600, whatever the umask says */
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        r = -errno;
        return fail(e, r, "cannot create a file beside %s: %s", path, strerror(-r));
    }
    r = write_and_rename(fd, tmp, path, data, bytes);
    if (r < 0) {
        (void) unlink(tmp); /* already renamed: ENOENT, harmless */
        return fail(e, r, "cannot write %s: %s", path, strerror(-r));
    }
    return 0;
}

static int read_all(int fd, size_t max_bytes, void **ret_data, size_t *ret_bytes)
{
    _cleanup_(freep) char *data = NULL;
    struct stat st;
    size_t have = 0;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if ((uint64_t) st.st_size > max_bytes)
        return -EFBIG;
    data = malloc((size_t) st.st_size + 1);
    if (!data)
        return -ENOMEM;
    while (have < (size_t) st.st_size) {
        ssize_t n = read(fd, data + have, (size_t) st.st_size - have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) /* truncated while we read: what is left is what there is */
            break;
        have += (size_t) n;
    }
    *ret_data = take_ptr(data);
    *ret_bytes = have;
    return 0;
}

int atomic_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes, struct errmsg *e)
{
    /* O_NONBLOCK: opening a fifo by mistake must not hang */
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int r = fd < 0 ? -errno : read_all(fd, max_bytes, ret_data, ret_bytes);

    if (r == -EFBIG)
        return fail(e, r, "%s is larger than the %zu bytes that such a file may have", path, max_bytes);
    if (r == -EINVAL)
        return fail(e, r, "%s is not a regular file", path);
    if (r < 0)
        return fail(e, r, "cannot read %s: %s", path, strerror(-r));
    return 0;
}
