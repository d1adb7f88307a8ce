/* See pool_mark.h. */
#include "daemon/store/pool_mark.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/log.h"

static char *pool_mark_path(const char *state_dir)
{
    char *path;

    return state_dir && asprintf(&path, "%s/stored-pool", state_dir) >= 0 ? path : NULL;
}

bool pool_mark_exists(const char *state_dir)
{
    _cleanup_(freep) char *path = pool_mark_path(state_dir);

    return path && access(path, F_OK) == 0;
}

void pool_mark_set(const char *state_dir, bool stored)
{
    static const char text[] = "The service manager stores the pool of this kvcobrad.\n";
    _cleanup_(freep) char *path = pool_mark_path(state_dir);
    struct errmsg e = {""};

    if (!path || (access(path, F_OK) == 0) == stored)
        return;

    if (stored)
        (void) atomic_file_write(path, text, strlen(text), &e);
    else if (unlink(path) < 0)
        (void) fail(&e, -errno, "cannot remove %s: %s", path, strerror(errno));
    if (e.text[0])
        log_event(LOG_WARNING, "state-dir", "message=\"%s\", ignoring", e.text);
}
