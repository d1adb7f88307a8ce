/* See tenant.h. The control page is control.c, the index tenant_index.c. */
#include "daemon/store/tenant.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/secret_memory.h"
#include "daemon/store/account.h"
#include "daemon/store/advice.h"
#include "daemon/store/control.h"
#include "daemon/store/pool.h"
#include "daemon/store/space.h"
#include "daemon/store/tenant_index.h"
#include "gpu/device.h"

/*
 * The key is BLAKE2b of the account's name, keyed with the daemon's secret. It is equal on all hosts with
 * that secret. The secret cannot be derived from it.
 */
static void tenant_derive_index_key(const struct account *a, const uint8_t secret[static 32],
                                    uint8_t ret[static INDEX_KEY_BYTES])
{
    char text[32 + ACCOUNT_NAME_BYTES];
    int n;

    if (a->number == 0)
        n = snprintf(text, sizeof(text), "kvcobra index key 1 uid %" PRIu32, a->uid);
    else
        n = snprintf(text, sizeof(text), "kvcobra index key 1 tenant %s", a->name);

    (void) crypto_generichash(ret, INDEX_KEY_BYTES, (const unsigned char *) text, (size_t) n, secret, 32);
}

int tenant_new(const struct tenant_options *o, struct tenant **ret, struct errmsg *e)
{
    _cleanup_(tenant_freep) struct tenant *t = calloc(1, sizeof(*t));
    const char *name = o->device_name;
    int r;

    if (!t)
        return fail(e, -ENOMEM, "out of memory for a tenant");

    t->number = o->number;
    t->next_fd = -1;
    t->account = account_ref(o->account);
    t->device = o->device;
    t->quota_bytes = o->quota_bytes;
    t->guarantee_bytes = o->guarantee_bytes;
    (void) snprintf(t->name, sizeof(t->name), "%s%s%s", o->account->name, name ? "@" : "", name ? name : "");
    memcpy(t->boot_id, o->boot_id, BOOT_ID_BYTES);
    t->index_key = secret_memory_new(INDEX_KEY_BYTES);
    if (!t->index_key)
        return fail(e, -ENOMEM, "out of memory for the key of tenant %s", t->name);
    tenant_derive_index_key(o->account, o->secret, t->index_key);
    if (ghosts_init(&t->ghosts, o->n_ghosts) < 0)
        return fail(e, -ENOMEM, "out of memory for the ghosts of tenant %s", t->name);

    r = tenant_index_init(t, e);
    if (r < 0)
        return r;

    r = control_build(t, e);
    if (r < 0)
        return r;

    *ret = take_ptr(t);
    return 0;
}

struct tenant *tenant_free(struct tenant *t)
{
    if (!t)
        return NULL;

    tenant_groups_free(t, NULL);
    tenant_index_deinit(t);
    control_free(t);
    ghosts_deinit(&t->ghosts);
    kept_deinit(&t->kept);
    t->advice = advice_free(t->advice);
    (void) account_unref(t->account);
    (void) secret_memory_free(t->index_key, INDEX_KEY_BYTES);
    free(t);
    return NULL;
}

/* ---- groups ---- */

struct group *tenant_group_find(const struct tenant *t, const struct space *space, unsigned page_class)
{
    for (struct group *g = t->groups; g; g = g->next)
        if (g->space == space && g->page_class == page_class)
            return g;
    return NULL;
}

int tenant_group(struct tenant *t, struct space *space, unsigned page_class, struct group **ret_group)
{
    struct group *g = tenant_group_find(t, space, page_class);

    if (!g) {
        g = malloc(sizeof(*g));
        if (!g)
            return -ENOMEM;

        pool_group_init(g, t, space, page_class, space->layout.slot_bytes[page_class],
                        space->layout.page_bytes[page_class]);
        g->next = t->groups;
        t->groups = g;
        space->n_groups++;
        t->account->n_groups++;
    }

    *ret_group = g;
    return 0;
}

static void tenant_group_free(struct tenant *t, struct group **link)
{
    struct group *g = *link;

    assert(g->n_used == 0);
    *link = g->next;
    g->space->n_groups--;
    t->account->n_groups--;
    free(g);
}

void tenant_groups_drop_empty(struct tenant *t)
{
    struct group **link = &t->groups;

    while (*link) {
        if ((*link)->n_used == 0)
            tenant_group_free(t, link);
        else
            link = &(*link)->next;
    }
}

void tenant_groups_free(struct tenant *t, const struct space *space)
{
    struct group **link = &t->groups;

    while (*link) {
        if (!space || (*link)->space == space)
            tenant_group_free(t, link);
        else
            link = &(*link)->next;
    }
}
