/* Leases and their release; see leases.h. */
#include "client/connection/leases.h"

#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"

struct lease *leases_add(struct lease_list *list)
{
    struct lease *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->next = list->first;
    list->first = l;
    return l;
}

void lease_drop(struct lease *l, uint32_t i, int was_live)
{
    l->released[i / 8] |= (uint8_t) (1u << i % 8);
    l->n_released++;
    if (was_live)
        l->n_live--;
}

/* Whether the daemon heard it, whatever it thinks of it. */
static bool leases_send_release(struct lease *l, struct connection *c)
{
    Kvcobra__Release release = KVCOBRA__RELEASE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    release.lease = l->id;
    if (l->n_live > 0) { /* an empty bitmap means all of it */
        release.bitmap.data = l->released;
        release.bitmap.len = sizeof(l->released);
    }
    request.body_case = KVCOBRA__REQUEST__BODY_RELEASE;
    request.release = &release;
    (void) connection_tell(c, &request, NULL);
    return connection_is_open(c); /* if not: saying it twice does no harm */
}

bool leases_have_released(const struct lease_list *list)
{
    for (const struct lease *l = list->first; l; l = l->next)
        if (l->n_released > 0 && !l->forgotten)
            return true;
    return false;
}

void leases_flush(struct lease_list *list, struct connection *c)
{
    for (struct lease **at = &list->first; *at;) {
        struct lease *l = *at;

        if (l->n_released > 0 && (l->forgotten || (connection_is_open(c) && leases_send_release(l, c)))) {
            memset(l->released, 0, sizeof(l->released));
            l->n_released = 0;
        }
        if (l->n_live == 0 && l->n_released == 0) {
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
}

void leases_forget(struct lease_list *list)
{
    for (struct lease *l = list->first; l; l = l->next)
        l->forgotten = true;
}

int leases_confirm(const struct lease_list *list, struct connection *c, struct errmsg *e)
{
    const struct lease *l = list->first;
    int r = 0;

    do {
        uint64_t ids[WIRE_ITEMS_MAX];
        Kvcobra__KeepLeases keep = KVCOBRA__KEEP_LEASES__INIT;
        Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

        for (; l && keep.n_leases < c->items_per_message; l = l->next)
            if (!l->forgotten && l->id != 0)
                ids[keep.n_leases++] = l->id;
        keep.leases = ids;
        keep.last = !l;
        request.body_case = KVCOBRA__REQUEST__BODY_KEEP_LEASES;
        request.keep_leases = &keep;
        r = connection_tell(c, &request, e);
    } while (r == 0 && l);
    return r;
}

void leases_deinit(struct lease_list *list)
{
    while (list->first) {
        struct lease *l = list->first;

        list->first = l->next;
        free(l);
    }
}
