/* See user_folder.h. */
#include "proto/user_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_rights.h"
#include "proto/sockets.h"

/* Whether @path is a folder of this user in which only this user can make files. */
static bool user_folder_is_own(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & FILE_RIGHTS_WRITE);
}

static bool user_folder_format(char ret[static USER_FOLDER_BYTES], const char *above, const char *name)
{
    int n = snprintf(ret, USER_FOLDER_BYTES, "%s/%s", above, name);

    return n > 0 && n < USER_FOLDER_BYTES;
}

bool user_folder_path(unsigned i, char ret[static USER_FOLDER_BYTES])
{
    const char *variable = secure_getenv("XDG_RUNTIME_DIR");
    char above[32], name[32];

    switch (i) {
    case 0: /* a relative path is invalid: XDG Base Directory Specification */
        return variable && variable[0] == '/' && user_folder_is_own(variable) &&
               user_folder_format(ret, variable, SOCKET_USER_FOLDER);
    case 1:
        (void) snprintf(above, sizeof(above), "/run/user/%lu", (unsigned long) geteuid());
        return user_folder_is_own(above) && user_folder_format(ret, above, SOCKET_USER_FOLDER);
    default:
        (void) snprintf(name, sizeof(name), SOCKET_USER_FOLDER "-%lu", (unsigned long) geteuid());
        return user_folder_format(ret, "/tmp", name);
    }
}

bool user_folder_is_private(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & FILE_RIGHTS_ALL);
}

bool user_folder_has(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[USER_FOLDER_BYTES];

    for (unsigned i = 0; slash && i < USER_FOLDERS; i++)
        if (user_folder_path(i, folder) && strlen(folder) == (size_t) (slash - path) &&
            memcmp(folder, path, (size_t) (slash - path)) == 0)
            return true;
    return false;
}

void user_folder_choose(char ret[static USER_FOLDER_BYTES])
{
    for (unsigned i = 0; i < USER_FOLDERS; i++)
        if (user_folder_path(i, ret))
            return;
}

int user_folder_open(const char *path, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return fail(e, -errno, "cannot make the folder %s: %s", path, strerror(errno));

    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return fail(e, -errno, "%s must be a folder of this user: %s", path,
                    errno == ELOOP ? "it is a link" : strerror(errno));
    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read the owner of %s: %s", path, strerror(errno));
    if (st.st_uid != geteuid())
        return fail(e, -EPERM,
                    "%s belongs to user %lu, not to this one: set XDG_RUNTIME_DIR to a folder of your own",
                    path, (unsigned long) st.st_uid);
    if (st.st_mode & FILE_RIGHTS_ALL)
        return fail(e, -EPERM, "other users may read or write to %s (mode %04o): chmod 0700 it", path,
                    (unsigned) st.st_mode & 07777);
    return take_fd(&fd);
}
