/* OPEN_MODEL, GET_EXTENT and GET_FILTER, which a client sends before it publishes or reads pages. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/ev.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/control.h"
#include "daemon/store/store.h"
#include "daemon/store/tenant_types.h"
#include "daemon/tables/aliases.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables.h"
#include "daemon/tables/tables_exact.h"
#include "daemon/tables/trial.h"
#include "gpu/device.h"

static int models_read_geometry(struct request *rq, const Kvcobra__Geometry *m, struct geometry *ret)
{
    if (!m)
        return fail(&rq->error, -EINVAL, "open_model without a geometry");

    *ret = (struct geometry){
        .n_layers = m->n_layers,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .d = m->d,
        .n_rot = m->n_rot,
        .attn_scale = m->attn_scale,
    };
    if (m->n_freq > GEOMETRY_PLANES_MAX || m->n_freq != m->n_rot / 2)
        return fail(&rq->error, -EINVAL, "%zu RoPE frequencies for %" PRIu32 " rotary dimensions", m->n_freq,
                    m->n_rot);
    if (m->n_freq > 0)
        memcpy(ret->freq, m->freq, m->n_freq * sizeof(double));
    return geometry_validate(ret, &rq->error);
}

/* Compares the client's model with the one that the active table was made for. */
static int models_check(struct request *rq, const Kvcobra__OpenModel *m, struct session_model *ret,
                        struct table_model **ret_active)
{
    struct table_model *active;
    const uint8_t *digest;
    uint32_t n_positions;
    struct geometry g;
    int r;

    r = request_digest(rq, &m->model_digest, "model digest", &digest);
    if (r < 0)
        return r;

    r = models_read_geometry(rq, m->geometry, &g);
    if (r < 0)
        return r;

    digest = aliases_resolve(rq->server->tables, digest);
    n_positions = m->n_positions ? m->n_positions : GEOMETRY_POSITIONS;
    r = tables_exact_open(
        rq->server->tables,
        &(struct exact_request){
            .model_digest = digest, .geometry = &g, .n_positions = n_positions, .form = m->exact},
        ev_now_ms(rq->server->ev), &active, &rq->error);
    if (r < 0)
        return r;

    r = geometry_check_same(&g, &active->active->table->geometry, n_positions, &rq->error);
    if (r < 0)
        return r;

    /* the client uses the table's geometry from now on */
    memcpy(ret->geometry_digest, active->active->table->geometry_digest, DIGEST_BYTES);
    memcpy(ret->digest, digest, DIGEST_BYTES);
    ret->shard = (struct shard){m->first_head, m->n_heads};
    if (m->n_heads == 0 && m->first_head == 0)
        ret->shard.n_heads = g.n_kv_heads;
    if (ret->shard.n_heads == 0 || ret->shard.first_head > g.n_kv_heads ||
        ret->shard.n_heads > g.n_kv_heads - ret->shard.first_head)
        return fail(&rq->error, -EINVAL, "%" PRIu32 " KV heads from %" PRIu32 " on, of a model with %" PRIu32,
                    m->n_heads, m->first_head, g.n_kv_heads);

    *ret_active = active;
    return 0;
}

static void models_fill_open_reply(struct request *rq, const struct table_entry *t, uint32_t handle,
                                   uint32_t control_slot)
{
    Kvcobra__OpenModelReply *reply = rq->server->scratch->body;
    const struct session *x = rq->session;
    const struct tenant *tenant = x->tenant;

    kvcobra__open_model_reply__init(reply);
    reply->model = handle;
    reply->control_slot = control_slot;
    reply->table_digest = bytes_view(t->digest, DIGEST_BYTES);
    reply->index_key = bytes_view(tenant->index_key, INDEX_KEY_BYTES);
    reply->control_bytes = extent_bytes(tenant->control_memory);
    reply->index_bytes = extent_bytes(tenant->index_memory);
    reply->session_bytes = extent_bytes(x->page);
    reply->arena_bytes = extent_bytes(x->arena);
    reply->index_object = tenant->index_object;
    reply->model_digest = bytes_view(t->model_digest, DIGEST_BYTES);
    rq->reply.body_case = KVCOBRA__REPLY__BODY_OPEN_MODEL;
    rq->reply.open_model = reply;
    rq->fds[0] = extent_fd(tenant->control_memory);
    rq->fds[1] = extent_fd(tenant->index_memory);
    rq->fds[2] = extent_fd(x->page);
    rq->fds[3] = extent_fd(x->arena);
    rq->n_fds = 4;
}

