/* Opening and closing models, with a daemon or with a table of the caller. See model.h. */
#include "client/model/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "base/options.h"
#include "client/connection/clock.h"
#include "client/model/model_remote.h"
#include "client/model/model_table.h"
#include "client/model/model_tables.h"

/* ---- scratch ---- */

static void model_scratch_deinit(struct model_scratch *s)
{
    free(s->rows);
    chunk_work_deinit(&s->chunk);
    rope_table_deinit(&s->angles);
    *s = (struct model_scratch){.rows = NULL};
}

static int model_scratch_init(struct model_scratch *s, const struct geometry *g, struct shard shard)
{
    s->rows = malloc((size_t) CHUNK_TOKENS * g->d * sizeof(float));
    return s->rows ? chunk_work_init(&s->chunk, g, shard) : -ENOMEM;
}

/* ---- lifetime ---- */

void model_ref(struct kvc_model *m)
{
    m->refs++;
}

void model_unref(struct kvc_model *m)
{
    struct kvc_client *c = m->client;

    if (--m->refs > 0)
        return;

    for (struct kvc_model **at = &c->models; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    watch_deinit(m);
    model_table_unref(m, m->current);
    model_remote_deinit(&m->remote);
    model_scratch_deinit(&m->scratch);
    free(m);
}

/* ---- the daemon ---- */

int model_reopen(struct kvc_model *m)
{
    int r = model_remote_open(m);

    if (r < 0) {
        backoff_failed(&m->remote.backoff, clock_ms());
        return r;
    }

    m->remote.backoff = (struct backoff){0};
    model_tables_reference(m);
    m->client->hooks->model_reopened(m);
    return 0;
}

int model_connect(struct kvc_model *m)
{
    if (!m->remote.opened || client_revive(m->client) < 0)
        return -ENOTCONN;

    if (!model_is_connected(m) && backoff_is_over(&m->remote.backoff, clock_ms()))
        (void) model_reopen(m);

    return model_is_connected(m) ? 0 : -ENOTCONN;
}

/* ---- the calls ---- */

static int model_read_shard(const kvc_model_id *id, const struct geometry *g, struct shard *ret,
                            struct errmsg *e)
{
    uint32_t n = id->n_kv_heads_here ? id->n_kv_heads_here : g->n_kv_heads;

    if (id->first_kv_head >= g->n_kv_heads || n > g->n_kv_heads - id->first_kv_head ||
        (id->n_kv_heads_here == 0 && id->first_kv_head != 0))
        return fail(e, -EINVAL, "shard of %u KV heads from head %u on: the model has %u", n,
                    id->first_kv_head, g->n_kv_heads);
    *ret = (struct shard){id->first_kv_head, n};
    return 0;
}

/* A model without a table. It is in the client's list and has one reference. */
static int model_new(kvc_client *c, const kvc_model_id *id, struct kvc_model **ret)
{
    struct exact_form exact = {EXACT_NONE};
    kvc_model_id local;
    struct kvc_model *m;
    int r;

    r = options_read(&local, sizeof(local), id, offsetof(kvc_model_id, n_positions), "kvc_model_id",
                     &c->error);
    if (r < 0)
        return r;
    if (local.exact != 0 && !exact_form_unpack(local.exact, &exact))
        return fail(&c->error, -EINVAL,
                    "kvc_model_id.exact is %u, must be 0, or a number type and flags of enum kvc_exact",
                    local.exact);

    m = calloc(1, sizeof(*m));
    if (!m)
        return fail(&c->error, -ENOMEM, "out of memory while opening a model");

    m->client = c;
    m->refs = 1;
    m->next = c->models;
    c->models = m;
    m->exact = exact;
    m->n_positions = local.n_positions ? local.n_positions : GEOMETRY_POSITIONS;
    memcpy(m->opened_digest, local.model_digest, DIGEST_BYTES);
    memcpy(m->model_digest, local.model_digest, DIGEST_BYTES);
    r = model_geometry_read(&local.geometry, &m->geometry, &c->error);
    if (r == 0)
        r = model_read_shard(&local, &m->geometry, &m->shard, &c->error);
    if (r == 0 && model_scratch_init(&m->scratch, &m->geometry, m->shard) < 0)
        r = fail(&c->error, -ENOMEM, "out of memory while opening a model");
    if (r < 0) {
        model_unref(m);
        return r;
    }

    m->n_q_heads = m->shard.n_heads * geometry_group(&m->geometry);
    *ret = m;
    return 0;
}

int kvc_model_open(kvc_client *c, const kvc_model_id *id, kvc_model **ret_model)
{
    struct kvc_model *m;
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;
    if (!id || !ret_model)
        return fail(&c->error, -EINVAL, "kvc_model_open: id or ret_model is NULL");
    if (!c->connection.greeted)
        return fail(&c->error, -ENOTCONN,
                    "not connected: call kvc_client_connect() first, or kvc_model_open_table() for a table "
                    "of your own");

    r = model_new(c, id, &m);
    if (r < 0)
        return r;

    r = client_revive(c);
    if (r == 0)
        r = model_remote_open(m);
    if (r == -ENOTCONN && client_revive(c) == 0) /* the connection was lost meanwhile, and is open again */
        r = model_remote_open(m);
    if (r == 0)
        r = model_table_follow(m);
    if (r < 0) {
        model_unref(m);
        return r;
    }

    *ret_model = m;
    return 0;
}

int kvc_model_open_table(kvc_client *c, const kvc_model_id *id, const void *bytes, size_t n_bytes,
                         kvc_model **ret_model)
{
    struct table *table = NULL;
    struct kvc_model *m;
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;
    if (!id || !bytes || !ret_model)
        return fail(&c->error, -EINVAL, "kvc_model_open_table: id, bytes or ret_model is NULL");

    r = model_new(c, id, &m);
    if (r < 0)
        return r;

    r = table_parse(bytes, n_bytes, &table, &c->error);
    if (r == 0)
        r = model_table_add(m, table, false, &m->current, &c->error);
    if (r < 0) {
        model_unref(m);
        return r;
    }

    *ret_model = m;
    return 0;
}

kvc_model *kvc_model_free(kvc_model *m)
{
    if (m && client_is_ours(m->client))
        model_unref(m);
    return NULL;
}

int kvc_model_get_info(kvc_model *m, kvc_model_info *ret_info)
{
    struct model_table *t;
    kvc_model_info info;
    int r;

    if (!m)
        return -EINVAL;

    r = client_enter(m->client);
    if (r < 0)
        return r;
    if (!ret_info)
        return fail(&m->client->error, -EINVAL, "kvc_model_get_info: ret_info is NULL");

    (void) model_connect(m);
    r = model_table_follow(m);
    if (r < 0)
        return r;

    t = m->current;
    info = (kvc_model_info){
        .struct_bytes = sizeof(info),
        .revision = m->revision,
        .bpd_code = t->table->bpd_code,
        .page_bytes = t->layout.page_bytes[PAGE_REST],
        .first_page_bytes = t->layout.page_bytes[PAGE_FIRST],
        .n_sink = t->table->n_sink,
        .exact = exact_form_pack(&t->table->exact),
        .kernel = m->client->ops->kernel_name(m->client, t),
    };
    memcpy(info.table_digest, t->table->digest, DIGEST_BYTES);
    return options_write(ret_info, &info, sizeof(info), sizeof(info), "kvc_model_info", &m->client->error);
}
