/* Opening clients and models; see client_model.h. */
#include "tools/command/client_model.h"

#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/engine.h"

int client_open(const char *socket, kvc_client **ret_client, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    int r;

    r = kvc_client_new(&c);
    if (r < 0)
        return fail(e, r, "out of memory while opening a client");
    if (socket) {
        r = kvc_client_connect(c, socket);
        if (r < 0)
            return fail(e, r, "%s", kvc_last_error(c));
    }

    *ret_client = take_ptr(c);
    return 0;
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
