/* See user_folders.h. */
#include "daemon/config/user_folders.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/machine.h"
#include "proto/sockets.h"
#include "proto/user_folder.h"

#define GIB (UINT64_C(1) << 30)
#define POOL_UNIT_BYTES (UINT64_C(64) << 20) /* an extent */
#define POOL_BYTES_MAX (256 * GIB)           /* more must be asked for */

/* The home is made with the user's account. If it is missing, the environment is another user's or wrong,
 * and nothing would clean up what was made there. */
static int user_folders_home_must_exist(const char *home, struct errmsg *e)
{
    struct stat st;

    if (stat(home, &st) < 0)
        return fail(e, -errno, "--user: the folder %s of the environment variable HOME: %s", home,
                    strerror(errno));
    return S_ISDIR(st.st_mode)
               ? 0
               : fail(e, -ENOTDIR, "--user: %s of the environment variable HOME is no folder", home);
}

/* A folder of the XDG Base Directory Specification. @in_home: its default below $HOME. */
static int user_folders_find(const char *variable, const char *in_home, char **ret, struct errmsg *e)
{
    const char *value = secure_getenv(variable), *home = secure_getenv("HOME");
    int n, r = 0;

    if (value && value[0] == '/') {
        n = asprintf(ret, "%s", value);
    } else if (home && home[0] == '/') {
        r = user_folders_home_must_exist(home, e);
        n = asprintf(ret, "%s/%s", home, in_home);
    } else {
        return fail(
            e, -EINVAL,
            "--user: neither HOME nor %s is set to a folder in the environment: set one, or start kvcobrad "
            "without --user and with --socket, --operator-socket and --state-dir",
            variable);
    }

    if (n >= 0)
        return r;
    *ret = NULL;
    return fail(e, -ENOMEM, "out of memory");
}

static int user_folders_set(struct config *c, const char *key, const char *folder, const char *name,
                            struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;

    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        path = NULL;
        return fail(e, -ENOMEM, "out of memory");
    }
    return config_set(c, key, path, e);
}

/* A quarter of the memory, in whole extents of the default size: other programs of the user need the rest. */
static int user_folders_set_pool(struct config *c, struct errmsg *e)
{
    uint64_t quarter = machine_memory_bytes() / 4, unit = quarter >= 4 * GIB ? GIB : POOL_UNIT_BYTES;
    char text[32];

    if (quarter < POOL_UNIT_BYTES) /* unknown, or too little for any pool: the default stays */
        return 0;
    quarter = quarter < POOL_BYTES_MAX ? quarter - quarter % unit : POOL_BYTES_MAX;
    (void) snprintf(text, sizeof(text), "%" PRIu64 "M", quarter >> 20);
    return config_set(c, "pool-bytes", text, e);
}

/* The kvcobra-mover beside this program, or where that is installed, if there is one: a wheel and a tarball
 * lie anywhere. */
static int user_folders_set_mover(struct config *c, struct errmsg *e)
{
    static const char *const places[] = {"kvcobra-mover", "../libexec/kvcobra-mover"};
    char folder[PATH_MAX], path[2 * PATH_MAX], mover[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    char *slash;

    folder[n > 0 ? n : 0] = '\0';
    slash = strrchr(folder, '/');
    if (!slash)
        return 0;

    *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", folder, places[i]);
        if (access(path, X_OK) == 0 && realpath(path, mover))
            return config_set(c, "mover", mover, e);
    }
    return 0;
}

int user_folders_apply(struct config *c, char **ret_file, struct errmsg *e)
{
    char runtime[USER_FOLDER_BYTES];
    _cleanup_(freep) char *state = NULL;
    _cleanup_(freep) char *settings = NULL;
    char *file;
    int r;

    user_folder_choose(runtime);
    r = user_folders_find("XDG_STATE_HOME", ".local/state", &state, e);
    if (r < 0)
        return r;

    r = user_folders_find("XDG_CONFIG_HOME", ".config", &settings, e);
    if (r < 0)
        return r;

    r = user_folders_set(c, "socket", runtime, SOCKET_CLIENTS, e);
    if (r < 0)
        return r;

    r = user_folders_set(c, "operator-socket", runtime, SOCKET_OPERATORS, e);
    if (r < 0)
        return r;

    r = user_folders_set(c, "state-dir", state, "kvcobra", e);
    if (r < 0)
        return r;

    r = config_set(c, "socket-mode", "0600", e);
    if (r < 0)
        return r;

    r = config_set(c, "exact", "yes", e); /* who starts a daemon of their own has no table at first */
    if (r < 0)
        return r;

    r = user_folders_set_pool(c, e);
    if (r < 0)
        return r;

    r = user_folders_set_mover(c, e);
    if (r < 0)
        return r;

    if (asprintf(&file, "%s/kvcobra/kvcobrad.conf", settings) < 0)
        return fail(e, -ENOMEM, "out of memory");

    *ret_file = file;
    return 0;
}

/* As mkdir -p. */
static int user_folders_make(char *path, struct errmsg *e)
{
    for (char *slash = path; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        if (mkdir(path, 0700) < 0 && errno != EEXIST)
            return fail(e, -errno, "cannot create the folder %s: %s", path, strerror(errno));
        if (slash)
            *slash = '/';
    }
    return 0;
}

/* The folder that @path is in. The folders of a user's sockets are checked, and nothing above them is made.
 * */
static int user_folders_make_parent(const char *path, struct errmsg *e)
{
    const char *end = path ? strrchr(path, '/') : NULL;
    _cleanup_(freep) char *folder = end && end > path ? strndup(path, (size_t) (end - path)) : NULL;
    _cleanup_(closep) int fd = -1;

    if (!end || end == path)
        return 0;
    if (folder && user_folder_has(path)) {
        fd = user_folder_open(folder, e);
        return fd < 0 ? fd : 0;
    }
    return folder ? user_folders_make(folder, e) : fail(e, -ENOMEM, "out of memory");
}

int user_folders_create(const struct config *c, struct errmsg *e)
{
    int r = user_folders_make_parent(c->socket_path, e);

    if (r == 0)
        r = user_folders_make_parent(c->operator_socket_path, e);
    return r < 0 ? r : user_folders_make_parent(c->state_dir, e); /* the folder itself: state_folder_lock() */
}
