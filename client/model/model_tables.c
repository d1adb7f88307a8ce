/*
 * Which table a new sequence gets: fetched from the daemon, with one reference per table there. A new
 * sequence reads one word of the control page; a request is sent only when that word names a table that we do
 * not have. See model.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/model/model_remote.h"
#include "client/model/model_table.h"
#include "client/model/model_tables.h"
#include "gpu/device.h"

enum { FOLLOW_TRIES = 8 }; /* activations that may happen while one sequence is created */

/* ---- requests ---- */

int model_table_download(struct kvc_client *c, const uint8_t digest[DIGEST_BYTES], struct table **ret)
{
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(closep) int fd = -1;
    struct errmsg why = {""};
    int r;

    fetch.digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) digest};
    r = connection_call(&c->connection, KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch,
                        KVCOBRA__REPLY__BODY_FETCH_TABLE, &reply, &c->error);
    if (r < 0)
        return r;

    fd = reply_take_fd(&reply, 0);
    if (fd < 0)
        return fail(&c->error, -EPROTO, "kvcobrad sent a table without its descriptor");

    r = table_map(fd, (size_t) reply.message->fetch_table->bytes, digest, &table, &why);
    if (r < 0)
        return fail(&c->error, r == -EPERM ? -EPROTO : r, "cannot use the table that kvcobrad sent: %s",
                    why.text);

    *ret = take_ptr(table);
    return 0;
}

/* Return: 0; -ESTALE: the table is draining. */
static int model_tables_ref_at_daemon(struct kvc_model *m, const uint8_t *digest)
{
    Kvcobra__RefTable ref = KVCOBRA__REF_TABLE__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};

    ref.model = m->remote.handle;
    ref.digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) digest};

    return connection_call(&m->client->connection, KVCOBRA__REQUEST__BODY_REF_TABLE, &ref,
                           KVCOBRA__REPLY__BODY_REF_TABLE, &reply, &m->client->error);
}

/* ---- tables by digest ---- */

static struct model_table *model_tables_find(const struct kvc_model *m, const uint8_t *digest)
{
    for (struct model_table *t = m->tables; t; t = t->next)
        if (memcmp(t->table->digest, digest, DIGEST_BYTES) == 0)
            return t;
    return NULL;
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
        if (t != m->watch.shadow || t->refs > 1) /* no sequence uses a table that is only the shadow */
            (void) model_table_reference(m, t);  /* a commit repeats the request and returns its error */
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

    r = model_table_download(m->client, digest, &table);
    if (r < 0)
        return r;

    return model_table_add(m, table, false, ret, &m->client->error);
}

