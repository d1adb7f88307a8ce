/* Finding the programs of this project; see find_daemon.h. */
#include "tools/command/find_daemon.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"

static bool find_daemon_is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* @places: relative to the folder of this program; ends with NULL. */
static bool find_program_beside(const char *self, const char *const *places, char ret[PATH_MAX])
{
    char folder[PATH_MAX];
    const char *dir;

    (void) snprintf(folder, sizeof(folder), "%s", self);
    dir = dirname(folder);
    for (; *places; places++) {
        int n = snprintf(ret, PATH_MAX, "%s/%s", dir, *places);

        if (n > 0 && n < PATH_MAX && find_daemon_is_program(ret))
            return true;
    }

    return false;
}

static bool find_program_in_path(const char *name, char ret[PATH_MAX])
{
    const char *path = getenv("PATH");

    for (const char *p = path; p && *p;) {
        int bytes = (int) strcspn(p, ":");
        int n = snprintf(ret, PATH_MAX, "%.*s/%s", bytes, p, name);

        if (n > 0 && n < PATH_MAX && find_daemon_is_program(ret))
            return true;

        p += bytes + (p[bytes] == ':');
    }

    return false;
}

static int find_daemon_take_given(const char *given, char ret[PATH_MAX], struct errmsg *e)
{
    if (snprintf(ret, PATH_MAX, "%s", given) >= PATH_MAX || !find_daemon_is_program(given))
        return fail(e, -ENOENT, "%s is not a program", given);

    return 0;
}

static int find_self(char ret[PATH_MAX], struct errmsg *e)
{
    ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 1);

    if (n < 0)
        return fail(e, -errno, "cannot find this program: %s", strerror(errno));

    ret[n] = '\0';
    return 0;
}

int find_daemon(const char *given, char ret_self[PATH_MAX], char ret_daemon[PATH_MAX], struct errmsg *e)
{
    /* as installed; in a build tree */
    static const char *const places[] = {"kvcobrad", "../daemon/kvcobrad", NULL};
    int r = find_self(ret_self, e);

    if (r < 0)
        return r;
    if (given)
        return find_daemon_take_given(given, ret_daemon, e);

    if (find_program_beside(ret_self, places, ret_daemon) || find_program_in_path("kvcobrad", ret_daemon))
        return 0;

    return fail(e, -ENOENT, "there is no kvcobrad beside %s nor in PATH; give its path with --daemon",
                ret_self);
}

int find_mover(const char *given, const char *self, char ret_mover[PATH_MAX], struct errmsg *e)
{
    static const char *const places[] = {"kvcobra-mover", "../mover/kvcobra-mover",
                                         "../" KVCOBRA_LIBEXECDIR "/kvcobra-mover", NULL};

    if (given)
        return find_daemon_take_given(given, ret_mover, e);

    if (find_program_beside(self, places, ret_mover) ||
        find_daemon_take_given(KVCOBRA_MOVER_PATH, ret_mover, NULL) == 0)
        return 0;

    return fail(e, -ENOENT,
                "there is no kvcobra-mover beside this program, in ../mover or ../" KVCOBRA_LIBEXECDIR
                " of the folder of %s, nor " KVCOBRA_MOVER_PATH "; give its path with --mover",
                self);
}

int find_cluster(char ret[PATH_MAX], struct errmsg *e)
{
    static const char *const places[] = {"kvcobra-cluster", "../cluster/kvcobra-cluster",
                                         "../" KVCOBRA_LIBEXECDIR "/kvcobra-cluster", NULL};
    char self[PATH_MAX];
    int r = find_self(self, e);

    if (r < 0)
        return r;
    if (find_program_beside(self, places, ret) || find_program_in_path("kvcobra-cluster", ret))
        return 0;
    return fail(e, -ENOENT,
                "there is no kvcobra-cluster beside this program, in ../cluster or ../" KVCOBRA_LIBEXECDIR
                " of the folder of %s, nor in PATH",
                self);
}

int find_command(const char *name, const char *built, char ret[PATH_MAX], struct errmsg *e)
{
    const char *const places[] = {name, built, NULL};
    char self[PATH_MAX];
    int r = find_self(self, e);

    if (r < 0)
        return r;
    if (find_program_beside(self, places, ret) || find_program_in_path(name, ret))
        return 0;

    return fail(e, -ENOENT, "there is no %s beside %s nor in PATH", name, self);
}

int find_kvcobra(char ret[PATH_MAX], struct errmsg *e)
{
    return find_command("kvcobra", "../tools/kvcobra", ret, e);
}
