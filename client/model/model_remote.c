/* OPEN_MODEL and the memory objects in its reply. See model.h. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "base/cleanup.h"
#include "client/model/model_filter.h"
#include "client/model/model_remote.h"
#include "client/model/model_table.h"
#include "gpu/device.h"

enum { FD_CONTROL = 0, FD_INDEX = 1, FD_SESSION = 2, FD_ARENA = 3 };

void model_remote_deinit(struct model_remote *r)
{
    r->control = extent_free(r->control);
    r->index = extent_free(r->index);
    model_filter_forget(r);
}

static int model_remote_import_control(struct reply *reply, struct extent **ret, struct errmsg *e)
{
    uint64_t bytes = reply->message->open_model->control_bytes;
    _cleanup_(extent_freep) struct extent *x = NULL;
    const struct control_page *page;
    int r;

    if (bytes < sizeof(*page) || bytes > SIZE_MAX)
        return fail(e, -EPROTO, "kvcobrad sent a control page of %" PRIu64 " bytes", bytes);

    r = extent_import(reply_take_fd(reply, FD_CONTROL), (size_t) bytes, EXTENT_READ, &x, e);
    if (r < 0)
        return r;

    page = extent_data(x);
    if (page->magic != CONTROL_MAGIC || page->version != 1)
        return fail(e, -EPROTO, "control page of version %u, this library reads version 1", page->version);

    *ret = take_ptr(x);
    return 0;
}

static int model_remote_import_index(struct reply *reply, struct extent **ret,
                                     struct index_reader *ret_reader, struct errmsg *e)
{
    uint64_t bytes = reply->message->open_model->index_bytes;
    _cleanup_(extent_freep) struct extent *x = NULL;
    int r;

    if (bytes == 0 || bytes > SIZE_MAX)
        return fail(e, -EPROTO, "kvcobrad sent an index of %" PRIu64 " bytes", bytes);

    r = extent_import(reply_take_fd(reply, FD_INDEX), (size_t) bytes, EXTENT_READ, &x, e);
    if (r < 0)
        return r;

    r = index_reader_init(ret_reader, extent_data(x), extent_bytes(x), e);
    if (r < 0)
        return r;

    *ret = take_ptr(x);
    return 0;
}

/* All objects of the reply, or none. */
static int model_remote_import_all(struct kvc_model *m, struct reply *reply)
{
    const Kvcobra__OpenModelReply *body = reply->message->open_model;
    struct errmsg *e = &m->client->error;
    _cleanup_(extent_freep) struct extent *control = NULL;
    _cleanup_(extent_freep) struct extent *index = NULL;
    struct index_reader reader;
    int r;

    if (reply->packet.n_fds != 4 || !bytes_are(body->table_digest, DIGEST_BYTES) ||
        !bytes_are(body->index_key, INDEX_KEY_BYTES) || body->control_slot >= CONTROL_MODELS_MAX)
        return fail(e, -EPROTO, "kvcobrad's reply to OPEN_MODEL is incomplete");

    r = model_remote_import_control(reply, &control, e);
    if (r == 0)
        r = model_remote_import_index(reply, &index, &reader, e);
    if (r == 0)
        r = session_import(&m->client->session, reply_take_fd(reply, FD_SESSION), body->session_bytes,
                           reply_take_fd(reply, FD_ARENA), body->arena_bytes, e);
    if (r < 0)
        return r;

    if (m->remote.opened && memcmp(m->remote.index_key, body->index_key.data, INDEX_KEY_BYTES) != 0)
        m->client->hooks->index_key_changed(m);
    model_remote_deinit(&m->remote);
    m->remote.opened = true;
    m->remote.epoch = m->client->connection.epoch;
    m->remote.handle = body->model;
    m->remote.control_slot = body->control_slot;
    m->remote.control = take_ptr(control);
    m->remote.index = take_ptr(index);
    m->remote.reader = reader;
    memcpy(m->remote.index_key, body->index_key.data, INDEX_KEY_BYTES);
    return 0;
}

static int model_remote_request_open(struct kvc_model *m, struct reply *ret)
{
    Kvcobra__Geometry geometry = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;
    const struct geometry *g = &m->geometry;

    geometry.n_layers = g->n_layers;
    geometry.n_heads = g->n_heads;
    geometry.n_kv_heads = g->n_kv_heads;
    geometry.d = g->d;
    geometry.n_rot = g->n_rot;
    geometry.attn_scale = g->attn_scale;
    geometry.freq = (double *) g->freq;
    geometry.n_freq = g->n_rot / 2;
    open.geometry = &geometry;
    open.model_digest = (ProtobufCBinaryData){DIGEST_BYTES, m->opened_digest};
    open.first_head = m->shard.first_head;
    open.n_heads = m->shard.n_heads;
    open.n_positions = m->n_positions;
    open.exact = exact_form_pack(&m->exact);

    return connection_call(&m->client->connection, KVCOBRA__REQUEST__BODY_OPEN_MODEL, &open,
                           KVCOBRA__REPLY__BODY_OPEN_MODEL, ret, &m->client->error);
}

/*
 * The digest of the model that the caller's digest is an alias of; a daemon without aliases sends none. Keys
 * and pages of sequences have the digest of the first opening, so a later change is refused.
 */
static int model_remote_adopt_digest(struct kvc_model *m, const Kvcobra__OpenModelReply *body)
{
    struct errmsg *e = &m->client->error;
    const uint8_t *digest = m->opened_digest;

    if (body->model_digest.len > 0) {
        if (!bytes_are(body->model_digest, DIGEST_BYTES))
            return fail(e, -EPROTO, "kvcobrad's reply to OPEN_MODEL has a model digest of %zu bytes",
                        body->model_digest.len);

        digest = body->model_digest.data;
    }

    if (m->remote.opened && memcmp(m->model_digest, digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL,
                    "the operator changed the alias of this model since it was opened: open the model again, "
                    "its sequences continue privately");

    memcpy(m->model_digest, digest, DIGEST_BYTES);
    return 0;
}

int model_remote_import(struct kvc_model *m, uint8_t ret_digest[DIGEST_BYTES])
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    int r;

    r = model_remote_request_open(m, &reply);
    if (r < 0)
        return r;

    r = model_remote_adopt_digest(m, reply.message->open_model);
    if (r < 0) {
        /* OPEN_MODEL took a reference on this table */
        if (bytes_are(reply.message->open_model->table_digest, DIGEST_BYTES))
            model_table_unref_at_daemon(m, reply.message->open_model->table_digest.data);
        return r;
    }

    r = model_remote_import_all(m, &reply);
    if (r < 0)
        return r;

    memcpy(ret_digest, reply.message->open_model->table_digest.data, DIGEST_BYTES);
    return 0;
}
