/* See control.h. A digest is stored before the word that names its entry, so readers see both. */
#include "daemon/store/control.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/store/tenant_types.h"
#include "gpu/device.h"
#include "proto/shared.h"

static void control_give_back(struct extent *memory)
{
    if (memory)
        extent_discard(memory, 0, CONTROL_PAGE_BYTES);
    (void) extent_free(memory);
}

void control_free(struct tenant *t)
{
    control_give_back(t->old_control);
    control_give_back(t->control_memory);
    t->old_control = t->control_memory = NULL;
    t->control = NULL;
}

int control_build(struct tenant *t, struct errmsg *e)
{
    struct extent *memory;
    struct control_page *page;
    int r = extent_new("kvcobra-control", CONTROL_PAGE_BYTES, EXTENT_READ, &memory, e);

    if (r < 0)
        return r;

    page = extent_data(memory);
    page->magic = CONTROL_MAGIC;
    page->version = PROTO_VERSION;
    memcpy(page->boot_id, t->boot_id, BOOT_ID_BYTES);
    for (unsigned i = 0; i < CONTROL_MODELS_MAX; i++)
        atomic_init(&page->models[i].word, control_word(0, CONTROL_NO_TABLE, CONTROL_NO_TABLE, 0));
    if (t->control) {
        atomic_init(&page->reclaim, atomic_load_explicit(&t->control->reclaim, memory_order_relaxed));
        atomic_init(&page->filter, atomic_load_explicit(&t->control->filter, memory_order_relaxed));
        atomic_init(&page->asks, atomic_load_explicit(&t->control->asks, memory_order_relaxed));
        atomic_store_explicit(&t->control->moved, 1, memory_order_release);
        control_give_back(t->old_control);
        t->old_control = t->control_memory;
    }

    t->control_memory = memory;
    t->control = page;
    t->control_object++;
    t->n_models = 0;
    memset(t->n_digests, 0, sizeof(t->n_digests));
    memset(t->n_model_users, 0, sizeof(t->n_model_users));
    return 0;
}

void control_set_reclaim(struct tenant *t, uint64_t extent)
{
    atomic_store_explicit(&t->control->reclaim, extent, memory_order_relaxed);
}

void control_set_filter(struct tenant *t, uint64_t object)
{
    atomic_store_explicit(&t->control->filter, object, memory_order_relaxed);
}

void control_set_asks(struct tenant *t, bool asks)
{
    atomic_store_explicit(&t->control->asks, asks, memory_order_relaxed);
}

int control_find(const struct tenant *t, const uint8_t *model_digest)
{
    for (unsigned i = 0; i < t->n_models; i++)
        if (memcmp(t->control->models[i].model_digest, model_digest, DIGEST_BYTES) == 0)
            return (int) i;
    return -1;
}

static void control_add_model(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest)
{
    struct control_model *m = &t->control->models[t->n_models];

    memcpy(m->model_digest, model_digest, DIGEST_BYTES);
    memcpy(m->geometry_digest, geometry_digest, DIGEST_BYTES);
    t->n_digests[t->n_models++] = 0;
}

/* Returns the entry with @digest, appended if it is new. The list has room. */
static unsigned control_digest_entry(struct tenant *t, unsigned model, const uint8_t *digest)
{
    struct control_model *m = &t->control->models[model];

    for (unsigned i = 0; i < t->n_digests[model]; i++)
        if (memcmp(m->digests[i], digest, DIGEST_BYTES) == 0)
            return i;
    memcpy(m->digests[t->n_digests[model]], digest, DIGEST_BYTES);
    return t->n_digests[model]++;
}

/* How many digests of @c the page does not have yet. */
static unsigned control_n_missing(const struct tenant *t, int model, const struct control_tables *c)
{
    const struct control_model *m = &t->control->models[model];
    const uint8_t *const wanted[] = {c->active, c->canary, c->shadow};
    unsigned n = 0;

    for (unsigned k = 0; k < 3; k++) {
        bool found = !wanted[k];

        for (unsigned i = 0; i < t->n_digests[model] && !found; i++)
            found = memcmp(m->digests[i], wanted[k], DIGEST_BYTES) == 0;
        n += !found;
    }

    return n;
}

