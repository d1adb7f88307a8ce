/* Writing control pages; see control.h. Readers see an entry's digest before the word that names it. */
#include "daemon/control.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/tenant.h"
#include "gpu/device.h"
#include "proto/shared.h"

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
        atomic_init(&page->pressure, atomic_load_explicit(&t->control->pressure, memory_order_relaxed));
        atomic_store_explicit(&t->control->moved, 1, memory_order_release);
        (void) extent_free(t->control_memory);
    }
    t->control_memory = memory;
    t->control = page;
    t->control_object++;
    t->n_models = 0;
    memset(t->n_digests, 0, sizeof(t->n_digests));
    return 0;
}

void control_set_pressure(struct tenant *t, uint64_t extent)
{
    atomic_store_explicit(&t->control->pressure, extent, memory_order_relaxed);
}

int control_find(const struct tenant *t, const uint8_t *model_digest)
{
    for (unsigned i = 0; i < t->n_models; i++)
        if (memcmp(t->control->models[i].model_digest, model_digest, DIGEST_BYTES) == 0)
            return (int) i;
    return -1;
}

static void add_model(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest)
{
    struct control_model *m = &t->control->models[t->n_models];

    memcpy(m->model_digest, model_digest, DIGEST_BYTES);
    memcpy(m->geometry_digest, geometry_digest, DIGEST_BYTES);
    t->n_digests[t->n_models++] = 0;
}

/* The entry that has @digest, appended if need be. There is room. */
static unsigned digest_entry(struct tenant *t, unsigned model, const uint8_t *digest)
{
    struct control_model *m = &t->control->models[model];

    for (unsigned i = 0; i < t->n_digests[model]; i++)
        if (memcmp(m->digests[i], digest, DIGEST_BYTES) == 0)
            return i;
    memcpy(m->digests[t->n_digests[model]], digest, DIGEST_BYTES);
    return t->n_digests[model]++;
}

static bool has_room(const struct tenant *t, int model, const uint8_t *digest)
{
    const struct control_model *m = &t->control->models[model];

    for (unsigned i = 0; i < t->n_digests[model]; i++)
        if (memcmp(m->digests[i], digest, DIGEST_BYTES) == 0)
            return true;
    return t->n_digests[model] < CONTROL_DIGESTS_MAX;
}

/* All models again, each with its active table only. */
static int rebuild(struct tenant *t, struct errmsg *e)
{
    struct control_page old;
    unsigned n = t->n_models;
    int r;

    memcpy(&old, t->control, sizeof(old));
    r = control_build(t, e);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < n; i++) {
        uint64_t word = atomic_load_explicit(&old.models[i].word, memory_order_relaxed);
        unsigned active = control_active(word);

        add_model(t, old.models[i].model_digest, old.models[i].geometry_digest);
        if (active < CONTROL_DIGESTS_MAX)
            active = digest_entry(t, i, old.models[i].digests[active]);
        atomic_store_explicit(&t->control->models[i].word,
                              control_word(control_revision(word), active, CONTROL_NO_TABLE, 0), memory_order_release);
    }
    return 0;
}

int control_publish(struct tenant *t, const uint8_t *model_digest, const uint8_t *geometry_digest,
                    const uint8_t *table_digest, uint64_t revision, uint32_t *ret_slot, struct errmsg *e)
{
    int model = control_find(t, model_digest);
    unsigned entry;

    if (model < 0) {
        if (t->n_models == CONTROL_MODELS_MAX)
            return fail(e, -ENOSPC, "tenant %s uses %d models already, which is the most", t->name,
                        CONTROL_MODELS_MAX);
        model = (int) t->n_models;
        add_model(t, model_digest, geometry_digest);
    } else if (!has_room(t, model, table_digest)) {
        int r = rebuild(t, e);

        if (r < 0)
            return r;
    }
    entry = digest_entry(t, (unsigned) model, table_digest);
    /* release: the digest written above is visible to whoever acquires this word */
    atomic_store_explicit(&t->control->models[model].word, control_word(revision, entry, CONTROL_NO_TABLE, 0),
                          memory_order_release);
    if (ret_slot)
        *ret_slot = (uint32_t) model;
    return 0;
}

void control_retired(struct tenant *t, const uint8_t *model_digest)
{
    int model = control_find(t, model_digest);

    if (model >= 0)
        (void) atomic_fetch_add_explicit(&t->control->models[model].retired_below, 1, memory_order_relaxed);
}
