/* Leases and their release; see leases.h. */
#include "client/leases.h"

#include <stdlib.h>
#include <string.h>

#include "client/connection.h"

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

static void send_release(struct lease *l, struct connection *c)
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
    memset(l->released, 0, sizeof(l->released));
    l->n_released = 0;
}

void leases_flush(struct lease_list *list, struct connection *c)
{
    for (struct lease **at = &list->first; *at;) {
        struct lease *l = *at;

        if (l->n_released > 0 && connection_is_open(c))
            send_release(l, c);
        if (l->n_live == 0) {
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
}

void leases_deinit(struct lease_list *list)
{
    while (list->first) {
        struct lease *l = list->first;

        list->first = l->next;
        free(l);
    }
}
