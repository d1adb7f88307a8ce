/*
 * Which table a sequence gets, and how long it stays: local reference counts, one reference per table at the
 * daemon. A new sequence reads one word of the control page; only when that names a table we do not have is
 * there a conversation.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/model/model.h"
#include "gpu/device.h"

enum { FOLLOW_TRIES = 8 }; /* swaps that may happen while one sequence is opened */

static void table_free(struct kvc_model *m, struct model_table *t)
{
    struct gpu *g = m->client->gpu;

    if (g) {
        gpu_slots_deinit(g, &t->gpu_heap[PAGE_FIRST]);
        gpu_slots_deinit(g, &t->gpu_heap[PAGE_REST]);
        gpu_table_drop(g, t);
    }
    heap_pool_deinit(&t->heap[PAGE_FIRST]);
    heap_pool_deinit(&t->heap[PAGE_REST]);
    page_layout_deinit(&t->layout);
    (void) table_unref(t->table);
    free(t);
}

static int check_table(const struct kvc_model *m, const struct table *t, struct errmsg *e)
{
    uint8_t digest[DIGEST_BYTES];

    if (memcmp(t->model_digest, m->model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL,
                    "the table was made for another model (%02x%02x%02x%02x..., this one is "
                    "%02x%02x%02x%02x...): calibrate and solve with this model",
                    t->model_digest[0], t->model_digest[1], t->model_digest[2], t->model_digest[3],
                    m->model_digest[0], m->model_digest[1], m->model_digest[2], m->model_digest[3]);
    geometry_digest(&m->geometry, digest);
    if (memcmp(t->geometry_digest, digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL,
                    "the table was made for another geometry: %u layers, %u KV heads of %u dimensions; "
                    "this model has %u, %u, %u",
                    t->geometry.n_layers, t->geometry.n_kv_heads, t->geometry.d, m->geometry.n_layers,
                    m->geometry.n_kv_heads, m->geometry.d);
    return 0;
}

/* Rows of enc without a number in them are coordinates that only fill a half-tile. */
static bool model_tables_is_padding(const struct codec *c, unsigned coord, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        if (c->enc[(size_t) coord * d + i] != 0)
            return false;
    return true;
}

static void model_tables_count_bits(struct model_table *t)
{
    const struct geometry *g = &t->table->geometry;

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t h = 0; h < t->layout.shard.n_heads; h++)
            for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
                const struct codec *c = table_codec(t->table, layer, t->layout.shard.first_head + h, side);

                for (unsigned i = 0; i < c->r; i++) {
                    if (model_tables_is_padding(c, i, g->d))
                        t->padding_bits += c->bits[i / 8];
                    else
                        t->code_bits += c->bits[i / 8];
                }
            }
}

int model_table_add(struct kvc_model *m, struct table *table, bool referenced, struct model_table **ret,
                    struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *owned = table;
    struct model_table *t;
    int r;

    r = check_table(m, table, e);
    if (r < 0)
        return r;
    t = calloc(1, sizeof(*t));
    if (!t)
        return fail(e, -ENOMEM, "out of memory while opening a table");
    if (page_layout_lacks_heads(table, m->shard)) {
        free(t);
        return fail(e, -EINVAL,
                    "the table predicts values from the keys of all %u KV heads of a layer, heads %u..%u are "
                    "not enough: open the model with all heads, or solve a table with --predict head",
                    table->geometry.n_kv_heads, m->shard.first_head,
                    m->shard.first_head + m->shard.n_heads - 1);
    }
    r = page_layout_init(&t->layout, table, m->shard);
    if (r < 0) {
        free(t);
        return fail(e, r, "no page layout for heads %u..%u of the table: %s", m->shard.first_head,
                    m->shard.first_head + m->shard.n_heads - 1, strerror(-r));
    }
    t->table = take_ptr(owned);
    t->refs = 1;
    t->referenced = referenced;
    for (unsigned k = 0; k < 2; k++)
        t->heap[k].slot_bytes = t->gpu_heap[k].slot_bytes = t->layout.slot_bytes[k];
    model_tables_count_bits(t);
    t->next = m->tables;
    m->tables = t;
    *ret = t;
    return 0;
}

