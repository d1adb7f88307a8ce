/* The tables of a model: checked, laid out, counted. See model.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_exact.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "client/model/model_table.h"

static void model_table_free(struct kvc_model *m, struct model_table *t)
{
    m->client->ops->free_table(m->client, t);
    heap_pool_deinit(&t->heap[PAGE_FIRST]);
    heap_pool_deinit(&t->heap[PAGE_REST]);
    page_layout_deinit(&t->layout);
    (void) table_unref(t->table);
    free(t);
}

static int model_table_check(const struct kvc_model *m, const struct table *t, struct errmsg *e)
{
    char of_table[DIGEST_HEX_BYTES], of_model[DIGEST_HEX_BYTES], form[EXACT_FORM_TEXT_BYTES];
    int r;

    if (memcmp(t->model_digest, m->model_digest, DIGEST_BYTES) != 0)
        return fail(
            e, -EINVAL,
            "the table was made for model %s, and this is model %s: calibrate and solve with this model",
            digest_hex(t->model_digest, of_table), digest_hex(m->model_digest, of_model));

    /* the first table decides the geometry of the model; all others must have the same */
    r = geometry_check_same(&m->geometry, &t->geometry, m->current ? 0 : m->n_positions, e);
    if (r < 0)
        return r;
    if (table_is_exact(t) && m->remote.opened && memcmp(&t->exact, &m->exact, sizeof(t->exact)) != 0)
        return fail(e, -EINVAL,
                    "the table is an exact one (%s), which this model was not opened for: activate a "
                    "calibrated table",
                    exact_form_print(&t->exact, form));
    if (page_layout_lacks_heads(t, m->shard))
        return fail(e, -EINVAL,
                    "the table predicts values from the keys of all %u KV heads of a layer, heads %u..%u are "
                    "not enough: open the model with all heads, or solve a table with --predict head",
                    t->geometry.n_kv_heads, m->shard.first_head, m->shard.first_head + m->shard.n_heads - 1);

    return 0;
}

/* A row of zeros in enc belongs to a coordinate that only fills a half-tile. */
static bool model_table_is_padding(const struct codec *c, unsigned coord, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        if (c->enc[(size_t) coord * d + i] != 0)
            return false;
    return true;
}

static void model_table_count_codec(struct model_table *t, const struct codec *c)
{
    if (table_is_exact(t->table))
        t->code_bits += c->code_bits;
    for (unsigned i = 0; i < c->r; i++) {
        if (model_table_is_padding(c, i, t->table->geometry.d))
            t->padding_bits += c->bits[i / 8];
        else
            t->code_bits += c->bits[i / 8];
    }
}

static void model_table_count_bits(struct model_table *t)
{
    struct shard shard = t->layout.shard;

    for (uint32_t layer = 0; layer < t->table->geometry.n_layers; layer++)
        for (uint32_t h = 0; h < shard.n_heads; h++)
            for (unsigned side = SIDE_K; side <= SIDE_V; side++)
                model_table_count_codec(t, table_codec(t->table, layer, shard.first_head + h, side));
}

int model_table_add(struct kvc_model *m, struct table *table, bool referenced, struct model_table **ret,
                    struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *owned = table;
    _cleanup_(freep) struct model_table *t = NULL;
    int r;

    r = model_table_check(m, table, e);
    if (r < 0)
        return r;

    t = calloc(1, sizeof(*t));
    if (!t)
        return fail(e, -ENOMEM, "out of memory while opening a table");

    r = page_layout_init(&t->layout, table, m->shard);
    if (r < 0)
        return fail(e, r, "no page layout for heads %u..%u of the table: %s", m->shard.first_head,
                    m->shard.first_head + m->shard.n_heads - 1, strerror(-r));

    m->geometry = table->geometry;
    t->table = take_ptr(owned);
    t->refs = 1;
    t->referenced = referenced;
    for (unsigned k = 0; k < 2; k++)
        t->heap[k].slot_bytes = t->layout.slot_bytes[k];
    model_table_count_bits(t);
    t->next = m->tables;
    m->tables = t;
    *ret = take_ptr(t);
    return 0;
}

struct model_table *model_table_ref(struct model_table *t)
{
    t->refs++;
    return t;
}

void model_table_unref_at_daemon(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES])
{
    Kvcobra__UnrefTable unref = KVCOBRA__UNREF_TABLE__INIT;

    unref.model = m->remote.handle;
    unref.digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) digest};
    /* a failure loses the session, and all its references with it */
    (void) connection_send(&m->client->connection, KVCOBRA__REQUEST__BODY_UNREF_TABLE, &unref, NULL);
}

void model_table_unref(struct kvc_model *m, struct model_table *t)
{
    if (!t || --t->refs > 0)
        return;

    for (struct model_table **at = &m->tables; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    if (t->referenced && model_is_connected(m))
        model_table_unref_at_daemon(m, t->table->digest);
    model_table_free(m, t);
}
