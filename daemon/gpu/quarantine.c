/* See quarantine.h. */
#include "daemon/gpu/quarantine.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/errmsg.h"

int quarantine_init(struct quarantine *q, const struct quarantine_owner *owner, uint32_t n_max,
                    uint64_t delay_ms, uint64_t patience_ms, struct errmsg *e)
{
    *q = (struct quarantine){
        .owner = *owner, .delay_ms = delay_ms, .patience_ms = patience_ms, .n_max = n_max};
    q->entries = calloc(n_max, sizeof(q->entries[0]));
    if (!q->entries && n_max > 0)
        return fail(e, -ENOMEM, "out of memory for a quarantine of %" PRIu32 " processes", n_max);
    return 0;
}

void quarantine_deinit(struct quarantine *q)
{
    free(q->entries);
    *q = (struct quarantine){0};
}

/* The entry is removed before the callback, which may read the list. The last entry takes its place. */
static void quarantine_retire(struct quarantine *q, uint32_t i, const char *why)
{
    uint32_t session = q->entries[i].session;

    q->entries[i] = q->entries[--q->n];
    q->owner.retire(q->owner.ctx, session, why);
}

void quarantine_add(struct quarantine *q, uint32_t session, pid_t pid, uint64_t now_ms)
{
    if (q->n == q->n_max) {
        q->owner.retire(q->owner.ctx, session, "too many dead processes are in quarantine");
        return;
    }
    q->entries[q->n++] = (struct quarantined){.session = session, .pid = pid, .since_ms = now_ms};
}

bool quarantine_needs_list(const struct quarantine *q)
{
    for (uint32_t i = 0; !q->is_pending && i < q->n; i++)
        if (q->entries[i].unlisted_ms == 0)
            return true;
    return false;
}

void quarantine_requested(struct quarantine *q)
{
    assert(!q->is_pending);
    q->is_pending = true;
    for (uint32_t i = 0; i < q->n; i++)
        q->entries[i].was_gone = true;
}

static bool quarantine_is_listed(const uint32_t *pids, size_t n, pid_t pid)
{
    for (size_t i = 0; i < n; i++)
        if (pids[i] == (uint32_t) pid)
            return true;
    return false;
}

void quarantine_listed(struct quarantine *q, const uint32_t *pids, size_t n, uint64_t now_ms)
{
    q->is_pending = false;
    for (uint32_t i = 0; i < q->n; i++) {
        struct quarantined *x = &q->entries[i];

        if (!x->was_gone || x->unlisted_ms != 0)
            continue;

        x->was_gone = false;
        if (quarantine_is_listed(pids, n, x->pid))
            x->since_ms = now_ms; /* the driver answered: the time limit of patience_ms starts again */
        else
            x->unlisted_ms = now_ms > 0 ? now_ms : 1;
    }
}

void quarantine_unanswered(struct quarantine *q)
{
    q->is_pending = false;
    for (uint32_t i = 0; i < q->n; i++)
        q->entries[i].was_gone = false;
}

void quarantine_retire_all(struct quarantine *q, const char *why)
{
    q->is_pending = false;
    while (q->n > 0)
        quarantine_retire(q, q->n - 1, why);
}

void quarantine_tick(struct quarantine *q, uint64_t now_ms)
{
    /* from the end, so that a removed entry is replaced by one that was checked already */
    for (uint32_t i = q->n; i-- > 0;) {
        const struct quarantined *x = &q->entries[i];
        uint32_t session = x->session;

        if (x->unlisted_ms != 0 && now_ms - x->unlisted_ms >= q->delay_ms) {
            q->entries[i] = q->entries[--q->n];
            q->owner.release(q->owner.ctx, session);
        } else if (x->unlisted_ms == 0 && now_ms - x->since_ms >= q->patience_ms) {
            quarantine_retire(q, i, "the driver did not say in time whether it still lists the process");
        }
    }
}
