/* See table_check.h. */
#include "tools/operate/table_check.h"

#include <stdbool.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/command/operator.h"
#include "tools/operate/table_list.h"

static bool table_check_is_same(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, KVC_DIGEST_BYTES) == 0;
}

/* A table of the model of @t in state @state, other than @t; NULL: none. */
static const kvc_table_info *table_check_other(const kvc_table_info *tables, size_t n,
                                               const kvc_table_info *t, enum kvc_table_state state)
{
    for (size_t i = 0; i < n; i++)
        if (&tables[i] != t && tables[i].state == state &&
            table_check_is_same(tables[i].model_digest, t->model_digest))
            return &tables[i];
    return NULL;
}

static int table_check_trial(const kvc_table_info *tables, size_t n, const kvc_table_info *t,
                             const char *name)
{
    if (t->state != KVC_TABLE_VERIFIED && t->state != KVC_TABLE_SHADOW)
        return command_fail("table %s is %s: only one that is verified and not in use can be tried", name,
                            table_list_state_name(t->state));
    if (!table_check_other(tables, n, t, KVC_TABLE_ACTIVE))
        return command_fail("no table of the model of %s is active: activate one before another is tried",
                            name);
    return COMMAND_OK;
}

static int table_check_rollback(const kvc_table_info *tables, size_t n, const kvc_table_info *t,
                                const char *name)
{
    if (t->state == KVC_TABLE_ACTIVE && !table_check_other(tables, n, t, KVC_TABLE_DRAINING))
        return command_fail("no earlier table of the model of %s is draining: activate the one you want",
                            name);
    return COMMAND_OK; /* a table that is not active was left already, and the daemon says so */
}

static int table_check_retire(const kvc_table_info *t, const char *name)
{
    if (t->state == KVC_TABLE_ACTIVE)
        return command_fail("table %s is active: activate another one, or roll back, before you retire it",
                            name);
    return COMMAND_OK;
}

int table_check_change(kvc_client *c, enum table_change what, const uint8_t digest[static KVC_DIGEST_BYTES],
                       const char *name)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    const kvc_table_info *t = NULL;
    size_t n;

    if (kvc_table_list(c, sizeof(*tables), &tables, &n) < 0)
        return operator_fail(c);

    for (size_t i = 0; i < n; i++)
        if (table_check_is_same(tables[i].digest, digest))
            t = &tables[i];
    if (!t)
        return command_fail("the daemon does not have table %s: 'kvcobra table stage' sends it", name);

    switch (what) {
    case TABLE_CHANGE_SHADOW:
    case TABLE_CHANGE_CANARY:
        return table_check_trial(tables, n, t, name);
    case TABLE_CHANGE_ROLLBACK:
        return table_check_rollback(tables, n, t, name);
    case TABLE_CHANGE_RETIRE:
        return table_check_retire(t, name);
    }

    return COMMAND_OK;
}
