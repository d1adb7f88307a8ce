/* See listen.h. */
#include "daemon/loop/listen.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_identity.h"
#include "daemon/loop/names.h"
#include "proto/wire.h"

enum { BACKLOG = 512 };

void listen_init(struct listen_socket *l)
{
    *l = (struct listen_socket){.fd = -1, .lock_fd = -1, .path_fd = -1};
}

static char *listen_lock_path(const char *path)
{
    char *lock;

    return asprintf(&lock, "%s.lock", path) < 0 ? NULL : lock;
}

/* Removes a name that still means the file of @fd. */
static void listen_remove(int fd, const char *path)
{
    struct file_identity identity;

    if (fd >= 0 && file_identity_of(fd, &identity) == 0 &&
        file_identity_check(&identity, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, path, NULL) == 0)
        (void) unlink(path);
}

void listen_deinit(struct listen_socket *l)
{
    _cleanup_(freep) char *lock = l->path ? listen_lock_path(l->path) : NULL;

    if (l->path)
        listen_remove(l->path_fd, l->path);
    if (lock) /* removed before it is unlocked: a process that then locks the removed file tries again */
        listen_remove(l->lock_fd, lock);
    closep(&l->lock_fd);
    closep(&l->path_fd);
    closep(&l->fd);
    free(l->path);
    listen_init(l);
}

static bool listen_is_file(int fd, const char *path)
{
    struct file_identity identity;

    return file_identity_of(fd, &identity) == 0 &&
           file_identity_check(&identity, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, path, NULL) == 0;
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

/*
 * Whether the process that listens at the other end of @fd lives. The descriptors of one that ends are closed
 * one by one, and the lock may be closed before the socket.
 */
static bool listen_peer_lives(int fd)
{
    struct pollfd end = {.fd = -1, .events = POLLIN};
    socklen_t bytes = sizeof(struct ucred);
    struct ucred peer = {.pid = 0};
    bool lives;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0 || peer.pid <= 0)
        return true; /* of another PID namespace */

    end.fd = (int) syscall(SYS_pidfd_open, peer.pid, 0);
    lives = end.fd < 0 ? errno != ESRCH : poll(&end, 1, 0) == 0;
    closep(&end.fd);
    return lives;
}

/* Whether a process listens at @path, though its lock is free: the lock file was removed. */
static bool listen_is_served(const char *path, int type)
{
    _cleanup_(closep) int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    if (fd < 0 || strlen(path) >= sizeof(sa.sun_path))
        return false;

    memcpy(sa.sun_path, path, strlen(path));
    if (connect(fd, (const struct sockaddr *) &sa, sizeof(sa)) == 0)
        return listen_peer_lives(fd);
    return errno == EAGAIN || errno == EPROTOTYPE; /* its queue is full; a socket of another type */
}

int listen_look(const char *path, struct errmsg *e)
{
    struct stat st;

    if (strlen(path) >= sizeof(((struct sockaddr_un *) NULL)->sun_path))
        return fail(e, -ENAMETOOLONG, "socket path %.80s... is longer than %zu bytes", path,
                    sizeof(((struct sockaddr_un *) NULL)->sun_path) - 1);
    if (lstat(path, &st) < 0)
        return fail(e, -errno, "cannot stat %s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return fail(e, -EEXIST, "%s exists and is not a socket: move it away, or give another path", path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return fail(e, -EPERM, "the socket %s belongs to user %lu: remove it, or give another path", path,
                    (unsigned long) st.st_uid);
    return 0;
}

static int listen_remove_stale(const char *path, int type, struct errmsg *e)
{
    int r = listen_look(path, e);

    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (listen_is_served(path, type))
        return fail(e, -EADDRINUSE,
                    "another process serves %s, though %s.lock is free: stop it first, or give another path",
                    path, path);
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

/*
 * Opens the file that bind() made, without following a link: in a folder of another user the name may have
 * been given to another file.
 */
static int listen_open_file(const char *path, int *ret_fd, struct errmsg *e)
{
    _cleanup_(closep) int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot open the socket %s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return fail(
            e, -ESTALE,
            "%s was replaced while kvcobrad made it: give a path in a folder that only its user or root "
            "may write",
            path);

    *ret_fd = take_fd(&fd);
    return 0;
}

/* A default ACL of the folder is used instead of the umask. */
static int listen_set_mode(int fd, mode_t mode)
{
    char path[64];
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if ((st.st_mode & 07777) == mode)
        return 0;

    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return chmod(path, mode) < 0 ? -errno : 0;
}

/* No client can connect before listen(), so the mode and the group are right for all. */
static int listen_bind(int fd, int type, const char *path, mode_t mode, gid_t group, int *ret_path_fd,
                       struct errmsg *e)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    mode_t old_mask;
    int r;

    assert(strlen(path) < sizeof(sa.sun_path)); /* listen_look() */
    memcpy(sa.sun_path, path, strlen(path));
    old_mask = umask(0777 & ~mode);
    r = bind(fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0 ? -errno : 0;
    (void) umask(old_mask);
    if (r < 0)
        return fail(e, r, "cannot listen at %s: %s", path, strerror(-r));

    r = listen_open_file(path, ret_path_fd, e);
    if (r < 0)
        return r;
    if (group != (gid_t) -1 && fchownat(*ret_path_fd, "", (uid_t) -1, group, AT_EMPTY_PATH) < 0)
        return fail(e, -errno, "cannot give %s to group %lu: %s: run kvcobrad as root or as a member", path,
                    (unsigned long) group, strerror(errno));

    r = listen_set_mode(*ret_path_fd, mode);
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

    r = listen_remove_stale(path, type, e);
    if (r < 0) { /* the path belongs to another program: only the lock is removed */
        _cleanup_(freep) char *lock = listen_lock_path(path);

        if (lock)
            listen_remove(l->lock_fd, lock);
        return r;
    }

    l->path = strdup(path);
    if (!l->path)
        return fail(e, -ENOMEM, "out of memory");

    fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(e, -errno, "cannot create a socket: %s", strerror(errno));

    r = listen_bind(fd, type, path, mode, group, &l->path_fd, e);
    if (r < 0)
        return r;

    l->fd = take_fd(&fd);
    return 0;
}

int listen_watch(const struct listen_socket *l, struct names *n, const char *what, const char *path,
                 struct errmsg *e)
{
    static const char restart[] = "clients cannot find this kvcobrad there. Restart it";
    static const char second[] = "a second kvcobrad could start there. Restart this one";
    _cleanup_(freep) char *lock = l->path ? listen_lock_path(l->path) : NULL;
    int r;

    if (l->path && !lock)
        return fail(e, -ENOMEM, "out of memory");
    if (path[0] == '\0')
        return 0;
    if (!l->path) { /* made in another mount namespace or folder, perhaps: then it has no name here */
        (void) names_add(n, what, path, -1, restart, NULL);
        return 0;
    }

    r = names_add(n, what, path, l->path_fd, restart, e);
    if (r == 0)
        r = names_add(n, "lock of a socket", lock, l->lock_fd, second, e);
    return r;
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
