/* See file_identity.h. */
#include "base/file_identity.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/errmsg.h"

int file_identity_of(int fd, struct file_identity *ret)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;

    *ret = (struct file_identity){.device = st.st_dev, .inode = st.st_ino, .owner = st.st_uid};
    return 0;
}

int file_identity_check(const struct file_identity *i, int folder_fd, const char *path, int flags,
                        const char *name, struct errmsg *e)
{
    struct stat st;

    if (fstatat(folder_fd, path, &st, flags) < 0)
        return fail(e, -errno, "%s is not there: %s", name, strerror(errno));
    if (st.st_dev != i->device)
        return fail(e, -ESTALE, "%s was replaced by another one, on another file system", name);
    if (st.st_ino != i->inode)
        return fail(e, -ESTALE, "%s was replaced by another one", name);
    if (st.st_uid != i->owner)
        return fail(e, -EPERM, "%s belongs to user %lu now instead of user %lu", name,
                    (unsigned long) st.st_uid, (unsigned long) i->owner);
    return 0;
}
