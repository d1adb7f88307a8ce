/* See start_check.h. */
#include "daemon/start_check.h"

#include <errno.h>
#include <libgen.h>
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/listen.h"
#include "daemon/tables/state_folder.h"
#include "daemon/tier/disk_folder.h"
#include "daemon/tier/keyring.h"
#include "proto/sockets.h"

struct start_checking {
    const struct config *config;
    bool makes_folders;
    config_warn_fn *warn;
    void *ctx;
    struct keyring *ring; /* NULL: not known here */
};

/* ---- keys, state ---- */

static int start_check_key_file(struct start_checking *x, struct errmsg *e)
{
    const char *name = x->config->key_file;
    struct errmsg why;

    if (strchr(name, '/') || getenv("CREDENTIALS_DIRECTORY"))
        return keyring_read_named(name, &x->ring, e);

    errmsg_set(&why,
               "--key-file %s is the name of a credential, which only the unit has: it is not checked here",
               name);
    x->warn(x->ctx, "key-file-not-checked", why.text);
    return 0;
}

/* @ret_has_secret: the folder has one, in @secret. */
static int start_check_state(const struct start_checking *x, uint8_t secret[static KEYRING_SECRET_BYTES],
                             bool *ret_has_secret, struct errmsg *e)
{
    struct stat st;
    int r;

    if (x->makes_folders && lstat(x->config->state_dir, &st) < 0 && errno == ENOENT)
        return 0;

    r = state_folder_look(x->config->state_dir, secret, e);
    *ret_has_secret = r == 0 && !sodium_is_zero(secret, KEYRING_SECRET_BYTES);
    return r;
}

static int start_check_keys(struct start_checking *x, struct errmsg *e)
{
    uint8_t secret[KEYRING_SECRET_BYTES] = {0};
    bool has_secret = false;
    int r = x->config->state_dir ? start_check_state(x, secret, &has_secret, e) : 0;

    if (r == 0 && x->config->key_file)
        r = start_check_key_file(x, e);
    else if (r == 0 && has_secret)
        r = keyring_of_host(secret, &x->ring, e);
    sodium_memzero(secret, sizeof(secret));
    return r;
}

/* ---- sockets ---- */

/* systemd makes its folder with the unit, and --user makes those of its user. */
static void start_check_socket_folder(const struct start_checking *x, const char *path)
{
    _cleanup_(freep) char *copy = strdup(path);
    const char *folder = copy ? dirname(copy) : NULL;
    struct errmsg why;

    if (!folder || x->makes_folders || strcmp(folder, SOCKET_SYSTEM_FOLDER) == 0 || access(folder, F_OK) == 0)
        return;
    errmsg_set(&why, "the folder of the socket %s does not exist, and kvcobrad does not create it", path);
    x->warn(x->ctx, "no-socket-folder", why.text);
}

static int start_check_socket(const struct start_checking *x, const char *path, struct errmsg *e)
{
    int r = path ? listen_look(path, e) : 0;

    if (r != -ENOENT)
        return r;

    start_check_socket_folder(x, path);
    return 0;
}

/* Sockets that another process passes replace the paths, which are then not used. */
static int start_check_sockets(const struct start_checking *x, struct errmsg *e)
{
    const struct config *c = x->config;
    int r = c->listen_fd < 0 ? start_check_socket(x, c->socket_path, e) : 0;

    if (r == 0 && c->operator_fd < 0)
        r = start_check_socket(x, c->operator_socket_path, e);
    if (r == 0)
        r = start_check_socket(x, c->metrics_socket_path, e);
    return r < 0 ? r : start_check_socket(x, c->cluster_socket, e);
}

/* ---- what kvcobrad starts without ---- */

static void start_check_disk(const struct start_checking *x)
{
    const struct config *c = x->config;
    const struct disk_folder_options o = {
        .path = c->disk_dir, .fleet = x->ring ? keyring_fleet(x->ring) : NULL, .bytes = c->disk_bytes};
    struct errmsg why = {""}, sentence;

    if (!c->disk_dir || disk_folder_look(&o, &why) == 0)
        return;
    errmsg_set(&sentence, "the disk tier will be off: %.300s", why.text);
    x->warn(x->ctx, "disk-tier-off", sentence.text);
}

static void start_check_mover(const struct start_checking *x)
{
    const struct config *c = x->config;
    struct errmsg why;

    if (!c->gpu || !c->mover_path || access(c->mover_path, X_OK) == 0)
        return;
    errmsg_set(&why, "GPUs will be unavailable: cannot run --mover %s: %s", c->mover_path, strerror(errno));
    x->warn(x->ctx, "gpu-unavailable", why.text);
}

/* ---- all ---- */

static int start_check_all(struct start_checking *x, struct errmsg *e)
{
    int r = sodium_init() < 0 ? fail(e, -EIO, "libsodium does not start") : start_check_keys(x, e);

    if (r == 0)
        r = start_check_sockets(x, e);
    if (r < 0)
        return r;

    start_check_disk(x);
    start_check_mover(x);
    return 0;
}

int start_check(const struct config *c, bool makes_folders, config_warn_fn *warn, void *ctx, struct errmsg *e)
{
    struct start_checking x = {.config = c, .makes_folders = makes_folders, .warn = warn, .ctx = ctx};
    bool is_root = geteuid() == 0;
    struct stat st;
    int r;

    if (is_root && c->state_dir && stat(c->state_dir, &st) == 0 && st.st_uid != 0 &&
        (setegid(st.st_gid) < 0 || seteuid(st.st_uid) < 0))
        return fail(e, -errno, "cannot check as the owner of %s: %s", c->state_dir, strerror(errno));

    r = start_check_all(&x, e);
    (void) keyring_unref(x.ring);
    if (is_root && (seteuid(0) < 0 || setegid(getgid()) < 0))
        return fail(e, -errno, "cannot become root again: %s", strerror(errno));
    return r;
}