/* Stores a model's words. Release: a reader that acquires a word sees the digests that it names. */
static void control_store_words(struct tenant *t, unsigned model, const struct control_tables *c)
{
    unsigned active = control_digest_entry(t, model, c->active);
    unsigned canary = c->canary ? control_digest_entry(t, model, c->canary) : CONTROL_NO_TABLE;
    uint64_t shadow =
        c->shadow ? (uint64_t) c->shadow_ppm << 8 | (control_digest_entry(t, model, c->shadow) + 1) : 0;

    atomic_store_explicit(&t->control->shadow[model], shadow, memory_order_release);
    atomic_store_explicit(&t->control->models[model].word,
                          control_word(c->revision, active, canary, c->canary ? c->canary_share : 0),
                          memory_order_release);
}

static const uint8_t *control_digest_at(const struct control_model *m, unsigned entry)
{
    return entry < CONTROL_DIGESTS_MAX ? m->digests[entry] : NULL;
}

/* Creates a new page with the models that have users, and with @keep, each with the digests in use. */
static int control_rebuild(struct tenant *t, int keep, struct errmsg *e)
{
    uint32_t n_users[CONTROL_MODELS_MAX];
    struct control_page old;
    unsigned n = t->n_models;
    int r;

    memcpy(&old, t->control, sizeof(old));
    memcpy(n_users, t->n_model_users, sizeof(n_users));
    r = control_build(t, e);
    if (r < 0)
        return r;

    for (unsigned i = 0; i < n; i++) {
        const struct control_model *m = &old.models[i];
        uint64_t word = atomic_load_explicit(&m->word, memory_order_relaxed);
        uint64_t shadow = atomic_load_explicit(&old.shadow[i], memory_order_relaxed);
        struct control_tables c = {
            .active = control_digest_at(m, control_active(word)),
            .canary = control_digest_at(m, control_canary(word)),
            .canary_share = control_canary_share(word),
            .shadow = shadow ? control_digest_at(m, (unsigned) (shadow & 255) - 1) : NULL,
            .shadow_ppm = (uint32_t) (shadow >> 8),
            .revision = control_revision(word),
        };

        if (n_users[i] == 0 && (int) i != keep)
            continue;

        control_add_model(t, m->model_digest, m->geometry_digest);
        t->n_model_users[t->n_models - 1] = n_users[i];
        if (c.active)
            control_store_words(t, t->n_models - 1, &c);
    }

    return 0;
}

/* The page has no room for another model. Return: 0: it has now; -ENOSPC; errno of the memory. */
static int control_drop_unused(struct tenant *t, struct errmsg *e)
{
    for (unsigned i = 0; i < t->n_models; i++)
        if (t->n_model_users[i] == 0)
            return control_rebuild(t, -1, e);
    return fail(e, -ENOSPC, "the clients of tenant %s have opened %d models, the maximum: close some",
                t->name, CONTROL_MODELS_MAX);
}

int control_publish(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest,
                    const struct control_tables *tables, uint32_t *ret_slot, struct errmsg *e)
{
    int model = control_find(t, model_digest), r = 0;

    if (model < 0 && t->n_models == CONTROL_MODELS_MAX)
        r = control_drop_unused(t, e);
    else if (model >= 0 && t->n_digests[model] + control_n_missing(t, model, tables) > CONTROL_DIGESTS_MAX)
        r = control_rebuild(t, model, e);
    if (r < 0)
        return r;

    model = control_find(t, model_digest); /* its entry may be another one now */
    if (model < 0) {
        model = (int) t->n_models;
        control_add_model(t, model_digest, geometry_digest);
    }

    control_store_words(t, (unsigned) model, tables);
    if (ret_slot)
        *ret_slot = (uint32_t) model;
    return 0;
}

void control_withdraw(struct tenant *t, const uint8_t *model_digest)
{
    int model = control_find(t, model_digest);

    if (model < 0)
        return;

    atomic_store_explicit(&t->control->shadow[model], 0, memory_order_release);
    atomic_store_explicit(&t->control->models[model].word,
                          control_word(0, CONTROL_NO_TABLE, CONTROL_NO_TABLE, 0), memory_order_release);
}

void control_model_ref(struct tenant *t, uint32_t slot)
{
    t->n_model_users[slot]++;
}

void control_model_unref(struct tenant *t, const uint8_t *model_digest)
{
    int model = control_find(t, model_digest);

    assert(model >= 0 && t->n_model_users[model] > 0);
    t->n_model_users[model]--;
}

void control_count_retired(struct tenant *t, const uint8_t *model_digest)
{
    int model = control_find(t, model_digest);

    if (model >= 0)
        (void) atomic_fetch_add_explicit(&t->control->models[model].retired_below, 1, memory_order_relaxed);
}
