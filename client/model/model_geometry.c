/* Geometries in the form of kvcobra.h. See model.h. */
#include "client/model/model.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "client/connection/client.h"
#include "client/model/model_tables.h"

enum { FETCH_TRIES = 8 }; /* activations that may happen between the list of tables and a fetch */

int model_geometry_read(const kvc_geometry *from, struct geometry *ret, struct errmsg *e)
{
    struct geometry g = {
        .n_layers = from->n_layers,
        .n_heads = from->n_heads,
        .n_kv_heads = from->n_kv_heads,
        .d = from->head_dim,
        .n_rot = from->n_rot,
        .attn_scale = from->attn_scale,
    };

    if (from->struct_bytes != sizeof(*from))
        return fail(e, -EINVAL, "geometry.struct_bytes is %zu, not sizeof(kvc_geometry)", from->struct_bytes);

    return geometry_from_caller(&g, from->rope_freq, ret, e);
}

/* ---- geometries of tables ---- */

static int model_geometry_check_output(const kvc_geometry *ret, const double *ret_freq, const char *call,
                                       struct errmsg *e)
{
    if (!ret || !ret_freq)
        return fail(e, -EINVAL, "%s: ret_geometry or ret_freq is NULL", call);
    if (ret->struct_bytes != sizeof(*ret))
        return fail(e, -EINVAL, "%s: ret_geometry->struct_bytes is %zu, not sizeof(kvc_geometry)", call,
                    ret->struct_bytes);

    return 0;
}

static void model_geometry_write(const struct geometry *g, kvc_geometry *ret, double *ret_freq)
{
    static_assert(KVC_ROPE_FREQ_MAX == GEOMETRY_PLANES_MAX, "frequencies of the largest head");

    memset(ret_freq, 0, KVC_ROPE_FREQ_MAX * sizeof(*ret_freq));
    memcpy(ret_freq, g->freq, g->n_rot / 2 * sizeof(*ret_freq));
    *ret = (kvc_geometry){
        .struct_bytes = sizeof(*ret),
        .n_layers = g->n_layers,
        .n_heads = g->n_heads,
        .n_kv_heads = g->n_kv_heads,
        .head_dim = g->d,
        .n_rot = g->n_rot,
        .attn_scale = g->attn_scale,
        .rope_freq = ret_freq,
    };
}

int kvc_table_geometry(kvc_client *c, const void *bytes, size_t n_bytes,
                       uint8_t ret_model_digest[KVC_DIGEST_BYTES], kvc_geometry *ret_geometry,
                       double ret_freq[KVC_ROPE_FREQ_MAX])
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;
    if (!bytes || !ret_model_digest)
        return fail(&c->error, -EINVAL, "kvc_table_geometry: bytes or ret_model_digest is NULL");

    r = model_geometry_check_output(ret_geometry, ret_freq, "kvc_table_geometry", &c->error);
    if (r == 0)
        r = table_parse(bytes, n_bytes, &table, &c->error);
    if (r < 0)
        return r;

    memcpy(ret_model_digest, table->model_digest, KVC_DIGEST_BYTES);
    model_geometry_write(&table->geometry, ret_geometry, ret_freq);
    return 0;
}

/* ---- the daemon's active table ---- */

/*
 * Looks for the active table of the model in the page of the list at *cursor, which becomes that of the next
 * page; 0: the list ends. Return: 1: found; 0: not in this page; -ENOTCONN, -EPROTO ...
 */
static int model_geometry_search_page(kvc_client *c, const uint8_t *model_digest, uint64_t *cursor,
                                      uint8_t *ret_digest)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    const Kvcobra__ListTablesReply *got;
    int r;

    list.cursor = *cursor;
    /* the daemon lists the tables of this model, or of the one that this digest is an alias of */
    list.model_digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) model_digest};
    r = connection_call(&c->connection, KVCOBRA__REQUEST__BODY_LIST_TABLES, &list,
                        KVCOBRA__REPLY__BODY_LIST_TABLES, &reply, &c->error);
    if (r < 0)
        return r;

    got = reply.message->list_tables;
    for (size_t i = 0; i < got->n_tables; i++) {
        const Kvcobra__TableInfo *t = got->tables[i];

        if (!bytes_are(t->digest, DIGEST_BYTES) || t->state != KVCOBRA__TABLE_STATE__TABLE_ACTIVE)
            continue;

        memcpy(ret_digest, t->digest.data, DIGEST_BYTES);
        return 1;
    }
    if (got->next_cursor != 0 && got->next_cursor <= *cursor)
        return fail(&c->error, -EPROTO, "kvcobrad's list of tables does not end");

    *cursor = got->next_cursor;
    return 0;
}

static int model_geometry_fetch_active(kvc_client *c, const uint8_t *model_digest, struct table **ret)
{
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    uint64_t cursor = 0;
    int r;

    do
        r = model_geometry_search_page(c, model_digest, &cursor, digest);
    while (r == 0 && cursor != 0);
    if (r == 0)
        return fail(&c->error, -ENODATA, "kvcobrad has no active table for model %s: stage and activate one",
                    digest_hex(model_digest, hex));
    if (r < 0)
        return r;

    return model_table_download(c, digest, ret);
}

int kvc_client_get_geometry(kvc_client *c, const uint8_t model_digest[KVC_DIGEST_BYTES],
                            kvc_geometry *ret_geometry, double ret_freq[KVC_ROPE_FREQ_MAX])
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!model_digest)
        return fail(&c->error, -EINVAL, "kvc_client_get_geometry: model_digest is NULL");

    r = model_geometry_check_output(ret_geometry, ret_freq, "kvc_client_get_geometry", &c->error);
    if (r < 0)
        return r;

    r = -ESTALE;
    for (unsigned i = 0; i < FETCH_TRIES && (r == -ESTALE || r == -ENOENT); i++)
        r = model_geometry_fetch_active(c, model_digest, &table);
    if (r < 0)
        return r;

    errmsg_clear(&c->error);
    model_geometry_write(&table->geometry, ret_geometry, ret_freq);
    return 0;
}
