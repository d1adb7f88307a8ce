/* See listen.h. */
#include "daemon/loop/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/wire.h"

enum { BACKLOG = 512 };

void listen_init(struct listen_socket *l)
{
    *l = (struct listen_socket){.fd = -1, .lock_fd = -1};
}

static char *listen_lock_path(const char *path)
{
    char *lock;

    return asprintf(&lock, "%s.lock", path) < 0 ? NULL : lock;
}

void listen_deinit(struct listen_socket *l)
{
    _cleanup_(freep) char *lock = l->path ? listen_lock_path(l->path) : NULL;

    if (l->path)
        (void) unlink(l->path);
    if (lock) /* removed before it is unlocked: a process that then locks the removed file tries again */
        (void) unlink(lock);
    closep(&l->lock_fd);
    closep(&l->fd);
    free(l->path);
    listen_init(l);
}

static bool listen_is_file(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Locks PATH.lock. If its owner removed the file between open and lock, tries the new file. */
static int listen_take_lock(const char *path, int *ret_fd, struct errmsg *e)
{
    _cleanup_(freep) char *lock = listen_lock_path(path);

    if (!lock)
        return fail(e, -ENOMEM, "out of memory");

    for (;;) {
        _cleanup_(closep) int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

        if (fd < 0 && errno == ENOENT)
            return fail(e, -ENOENT,
                        "cannot create %s: its folder does not exist. Create it, give another path, or start "
                        "kvcobrad --user, which uses folders of its user",
                        path);
        if (fd < 0)
            return fail(e, -errno, "cannot create %s: %s", lock, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            if (errno == EWOULDBLOCK)
                return fail(e, -EADDRINUSE, "another kvcobrad serves %s: stop it first, or give another path",
                            path);

            return fail(e, -errno, "cannot lock %s: %s", lock, strerror(errno));
        }

        if (listen_is_file(fd, lock)) {
            *ret_fd = take_fd(&fd);
            return 0;
        }
    }
}

static int listen_remove_stale(const char *path, struct errmsg *e)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail(e, -errno, "cannot stat %s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return fail(e, -EEXIST, "%s exists and is not a socket: move it away, or give another path", path);
    if (unlink(path) < 0)
        return fail(e, -errno, "cannot remove the stale socket %s: %s", path, strerror(errno));
    return 0;
}

/* Makes packets of the accepted connections carry credentials. */
static int listen_enable_credentials(int fd)
{
    int on = 1;

    return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ? -errno : 0;
}

static int listen_bind(int fd, int type, const char *path, mode_t mode, gid_t group, struct errmsg *e)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    mode_t old_mask;
    int r;

    if (strlen(path) >= sizeof(sa.sun_path))
        return fail(e, -ENAMETOOLONG, "socket path %.80s... is longer than %zu bytes", path,
                    sizeof(sa.sun_path) - 1);

    memcpy(sa.sun_path, path, strlen(path));
    old_mask = umask(0777); /* no client can connect before the mode is right */
    r = bind(fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0 ? -errno : 0;
    (void) umask(old_mask);
    if (r == 0 && group != (gid_t) -1 && lchown(path, (uid_t) -1, group) < 0)
        return fail(e, -errno, "cannot give %s to group %lu: %s: run kvcobrad as root or as a member", path,
                    (unsigned long) group, strerror(errno));
    if (r == 0 && chmod(path, mode) < 0)
        r = -errno;
    if (r == 0 && listen(fd, BACKLOG) < 0)
        r = -errno;
    if (r == 0 && type == SOCK_SEQPACKET)
        r = listen_enable_credentials(fd);
    return r < 0 ? fail(e, r, "cannot listen at %s: %s", path, strerror(-r)) : 0;
}

int listen_at(struct listen_socket *l, int type, const char *path, mode_t mode, gid_t group, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    int r;

    listen_init(l);
    r = listen_take_lock(path, &l->lock_fd, e);
    if (r < 0)
        return r;

    r = listen_remove_stale(path, e);
    if (r < 0) { /* the path belongs to another program: only the lock is removed */
        _cleanup_(freep) char *lock = listen_lock_path(path);

        if (lock)
            (void) unlink(lock);
        return r;
    }

    l->path = strdup(path);
    if (!l->path)
        return fail(e, -ENOMEM, "out of memory");

    fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(e, -errno, "cannot create a socket: %s", strerror(errno));

    r = listen_bind(fd, type, path, mode, group, e);
    if (r < 0)
        return r;

    l->fd = take_fd(&fd);
    return 0;
}

void listen_path(int fd, char ret[static LISTEN_PATH_BYTES])
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof(sa);

    ret[0] = '\0';
    if (getsockname(fd, (struct sockaddr *) &sa, &bytes) == 0 && sa.sun_path[0] != '\0')
        (void) snprintf(ret, LISTEN_PATH_BYTES, "%.*s", (int) sizeof(sa.sun_path), sa.sun_path);
}

static int listen_socket_option(int fd, int option, int *ret)
{
    socklen_t bytes = sizeof(*ret);

    return getsockopt(fd, SOL_SOCKET, option, ret, &bytes) < 0 ? -errno : 0;
}

int listen_adopt(struct listen_socket *l, int fd, const char *option, struct errmsg *e)
{
    int domain = 0, type = 0, listening = 0, r;

    listen_init(l);
    r = listen_socket_option(fd, SO_DOMAIN, &domain);
    if (r == 0)
        r = listen_socket_option(fd, SO_TYPE, &type);
    if (r == 0)
        r = listen_socket_option(fd, SO_ACCEPTCONN, &listening);
    if (r == -ENOTSOCK || r == -EBADF)
        return fail(e, -EINVAL, "%s: descriptor %d is not a socket: %s", option, fd, strerror(-r));
    if (r < 0)
        return fail(e, r, "%s: cannot check descriptor %d: %s", option, fd, strerror(-r));
    if (domain != AF_UNIX || type != SOCK_SEQPACKET || !listening)
        return fail(e, -EINVAL, "%s: descriptor %d is not a listening Unix SEQPACKET socket", option, fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return fail(e, -errno, "%s: descriptor %d: %s", option, fd, strerror(errno));

    r = listen_enable_credentials(fd);
    if (r < 0)
        return fail(e, r, "%s: descriptor %d does not accept SO_PASSCRED: %s", option, fd, strerror(-r));

    l->fd = fd;
    return 0;
}

void listen_refuse_descriptors(struct listen_socket *l)
{
    (void) wire_refuse_descriptors(l->fd);
}
