/*
 * kvcobrad with failures that no test can cause from outside, linked with -Wl,--wrap. KVC_TEST_FAULT
 * selects one. "sessions": no session of an earlier process can be restored. "leases": every other
 * lease cannot be restored. KVC_FAULT_MEMORY names the file of tests/fault/fault_page.h.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/lease.h"
#include "daemon/session/session.h"
#include "tests/fault/calls.h"
#include "tests/fault/fault.h"

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

/*
 * Before main(): all allocations of this program and of jansson may fail from here on, and system calls
 * count.
 */
__attribute__((constructor)) static void faulty_begin(void)
{
    const char *path = getenv("KVC_FAULT_MEMORY");

    if (!path)
        return;
    json_set_alloc_funcs(malloc, free);
    fault_follow(path);
    calls_mark();
}
