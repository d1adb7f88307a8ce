/* See file_rights.h. */
#include "base/file_rights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"

int file_rights_check(int fd, mode_t others, const char *name, const char *mode, struct errmsg *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read the owner of %s: %s", name, strerror(errno));
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return fail(e, -EPERM, "%s belongs to user %lu: it must belong to root or to this program's user",
                    name, (unsigned long) st.st_uid);
    if (st.st_mode & others)
        return fail(e, -EPERM, "other users may %s %s (mode %04o): chmod %s it",
                    others & ~(mode_t) FILE_RIGHTS_WRITE ? "read or write" : "write to", name,
                    (unsigned) st.st_mode & 07777, mode);
    return 0;
}