struct model_table *model_table_ref(struct model_table *t)
{
    t->refs++;
    return t;
}

static void model_tables_tell_unref(struct kvc_model *m, const uint8_t *digest)
{
    Kvcobra__UnrefTable unref = KVCOBRA__UNREF_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    unref.model = m->remote.handle;
    unref.digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) digest};
    request.body_case = KVCOBRA__REQUEST__BODY_UNREF_TABLE;
    request.unref_table = &unref;
    (void) connection_tell(&m->client->connection, &request, NULL); /* a lost session has no references */
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
        model_tables_tell_unref(m, t->table->digest);
    table_free(m, t);
}

/* ---- from the daemon ---- */

/* Read, not mapped: parsing copies anyway, and a copy cannot change under the check. */
static int model_tables_read_whole(int fd, uint8_t *data, size_t bytes)
{
    for (size_t have = 0; have < bytes;) {
        ssize_t n = pread(fd, data + have, bytes - have, (off_t) have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EPROTO; /* shorter than the reply said */
        have += (size_t) n;
    }
    return 0;
}

static int model_tables_fetch_file(struct kvc_model *m, const uint8_t *digest, struct table **ret)
{
    struct kvc_client *c = m->client;
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) uint8_t *image = NULL;
    _cleanup_(closep) int fd = -1;
    struct reply reply;
    uint64_t bytes;
    int r;

    fetch.digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) digest};
    request.body_case = KVCOBRA__REQUEST__BODY_FETCH_TABLE;
    request.fetch_table = &fetch;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_FETCH_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    bytes = reply.message->fetch_table->bytes;
    fd = reply_take_fd(&reply, 0);
    reply_free(&reply);
    if (fd < 0)
        return fail(&c->error, -EPROTO, "kvcobrad sent a table without its descriptor");
    if (bytes == 0 || bytes > TABLE_FILE_BYTES_MAX)
        return fail(&c->error, -EPROTO, "kvcobrad sent a table of %" PRIu64 " bytes", bytes);
    image = malloc((size_t) bytes);
    if (!image)
        return fail(&c->error, -ENOMEM, "out of memory for a table of %" PRIu64 " bytes", bytes);
    r = model_tables_read_whole(fd, image, (size_t) bytes);
    if (r < 0)
        return fail(&c->error, r, "cannot read the table that kvcobrad sent: %s", strerror(-r));
    r = table_parse(image, (size_t) bytes, &table, &c->error);
    if (r < 0)
        return r;
    if (memcmp(table->digest, digest, DIGEST_BYTES) != 0)
        return fail(&c->error, -EPROTO, "kvcobrad sent another table than the one asked for");
    *ret = take_ptr(table);
    return 0;
}

static struct model_table *model_tables_find(const struct kvc_model *m, const uint8_t *digest)
{
    for (struct model_table *t = m->tables; t; t = t->next)
        if (memcmp(t->table->digest, digest, DIGEST_BYTES) == 0)
            return t;
    return NULL;
}

static void model_tables_set_current(struct kvc_model *m, struct model_table *t)
{
    struct model_table *old = m->current;

    m->current = t;
    m->watch.table = NULL; /* what was sampled of the old one is not reported any more */
    model_table_unref(m, old);
}

/* @digest is not among our tables; the daemon has just counted a reference of ours. */
static int model_tables_fetch_current(struct kvc_model *m, const uint8_t *digest)
{
    struct model_table *t;
    struct table *table = NULL;
    int r;

    r = model_tables_fetch_file(m, digest, &table);
    if (r == 0)
        r = model_table_add(m, table, true, &t, &m->client->error);
    if (r < 0) {
        if (model_is_connected(m))
            model_tables_tell_unref(m, digest);
        return r;
    }
    model_tables_set_current(m, t);
    return 0;
}

