/* Opening clients and models; see client_model.h. */
#include "tools/command/client_model.h"

#include <errno.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"

enum { SOCKET_PATH_BYTES = 108 }; /* struct sockaddr_un */

static int client_open_within(const char *socket, uint32_t timeout_ms, kvc_client **ret_client,
                              struct errmsg *e)
{
    const kvc_connect_options o = {.struct_bytes = sizeof(o), .path = socket, .timeout_ms = timeout_ms};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    int r;

    r = kvc_client_new(&c);
    if (r < 0 && r != -ENOMEM)
        return fail(
            e, r,
            "cannot make a client: this system forbids madvise(2) with MADV_WIPEONFORK (%s): see its filters "
            "of system calls",
            strerror(-r));
    if (r < 0)
        return fail(e, r, "out of memory while opening a client");
    if (socket) {
        r = kvc_client_connect_with(c, &o);
        if (r < 0)
            return fail(e, r, "%s", kvc_last_error(c));
    }

    *ret_client = take_ptr(c);
    return 0;
}

int client_open(const char *socket, kvc_client **ret_client, struct errmsg *e)
{
    return client_open_within(socket, 0, ret_client, e);
}

int client_open_at(enum kvc_socket which, const char *path, uint32_t timeout_ms, kvc_client **ret_client,
                   struct errmsg *e)
{
    char found[SOCKET_PATH_BYTES];
    struct errmsg why = {""};
    int r = kvc_socket_path(which, path, found, sizeof(found));

    if (r < 0)
        return fail(e, r, "the path of the socket is longer than %d bytes: %.80s...", SOCKET_PATH_BYTES - 1,
                    path ? path : "$KVCOBRA_SOCKET or $KVCOBRA_OPERATOR_SOCKET");

    r = client_open_within(found, timeout_ms, ret_client, &why);
    if (r == -ETIMEDOUT)
        return fail(e, r, "%s; --timeout waits longer", why.text);
    if ((r == -ENOENT || r == -ECONNREFUSED) && !(path && *path))
        return fail(e, r,
                    "%s; start one with 'systemctl start kvcobrad.socket kvcobrad-operator.socket' or "
                    "'kvcobra up', or give --socket",
                    why.text);
    return r < 0 ? fail(e, r, "%s", why.text) : 0;
}

static int client_model_open_table(kvc_client *c, const kvc_model_id *id, const char *path,
                                   kvc_model **ret_model, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n_bytes;
    int r;

    r = atomic_file_read(path, TABLE_FILE_BYTES_MAX, &bytes, &n_bytes, e);
    if (r < 0)
        return r;

    r = kvc_model_open_table(c, id, bytes, n_bytes, ret_model);
    return r < 0 ? fail(e, r, "cannot use %s: %s", path, kvc_last_error(c)) : 0;
}

int model_open_bytes(kvc_client *c, const struct engine *en, const void *bytes, size_t n_bytes,
                     kvc_model **ret_model, struct errmsg *e)
{
    kvc_model_id id;
    int r;

    engine_model_id(en, &id);
    r = kvcobra_cache_lend_threads(en, c);
    if (r == 0)
        r = kvc_model_open_table(c, &id, bytes, n_bytes, ret_model);
    return r < 0 ? fail(e, r, "%s", kvc_last_error(c)) : 0;
}

int model_open(kvc_client *c, const struct engine *en, const char *table_path, kvc_model **ret_model,
               struct errmsg *e)
{
    kvc_model_id id;
    int r;

    engine_model_id(en, &id);
    r = kvcobra_cache_lend_threads(en, c);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    if (table_path)
        return client_model_open_table(c, &id, table_path, ret_model, e);

    r = kvc_model_open(c, &id, ret_model);
    return r < 0 ? fail(e, r, "%s", kvc_last_error(c)) : 0;
}
