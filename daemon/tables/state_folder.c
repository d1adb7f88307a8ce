/* See state_folder.h. */
#include "daemon/tables/state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_rights.h"

enum { SECRET_BYTES = 32 };

static int state_folder_file(const char *path, const char *name, char **ret, struct errmsg *e)
{
    if (asprintf(ret, "%s/%s", path, name) >= 0)
        return 0;

    *ret = NULL;
    return fail(e, -ENOMEM, "out of memory");
}

void state_folder_close(struct state_folder *f)
{
    if (!f->path)
        return;
    closep(&f->lock_fd);
    closep(&f->fd);
    *f = (struct state_folder){.path = NULL};
}

static int state_folder_take(int fd, const char *path, struct errmsg *e)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return fail(e, -errno, "cannot lock the state folder %s: %s", path, strerror(errno));
    return fail(e, -EADDRINUSE,
                "another kvcobrad uses the state folder %s: stop it first, or give another --state-dir",
                path);
}

/* Locks the file `lock`, as earlier versions do. Not by its path: the folder is the one that is locked. */
static int state_folder_take_file(struct state_folder *f, struct errmsg *e)
{
    f->lock_fd = openat(f->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->lock_fd < 0)
        return fail(e, -errno, "cannot create %s/lock: %s", f->path, strerror(errno));
    return state_folder_take(f->lock_fd, f->path, e);
}

int state_folder_open(const char *path, struct state_folder *ret, struct errmsg *e)
{
    _cleanup_(state_folder_close) struct state_folder f = {.path = path, .fd = -1, .lock_fd = -1};
    int r;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return fail(e, -errno, "cannot create the state folder %s: %s", path, strerror(errno));

    f.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.fd < 0)
        return fail(e, -errno, "cannot open the state folder %s: %s", path, strerror(errno));

    r = file_rights_check(f.fd, FILE_RIGHTS_WRITE, path, "0700", e);
    if (r < 0)
        return r;

    r = state_folder_take(f.fd, path, e);
    if (r < 0)
        return r;

    r = state_folder_take_file(&f, e);
    if (r < 0)
        return r;

    r = file_identity_of(f.fd, &f.identity);
    if (r < 0)
        return r;

    r = state_folder_check(&f, e); /* it may have been replaced before it was locked */
    if (r < 0)
        return r;

    *ret = f;
    f.path = NULL;
    return 0;
}

int state_folder_check(const struct state_folder *f, struct errmsg *e)
{
    struct errmsg why;
    int r = f ? file_identity_check(&f->identity, AT_FDCWD, f->path, 0, f->path, &why) : 0;

    return r < 0 ? fail(e, r, "nothing is stored, since the state folder %s: restart kvcobrad", why.text) : 0;
}

/* A user who can write or read the file can choose or compute the keys of all tenants. */
static int state_folder_check_secret(const char *file, struct errmsg *e)
{
    _cleanup_(closep) int fd = open(file, O_PATH | O_CLOEXEC);

    return fd < 0 ? -errno : file_rights_check(fd, FILE_RIGHTS_ALL, file, "0600", e);
}

/* Return: 0; -ENOENT: there is no file; others with a sentence. */
static int state_folder_read_secret(const char *file, uint8_t ret[static SECRET_BYTES], struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg why = {""};
    size_t n = 0;
    int r = state_folder_check_secret(file, &why);

    if (r == 0)
        r = atomic_file_read(file, SECRET_BYTES, &bytes, &n, &why);
    if (r == -ENOENT)
        return r;
    if (r < 0)
        return why.text[0] ? fail(e, r, "%s", why.text)
                           : fail(e, r, "cannot read %s: %s", file, strerror(-r));
    if (n != SECRET_BYTES)
        return fail(e, -EBADMSG, "%s has %zu bytes instead of %d: remove it to make a new one", file, n,
                    SECRET_BYTES);

    memcpy(ret, bytes, SECRET_BYTES);
    sodium_memzero(bytes, n);
    return 0;
}

static int state_folder_look_at_parent(const char *path, struct errmsg *e)
{
    _cleanup_(freep) char *copy = strdup(path);
    const char *parent;

    if (!copy)
        return fail(e, -ENOMEM, "out of memory");

    parent = dirname(copy);
    return faccessat(AT_FDCWD, parent, W_OK | X_OK, AT_EACCESS) == 0
               ? 0
               : fail(e, -errno, "cannot create the state folder %s in %s: %s", path, parent,
                      strerror(errno));
}

int state_folder_look(const char *path, uint8_t ret[static SECRET_BYTES], struct errmsg *e)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_(freep) char *file = NULL;
    int r;

    if (fd < 0 && errno == ENOENT)
        return state_folder_look_at_parent(path, e);
    if (fd < 0)
        return fail(e, -errno, "cannot open the state folder %s: %s", path, strerror(errno));

    r = file_rights_check(fd, FILE_RIGHTS_WRITE, path, "0700", e);
    if (r < 0)
        return r;
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
        return fail(e, -errno, "cannot write to the state folder %s: %s", path, strerror(errno));

    r = state_folder_file(path, "secret", &file, e);
    if (r < 0)
        return r;
    return faccessat(AT_FDCWD, file, F_OK, AT_EACCESS) < 0 && errno == ENOENT
               ? 0
               : state_folder_read_secret(file, ret, e);
}

/* Without the buffer of the stream, which would keep the secret on the heap. */
static int state_folder_write_secret(const char *file, const uint8_t *secret, struct errmsg *e)
{
    _cleanup_(atomic_file_deinit) struct atomic_file f = {.fd = -1};
    mode_t old_mask = umask(0077);
    int r = atomic_file_start(file, &f, e);

    (void) umask(old_mask);
    if (r < 0)
        return r;

    (void) setvbuf(f.stream, NULL, _IONBF, 0);
    atomic_file_put(&f, secret, SECRET_BYTES);
    return atomic_file_commit(&f, e);
}

int state_folder_secret(const char *path, uint8_t ret[static SECRET_BYTES], struct errmsg *e)
{
    _cleanup_(freep) char *file = NULL;
    int r;

    randombytes_buf(ret, SECRET_BYTES);
    if (!path)
        return 0;

    r = state_folder_file(path, "secret", &file, e);
    if (r < 0)
        return r;

    r = state_folder_read_secret(file, ret, e);
    return r == -ENOENT ? state_folder_write_secret(file, ret, e) : r;
}
