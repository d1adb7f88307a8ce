/* Temporary folders; see temp_folder.h. */
#include "tools/command/temp_folder.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"

int temp_folder_make(const char *parent, const char *what, char *ret, size_t bytes, struct errmsg *e)
{
    const char *tmp = getenv("TMPDIR");
    int r;

    if (!parent)
        parent = tmp && *tmp ? tmp : "/tmp";

    r = (size_t) snprintf(ret, bytes, "%s/kvcobra-%s-XXXXXX", parent, what) < bytes ? 0 : -ENAMETOOLONG;
    if (r == 0 && mkdtemp(ret))
        return 0;
    if (r == 0)
        r = -errno;

    ret[0] = '\0';
    return fail(e, r, "cannot make a folder in %s: %s", parent, strerror(-r));
}

static int temp_folder_remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void) st;
    (void) flag;
    (void) ftw;
    (void) remove(path);
    return 0;
}

void temp_folder_remove(char *folder)
{
    if (folder[0])
        (void) nftw(folder, temp_folder_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    folder[0] = '\0';
}
