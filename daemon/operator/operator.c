/* EVICT: an operator drops unheld pages of a tenant. SET_QUOTA is quota.c. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/store/evict.h"

enum { EVICT_PAGES_PER_MESSAGE = 8192 }; /* a few milliseconds of the loop */

static int operator_handle_evict(struct request *rq)
{
    const Kvcobra__Evict *m = rq->message->evict;
    Kvcobra__EvictReply *reply = rq->server->scratch->body;
    const uint8_t *digest = NULL;
    struct tenant *only = m->tenant[0] ? devices_find_tenant(rq->server->devices, m->tenant) : NULL;
    uint32_t n = 0;

    if (m->tenant[0] && !only)
        return fail(&rq->error, -ENOENT,
                    "there is no tenant \"%.40s\": \"kvcobra status\" lists those with sessions or pages",
                    m->tenant);
    if (m->table_digest.len > 0) {
        int r = request_digest(rq, &m->table_digest, "table digest", &digest);

        if (r < 0)
            return r;
    }

    kvcobra__evict_reply__init(reply);
    for (struct tenant *t = NULL;
         n < EVICT_PAGES_PER_MESSAGE && (t = devices_next_tenant(rq->server->devices, t));) {
        uint64_t bytes;

        if (only && t != only)
            continue;

        n += evict_some(store_of(t), t, digest, EVICT_PAGES_PER_MESSAGE - n, &bytes);
        reply->bytes += bytes;
    }

    reply->pages = n;
    reply->more = n == EVICT_PAGES_PER_MESSAGE;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_EVICT;
    rq->reply.evict = reply;
    log_event(LOG_NOTICE, "evict", "tenant=%s pages=%" PRIu32 " bytes=%" PRIu64, only ? only->name : "all", n,
              reply->bytes);
    return 0;
}
REQUEST(request_evict) = {.body = KVCOBRA__REQUEST__BODY_EVICT,
                          .run = operator_handle_evict,
                          .needs = CONN_OPEN,
                          .sockets = ON_OPERATOR};
