/*
 * kvcobrad with failures that no test can cause from outside, linked with -Wl,--wrap. KVC_TEST_FAULT
 * selects one. "sessions": no session of an earlier process can be restored. "leases": every other
 * lease cannot be restored.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/lease.h"
#include "daemon/session/session.h"

int __real_session_restore(struct sessions *ss, uint32_t number, const struct session_record *record,
                           struct tenant *t, int pidfd, struct session **ret, struct errmsg *e);
int __real_lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell);
int __wrap_session_restore(struct sessions *ss, uint32_t number, const struct session_record *record,
                           struct tenant *t, int pidfd, struct session **ret, struct errmsg *e);
int __wrap_lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell);

static int is_asked(const char *what)
{
    const char *selected = getenv("KVC_TEST_FAULT");

    return selected && strcmp(selected, what) == 0;
}

int __wrap_session_restore(struct sessions *ss, uint32_t number, const struct session_record *record,
                           struct tenant *t, int pidfd, struct session **ret, struct errmsg *e)
{
    return is_asked("sessions") ? -ENOMEM : __real_session_restore(ss, number, record, t, pidfd, ret, e);
}

int __wrap_lease_restore(struct leases *l, uint64_t id, uint32_t item, uint32_t cell)
{
    return is_asked("leases") && cell % 2 == 0 ? -ENOMEM : __real_lease_restore(l, id, item, cell);
}
