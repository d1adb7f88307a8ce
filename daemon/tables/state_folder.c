/* See state_folder.h. */
#include "daemon/tables/state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

enum { SECRET_BYTES = 32 };

static int state_folder_file(const char *path, const char *name, char **ret, struct errmsg *e)
{
    if (asprintf(ret, "%s/%s", path, name) >= 0)
        return 0;

    *ret = NULL;
    return fail(e, -ENOMEM, "out of memory");
}

int state_folder_lock(const char *path, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    _cleanup_(freep) char *lock = NULL;
    int r = state_folder_file(path, "lock", &lock, e);

    if (r < 0)
        return r;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return fail(e, -errno, "cannot create the state folder %s: %s", path, strerror(errno));

    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail(e, -errno, "cannot create %s: %s", lock, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return fail(e, -errno, "cannot lock %s: %s", lock, strerror(errno));
        return fail(e, -EADDRINUSE,
                    "another kvcobrad uses the state folder %s: stop it first, or give another --state-dir",
                    path);
    }

    *ret_fd = take_fd(&fd);
    return 0;
}

int state_folder_secret(const char *path, uint8_t ret[static SECRET_BYTES], struct errmsg *e)
{
    _cleanup_(freep) char *file = NULL;
    _cleanup_(freep) void *bytes = NULL;
    mode_t old_mask;
    size_t n;
    int r;

    randombytes_buf(ret, SECRET_BYTES);
    if (!path)
        return 0;

    r = state_folder_file(path, "secret", &file, e);
    if (r < 0)
        return r;

    r = atomic_file_read(file, SECRET_BYTES, &bytes, &n, e);
    if (r == 0 && n != SECRET_BYTES)
        return fail(e, -EBADMSG, "%s has %zu bytes instead of %d: remove it to make a new one", file, n,
                    SECRET_BYTES);
    if (r == 0) {
        memcpy(ret, bytes, SECRET_BYTES);
        sodium_memzero(bytes, n);
        return 0;
    }

    if (r != -ENOENT)
        return r;

    old_mask = umask(0077);
    r = atomic_file_write(file, ret, SECRET_BYTES, e);
    (void) umask(old_mask);
    return r;
}