int model_table_adopt(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES])
{
    struct model_table *t = model_tables_find(m, digest);

    if (!t)
        return model_tables_fetch_current(m, digest);
    if (t->referenced)
        model_tables_tell_unref(m, digest);
    t->referenced = true;
    model_tables_set_current(m, model_table_ref(t));
    return 0;
}

/* Return: 0; -ESTALE: it started draining meanwhile. */
static int model_tables_ref_at_daemon(struct kvc_model *m, const uint8_t *digest)
{
    Kvcobra__RefTable ref = KVCOBRA__REF_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r;

    ref.model = m->remote.handle;
    ref.digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) digest};
    request.body_case = KVCOBRA__REQUEST__BODY_REF_TABLE;
    request.ref_table = &ref;
    r = connection_request(&m->client->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_REF_TABLE, &reply,
                           &m->client->error);
    if (r == 0)
        reply_free(&reply);
    return r;
}

int model_table_reference(struct kvc_model *m, struct model_table *t)
{
    int r = t->referenced ? 0 : model_tables_ref_at_daemon(m, t->table->digest);

    t->referenced = t->referenced || r == 0;
    return r;
}

void model_tables_reference(struct kvc_model *m)
{
    for (struct model_table *t = m->tables; t; t = t->next)
        if (t != m->watch.shadow || t->refs > 1) /* a shadow alone needs none */
            (void) model_table_reference(m, t);  /* a commit asks again, and then says why not */
}

int model_table_fetch(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret)
{
    struct model_table *t = model_tables_find(m, digest);
    struct table *table = NULL;
    int r;

    if (t) {
        *ret = model_table_ref(t);
        return 0;
    }
    r = model_tables_fetch_file(m, digest, &table);
    return r < 0 ? r : model_table_add(m, table, false, ret, &m->client->error);
}

int model_table_hold(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret)
{
    struct model_table *t;
    int r = model_table_fetch(m, digest, &t);

    if (r < 0)
        return r;
    r = model_table_reference(m, t);
    if (r < 0) {
        model_table_unref(m, t);
        return r;
    }
    *ret = t;
    return 0;
}

static int model_tables_switch_to(struct kvc_model *m, const uint8_t *digest)
{
    struct model_table *t = model_tables_find(m, digest);
    int r;

    if (t) {
        r = model_table_reference(m, t);
        if (r == 0)
            model_tables_set_current(m, model_table_ref(t));
        return r;
    }
    r = model_tables_ref_at_daemon(m, digest);
    return r < 0 ? r : model_tables_fetch_current(m, digest);
}

int model_table_follow(struct kvc_model *m)
{
    struct errmsg *e = &m->client->error;
    int r = -ESTALE;

    for (unsigned i = 0; i < FOLLOW_TRIES && r == -ESTALE; i++) {
        const struct control_page *page;
        const struct control_model *slot;
        uint8_t digest[DIGEST_BYTES];
        uint64_t word;

        if (!model_is_connected(m))
            return 0;
        page = extent_data(m->remote.control);
        if (atomic_load_explicit(&page->moved, memory_order_acquire) != 0) {
            r = model_remote_open(m);
            if (r < 0)
                return r;
            page = extent_data(m->remote.control);
        }
        slot = &page->models[m->remote.control_slot];
        word =
            atomic_load_explicit(&slot->word, memory_order_acquire); /* after it: the digest of its entry */
        if (control_active(word) == CONTROL_NO_TABLE)
            return fail(e, -ENODATA, "kvcobrad has no active table for this model: stage and activate one");
        if (control_active(word) >= CONTROL_DIGESTS_MAX)
            return fail(e, -EBADMSG, "the control page names table entry %u of %u", control_active(word),
                        CONTROL_DIGESTS_MAX);
        memcpy(digest, slot->digests[control_active(word)], sizeof(digest));
        r = 0;
        if (memcmp(digest, m->current->table->digest, sizeof(digest)) != 0)
            r = model_tables_switch_to(m, digest);
        if (r == 0)
            m->revision = control_revision(word);
    }
    return r == -ENOTCONN ? 0 : r; /* lost on the way: the table we have serves private sequences */
}
