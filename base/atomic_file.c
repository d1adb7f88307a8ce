/* See atomic_file.h. */
#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_number.h"

static int atomic_file_open_folder_of(const char *path)
{
    _cleanup_(freep) char *copy = strdup(path);
    int fd;

    if (!copy)
        return -ENOMEM;

    fd = fd_above_standard(open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd < 0 ? -errno : fd;
}

/* Draws a random name beside @path. No file has the name but by a collision of 64 random bits. */
static int atomic_file_draw_name(const char *path, char **ret_name)
{
    uint64_t unique;

    if (getrandom(&unique, sizeof(unique), 0) != sizeof(unique))
        return -EIO;

    return asprintf(ret_name, "%s.%016" PRIx64 ".tmp", path, unique) < 0 ? -ENOMEM : 0;
}

/* Opens a file without a name, which disappears if the process ends.
 * atomic_file_name() names it through /proc. */
static int atomic_file_open_unnamed(const char *path)
{
    _cleanup_(freep) char *copy = strdup(path);
    int fd;

    if (!copy)
        return -ENOMEM;
    if (access("/proc/self/fd", X_OK) < 0)
        return -EOPNOTSUPP;

    fd = fd_above_standard(open(dirname(copy), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
    return fd < 0 ? -errno : fd;
}

/* Creates a file with the mode that the umask allows; mkstemp() would always use 0600. */
static int atomic_file_open_named(const char *path, char **ret_name)
{
    _cleanup_(freep) char *name = NULL;
    int fd, r = atomic_file_draw_name(path, &name);

    if (r < 0) {
        name = NULL;
        return r;
    }

    fd = fd_above_standard(open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd < 0)
        return -errno;

    *ret_name = take_ptr(name);
    return fd;
}

/* Renaming would replace a device by a file, or a symbolic link instead of its target. */
static int atomic_file_check_replaceable(const char *path, struct errmsg *e)
{
    struct stat st;

    if (strcmp(path, "-") == 0)
        return fail(
            e, -EINVAL,
            "this file is written whole or not at all, so it cannot be standard output: give it a name (./- "
            "for a file called -)");
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail(e, -errno, "cannot write %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fail(e, -EISDIR, "cannot write %s: %s", path, strerror(EISDIR));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s is %s, not a file that may be replaced: give another name", path,
                    S_ISLNK(st.st_mode) ? "a symbolic link" : "a device, a pipe or a socket");

    return 0;
}

int atomic_file_check(const char *path, struct errmsg *e)
{
    _cleanup_(freep) char *copy = strdup(path);
    int r = copy ? atomic_file_check_replaceable(path, e)
                 : fail(e, -ENOMEM, "out of memory for the name of a file");

    if (r < 0)
        return r;
    if (*path == '\0')
        return fail(e, -ENOENT, "cannot write a file without a name");
    if (access(dirname(copy), W_OK | X_OK) < 0) /* checks the rights of the real user */
        return fail(e, -errno, "cannot create a file beside %s: %s", path, strerror(errno));

    return 0;
}

int atomic_file_start(const char *path, struct atomic_file *ret, struct errmsg *e)
{
    _cleanup_(atomic_file_deinit) struct atomic_file f = {.fd = -1};
    int fd, r = atomic_file_check_replaceable(path, e);

    if (r < 0)
        return r;

    f.path = strdup(path);
    if (!f.path)
        return fail(e, -ENOMEM, "cannot create a file beside %s: %s", path, strerror(ENOMEM));

    fd = atomic_file_open_unnamed(path);
    /* file systems that have no unnamed files */
    if (fd == -EOPNOTSUPP || fd == -EISDIR || fd == -EINVAL)
        fd = atomic_file_open_named(path, &f.temporary);
    if (fd < 0)
        return fail(e, fd, "cannot create a file beside %s: %s", path, strerror(-fd));

    f.stream = fdopen(fd, "w");
    if (!f.stream) {
        r = -errno;
        (void) close(fd);
        return fail(e, r, "cannot create a file beside %s: %s", path, strerror(-r));
    }

    f.fd = fd;
    *ret = f;
    f = (struct atomic_file){.fd = -1};
    return 0;
}

void atomic_file_put(struct atomic_file *f, const void *bytes, size_t n)
{
    if (f->error == 0 && n > 0 && fwrite(bytes, 1, n, f->stream) != n)
        f->error = errno ? -errno : -EIO;
}

/*
 * Names an unnamed file. Return: 1: it is named @path; 0: it has a temporary name; a negative errno.
 *
 * linkat() cannot replace a file: if @path exists, the new file first gets a temporary name beside it. A kill
 * between the two system calls leaves the whole new file under that name.
 */
static int atomic_file_name(struct atomic_file *f)
{
    char from[64];
    int r;

    if (f->temporary)
        return 0;

    (void) snprintf(from, sizeof(from), "/proc/self/fd/%d", f->fd);
    if (linkat(AT_FDCWD, from, AT_FDCWD, f->path, AT_SYMLINK_FOLLOW) == 0)
        return 1;
    if (errno != EEXIST)
        return -errno;

    r = atomic_file_draw_name(f->path, &f->temporary);
    if (r < 0) {
        f->temporary = NULL;
        return r;
    }

    return linkat(AT_FDCWD, from, AT_FDCWD, f->temporary, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int atomic_file_finish(struct atomic_file *f)
{
    _cleanup_(closep) int folder_fd = -1;
    int r = f->error;

    if (r < 0)
        return r;
    if (fflush(f->stream) != 0 || fsync(f->fd) < 0)
        return errno ? -errno : -EIO;

    /* before the file has its name: afterwards only the sync can fail */
    folder_fd = atomic_file_open_folder_of(f->path);
    if (folder_fd < 0)
        return folder_fd;

    r = atomic_file_name(f);
    if (r < 0)
        return r;
    if (r == 0 && rename(f->temporary, f->path) < 0)
        return -errno;

    /* so that the new name survives a power failure */
    return fsync(folder_fd) < 0 ? -errno : 0;
}

int atomic_file_commit(struct atomic_file *f, struct errmsg *e)
{
    int r = atomic_file_finish(f);

    if (r < 0)
        return fail(e, r, "cannot write %s: %s", f->path, strerror(-r));

    free(f->temporary);
    f->temporary = NULL;
    return 0;
}

void atomic_file_deinit(struct atomic_file *f)
{
    int saved = errno;

    if (f->temporary) /* not committed; if only the sync after rename() failed, no file has this name */
        (void) unlink(f->temporary);
    if (f->stream)
        (void) fclose(f->stream);
    free(f->temporary);
    free(f->path);
    *f = (struct atomic_file){.fd = -1};
    errno = saved;
}

int atomic_file_write(const char *path, const void *data, size_t bytes, struct errmsg *e)
{
    _cleanup_(atomic_file_deinit) struct atomic_file f = {.fd = -1};
    int r = atomic_file_start(path, &f, e);

    if (r < 0)
        return r;

    atomic_file_put(&f, data, bytes);
    return atomic_file_commit(&f, e);
}

static int atomic_file_read_all(int fd, size_t max_bytes, void **ret_data, size_t *ret_bytes)
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
        if (n == 0) /* truncated while we read: return the bytes so far */
            break;

        have += (size_t) n;
    }

    *ret_data = take_ptr(data);
    *ret_bytes = have;
    return 0;
}

int atomic_file_check_input(const char *path, struct errmsg *e)
{
    if (strcmp(path, "-") == 0)
        return fail(e, -EINVAL,
                    "only texts are read from standard input: give this file a name (./- for one called -)");
    return 0;
}

int atomic_file_read(const char *path, size_t max_bytes, void **ret_data, size_t *ret_bytes, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    int r = atomic_file_check_input(path, e);

    if (r < 0)
        return r;

    /* O_NONBLOCK: opening a fifo by mistake must not hang */
    fd = fd_above_standard(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    r = fd < 0 ? -errno : atomic_file_read_all(fd, max_bytes, ret_data, ret_bytes);
    if (r == -EFBIG)
        return fail(e, r, "%s is larger than the %zu bytes that such a file may have", path, max_bytes);
    if (r == -EINVAL)
        return fail(e, r, "%s is not a regular file", path);
    if (r < 0)
        return fail(e, r, "cannot read %s: %s", path, strerror(-r));

    return 0;
}