static int models_handle_open(struct request *rq)
{
    struct session_model model;
    struct table_model *active;
    struct table_entry *t;
    struct space *space;
    uint32_t handle, control_slot;
    int r = request_may_send_fds(rq);

    if (r < 0)
        return r;

    r = models_check(rq, rq->message->open_model, &model, &active);
    if (r < 0)
        return r;

    t = active->active;
    r = tables_space(rq->server->tables, t, model.shard, &space, &rq->error);
    if (r < 0)
        return r;

    r = session_make_memory(rq->session, &rq->error);
    if (r < 0)
        return r;

    r = session_model_add(rq->session, &model, &handle, &rq->error);
    if (r < 0)
        return r;

    r = trial_publish_to(rq->tenant, active, &control_slot, &rq->error);
    if (r < 0)
        return r;

    session_model_published(rq->session, handle, control_slot);
    r = session_ref_table(rq->session, t);
    if (r < 0)
        return r;

    offload_announce_filter(rq->server->offload, rq->tenant);
    models_fill_open_reply(rq, t, handle, control_slot);
    return 0;
}
REQUEST(request_open_model) = {.body = KVCOBRA__REQUEST__BODY_OPEN_MODEL,
                               .run = models_handle_open,
                               .needs = CONN_OPEN,
                               .sockets = ON_CLIENT};

static int models_handle_get_extent(struct request *rq)
{
    Kvcobra__GetExtentReply *reply = rq->server->scratch->body;
    uint64_t id = rq->message->get_extent->extent;
    struct pool_extent *x = pool_extent_find(&rq->store->pool, id);
    int r;

    /* Extents of other tenants are reported as missing. */
    if (!x || x->tenant != rq->tenant)
        return fail(&rq->error, -ENOENT, "there is no extent %" PRIu64, id);

    r = request_may_send_fds(rq);
    if (r < 0)
        return r;

    kvcobra__get_extent_reply__init(reply);
    reply->extent = id;
    reply->bytes = rq->store->pool.extent_bytes;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_GET_EXTENT;
    rq->reply.get_extent = reply;
    rq->fds[0] = x->memory ? extent_fd(x->memory) : x->gpu_fd;
    rq->n_fds = 1;
    return 0;
}
REQUEST(request_get_extent) = {.body = KVCOBRA__REQUEST__BODY_GET_EXTENT,
                               .run = models_handle_get_extent,
                               .needs = CONN_OPEN,
                               .sockets = ON_CLIENT};

static int models_handle_get_filter(struct request *rq)
{
    Kvcobra__GetFilterReply *reply = rq->server->scratch->body;
    size_t bytes;
    uint64_t object;
    int r = request_may_send_fds(rq);

    if (r == 0)
        r = offload_open_filter(rq->server->offload, rq->tenant, &rq->fds[0], &bytes, &object);
    if (r == -ENOENT)
        return fail(&rq->error, r, "no slower tier has pages of tenant %s now", rq->tenant->name);
    if (r != 0)
        return r;

    kvcobra__get_filter_reply__init(reply);
    reply->object = object;
    reply->bytes = bytes;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_GET_FILTER;
    rq->reply.get_filter = reply;
    rq->n_fds = 1;
    rq->fds_are_owned = true;
    return 0;
}
REQUEST(request_get_filter) = {.body = KVCOBRA__REQUEST__BODY_GET_FILTER,
                               .run = models_handle_get_filter,
                               .needs = CONN_OPEN,
                               .sockets = ON_CLIENT};