int model_table_hold(struct kvc_model *m, const uint8_t digest[DIGEST_BYTES], struct model_table **ret)
{
    struct model_table *t = model_tables_find(m, digest);
    int r;

    if (t && !model_is_connected(m)) { /* its sequences are private */
        *ret = model_table_ref(t);
        return 0;
    }
    if (!m->remote.opened)
        return fail(&m->client->error, -ENOENT,
                    "an embedded model has no other table than the one that it was opened with");
    if (!model_is_connected(m))
        return fail(&m->client->error, -ENOTCONN,
                    "this client does not have the table, and the connection to kvcobrad is lost");

    r = model_table_fetch(m, digest, &t);
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

/* ---- the current table ---- */

/* Takes over the reference on @t. */
static void model_tables_set_current(struct kvc_model *m, struct model_table *t)
{
    struct model_table *old = m->current;

    m->current = t;
    m->watch.table = NULL; /* samples of the old table are not reported */
    model_table_unref(m, old);
}

/* @digest is not among our tables; the daemon has just counted a reference of ours. */
static int model_tables_fetch_current(struct kvc_model *m, const uint8_t *digest)
{
    struct model_table *t;
    struct table *table = NULL;
    int r;

    r = model_table_download(m->client, digest, &table);
    if (r == 0)
        r = model_table_add(m, table, true, &t, &m->client->error);
    if (r != 0) {
        if (model_is_connected(m))
            model_table_unref_at_daemon(m, digest);
        return r;
    }

    model_tables_set_current(m, t);
    return 0;
}

/* OPEN_MODEL took a reference on table @digest for us; if we have one already, the second is given back. */
static int model_tables_adopt(struct kvc_model *m, const uint8_t *digest)
{
    struct model_table *t = model_tables_find(m, digest);

    if (!t)
        return model_tables_fetch_current(m, digest);

    if (t->referenced)
        model_table_unref_at_daemon(m, digest);
    t->referenced = true;
    model_tables_set_current(m, model_table_ref(t));
    return 0;
}

int model_remote_open(struct kvc_model *m)
{
    uint8_t digest[DIGEST_BYTES];
    int r = model_remote_import(m, digest);

    if (r < 0)
        return r;

    return model_tables_adopt(m, digest);
}

static int model_tables_switch_to(struct kvc_model *m, const uint8_t *digest)
{
    struct model_table *t = model_tables_find(m, digest);
    int r;

    if (!t) {
        r = model_tables_ref_at_daemon(m, digest);
        return r < 0 ? r : model_tables_fetch_current(m, digest);
    }

    r = model_table_reference(m, t);
    if (r < 0)
        return r;

    model_tables_set_current(m, model_table_ref(t));
    return 0;
}

/* Opens the model again if the daemon rebuilt its control page. A page that was replaced twice is zeros. */
static int model_tables_refresh_control(struct kvc_model *m)
{
    const struct control_page *page = extent_data(m->remote.control);

    if (atomic_load_explicit(&page->moved, memory_order_acquire) == 0 && page->magic == CONTROL_MAGIC)
        return 0;

    return model_remote_open(m);
}

/* The model's word in the control page, and the digest of the active table that it names. */
static int model_tables_read_word(struct kvc_model *m, uint64_t *ret_word, uint8_t ret_digest[DIGEST_BYTES])
{
    struct errmsg *e = &m->client->error;
    const struct control_page *page = extent_data(m->remote.control);
    const struct control_model *slot;
    uint64_t word;

    slot = &page->models[m->remote.control_slot];
    /* pairs with the daemon's store of the word: the digest of its entry is read after it */
    word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (control_active(word) == CONTROL_NO_TABLE)
        return fail(e, -ENODATA, "kvcobrad has no active table for this model: stage and activate one");
    if (control_active(word) >= CONTROL_DIGESTS_MAX)
        return fail(e, -EBADMSG, "the control page names table entry %u of %u", control_active(word),
                    CONTROL_DIGESTS_MAX);

    memcpy(ret_digest, slot->digests[control_active(word)], DIGEST_BYTES);
    *ret_word = word;
    return 0;
}

int model_table_active(struct kvc_model *m, uint8_t ret_digest[DIGEST_BYTES])
{
    uint64_t word;
    int r = model_tables_refresh_control(m);

    return r < 0 ? r : model_tables_read_word(m, &word, ret_digest);
}

/* One try. Return: 0; -ESTALE: the table was replaced meanwhile. */
static int model_tables_follow_once(struct kvc_model *m)
{
    uint8_t digest[DIGEST_BYTES];
    uint64_t word;
    int r = model_tables_read_word(m, &word, digest);

    if (r < 0)
        return r;

    if (memcmp(digest, m->current->table->digest, sizeof(digest)) != 0) {
        r = model_tables_switch_to(m, digest);
        if (r < 0)
            return r;
    }

    m->revision = control_revision(word);
    return 0;
}

int model_table_follow(struct kvc_model *m)
{
    int r = -ESTALE;

    for (unsigned i = 0; i < FOLLOW_TRIES && r == -ESTALE; i++) {
        if (!model_is_connected(m))
            return 0;

        r = model_tables_refresh_control(m);
        if (r == 0)
            r = model_tables_follow_once(m);
    }

    return r == -ENOTCONN ? 0 : r; /* the connection was lost: private sequences use the table that we have */
}
