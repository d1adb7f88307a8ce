/* See client_leases.h. */
#include "client/connection/client_leases.h"

#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"

struct client_lease *client_leases_add(struct client_leases *list)
{
    struct client_lease *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;

    l->next = list->first;
    list->first = l;
    return l;
}

void client_lease_drop(struct client_lease *l, uint32_t i, int was_live)
{
    l->released[i / 8] |= (uint8_t) (1u << i % 8);
    l->n_released++;
    if (was_live)
        l->n_live--;
}

void client_lease_refuse(struct client_lease *l, uint64_t id, size_t n_items)
{
    l->is_awaited = false;
    l->id = id;
    for (uint32_t i = 0; i < n_items && i < WIRE_ITEMS_MAX; i++)
        client_lease_drop(l, i, 0);
}

/* Return: whether the daemon has received it; its errno does not matter. */
static bool client_leases_send_release(struct client_lease *l, struct connection *c)
{
    Kvcobra__Release release = KVCOBRA__RELEASE__INIT;

    release.lease = l->id;
    if (l->n_live > 0) { /* an empty bitmap means the whole lease */
        release.bitmap.data = l->released;
        release.bitmap.len = sizeof(l->released);
    }
    (void) connection_send(c, KVCOBRA__REQUEST__BODY_RELEASE, &release, NULL);

    return connection_is_open(c); /* if not, it is sent again later, which changes nothing */
}

bool client_leases_have_released(const struct client_leases *list)
{
    for (const struct client_lease *l = list->first; l; l = l->next)
        if (l->n_released > 0 && !l->forgotten)
            return true;
    return false;
}

void client_leases_flush(struct client_leases *list, struct connection *c)
{
    for (struct client_lease **at = &list->first; *at;) {
        struct client_lease *l = *at;

        if (l->n_released > 0 &&
            (l->forgotten || (connection_is_open(c) && client_leases_send_release(l, c)))) {
            memset(l->released, 0, sizeof(l->released));
            l->n_released = 0;
        }

        if (l->n_live == 0 && l->n_released == 0 && !l->is_awaited) {
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
}

void client_leases_forget(struct client_leases *list)
{
    for (struct client_lease *l = list->first; l; l = l->next)
        l->forgotten = true;
}

int client_leases_confirm(const struct client_leases *list, struct connection *c, struct errmsg *e)
{
    const struct client_lease *l = list->first;
    int r;

    do {
        uint64_t ids[WIRE_ITEMS_MAX];
        Kvcobra__KeepLeases keep = KVCOBRA__KEEP_LEASES__INIT;

        for (; l && keep.n_leases < c->items_per_message; l = l->next)
            if (!l->forgotten && l->id != 0)
                ids[keep.n_leases++] = l->id;
        keep.leases = ids;
        keep.last = !l;
        r = connection_send(c, KVCOBRA__REQUEST__BODY_KEEP_LEASES, &keep, e);
    } while (r == 0 && l);

    return r;
}

void client_leases_deinit(struct client_leases *list)
{
    while (list->first) {
        struct client_lease *l = list->first;

        list->first = l->next;
        free(l);
    }
}
