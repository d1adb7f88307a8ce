/* Finding kvcobrad; see find_daemon.h. */
#include "tools/find_daemon.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Beside this program when installed, in the next folder of a build tree. */
static bool find_beside(const char *self, char ret[PATH_MAX])
{
    static const char *const places[] = { "kvcobrad", "../daemon/kvcobrad" };
    char folder[PATH_MAX];
    const char *dir;

    (void) snprintf(folder, sizeof(folder), "%s", self);
    dir = dirname(folder);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int n = snprintf(ret, PATH_MAX, "%s/%s", dir, places[i]);

        if (n > 0 && n < PATH_MAX && is_program(ret))
            return true;
    }
    return false;
}

static bool find_in_path(char ret[PATH_MAX])
{
    const char *path = getenv("PATH");

    for (const char *p = path; p && *p;) {
        int bytes = (int) strcspn(p, ":");
        int n = snprintf(ret, PATH_MAX, "%.*s/kvcobrad", bytes, p);

        if (n > 0 && n < PATH_MAX && is_program(ret))
            return true;
        p += bytes + (p[bytes] == ':');
    }
    return false;
}

int find_daemon(const char *given, char ret_self[PATH_MAX], char ret_daemon[PATH_MAX], struct errmsg *e)
{
    ssize_t n = readlink("/proc/self/exe", ret_self, PATH_MAX - 1);

    if (n < 0)
        return fail(e, -errno, "cannot find this program: %s", strerror(errno));
    ret_self[n] = '\0';
    if (!given)
        return find_beside(ret_self, ret_daemon) || find_in_path(ret_daemon)
                   ? 0
                   : fail(e, -ENOENT, "there is no kvcobrad beside %s nor in PATH; --daemon says where it is", ret_self);
    if (snprintf(ret_daemon, PATH_MAX, "%s", given) >= PATH_MAX || !is_program(given))
        return fail(e, -ENOENT, "%s is not a program", given);
    return 0;
}
