/* See table_check.h. */
#include "tools/operate/table_check.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/operator.h"
#include "tools/command/operator_tables.h"

static int table_target_of_file(const char *path, uint8_t ret[static KVC_DIGEST_BYTES])
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct errmsg e = {""};

    if (table_load(path, &t, &e) < 0)
        return command_fail("%s", e.text);

    memcpy(ret, t->digest, KVC_DIGEST_BYTES);
    return COMMAND_OK;
}

int table_target_find(kvc_client *c, const char *text, struct table_target *ret)
{
    int code;

    if (operator_is_digest(text))
        code = operator_find_table(c, text, ret->digest);
    else if (operator_is_short_digest(text) && access(text, F_OK) < 0)
        code = command_fail("'%s' is no file, and a digest needs at least its first six digits", text);
    else
        code = table_target_of_file(text, ret->digest);
    if (code == COMMAND_OK)
        (void) digest_hex(ret->digest, ret->hex);
    return code;
}

static bool table_check_is_same(ProtobufCBinaryData a, const uint8_t *b)
{
    return memcmp(a.data, b, KVC_DIGEST_BYTES) == 0;
}

/* A table of the model of @t in state @state, other than @t; NULL: none. */
static const Kvcobra__TableInfo *table_check_other(const Kvcobra__ListTablesReply *list,
                                                   const Kvcobra__TableInfo *t, Kvcobra__TableState state)
{
    for (size_t i = 0; i < list->n_tables; i++)
        if (list->tables[i] != t && list->tables[i]->state == state &&
            table_check_is_same(list->tables[i]->model_digest, t->model_digest.data))
            return list->tables[i];
    return NULL;
}

static int table_check_trial(const Kvcobra__ListTablesReply *list, const Kvcobra__TableInfo *t,
                             const char *name)
{
    if (t->state != KVCOBRA__TABLE_STATE__TABLE_VERIFIED && t->state != KVCOBRA__TABLE_STATE__TABLE_SHADOW)
        return command_fail("table %s is %s: only one that is verified and not in use can be tried", name,
                            operator_table_state(t->state));
    if (!table_check_other(list, t, KVCOBRA__TABLE_STATE__TABLE_ACTIVE))
        return command_fail("no table of the model of %s is active: activate one before another is tried",
                            name);
    return COMMAND_OK;
}

static int table_check_rollback(const Kvcobra__ListTablesReply *list, const Kvcobra__TableInfo *t,
                                const char *name)
{
    if (t->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE &&
        !table_check_other(list, t, KVCOBRA__TABLE_STATE__TABLE_DRAINING))
        return command_fail("no earlier table of the model of %s is draining: activate the one you want",
                            name);
    return COMMAND_OK; /* a table that is not active was left already, and the daemon says so */
}

static int table_check_retire(const Kvcobra__TableInfo *t, const char *name)
{
    if (t->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE && t->exact == 0)
        return command_fail("table %s is active: activate another one, or roll back, before you retire it",
                            name);
    return COMMAND_OK;
}

int table_check_change(kvc_client *c, enum table_change what, const uint8_t digest[static KVC_DIGEST_BYTES],
                       const char *name)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    const Kvcobra__TableInfo *t = NULL;
    struct errmsg e = {""};

    if (operator_list_tables(c, &list, &e) < 0)
        return command_fail("%s", e.text);

    for (size_t i = 0; i < list->n_tables; i++)
        if (table_check_is_same(list->tables[i]->digest, digest))
            t = list->tables[i];
    if (!t)
        return command_fail("the daemon does not have table %s: 'kvcobra table stage' sends it", name);

    switch (what) {
    case TABLE_CHANGE_SHADOW:
    case TABLE_CHANGE_CANARY:
        return table_check_trial(list, t, name);
    case TABLE_CHANGE_ROLLBACK:
        return table_check_rollback(list, t, name);
    case TABLE_CHANGE_RETIRE:
        return table_check_retire(t, name);
    }

    return COMMAND_OK;
}
