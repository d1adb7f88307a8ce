/* See account.h. */
#include "daemon/store/account.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/account_name.h"
#include "daemon/store/journal.h"

/* The number of a section's name, which is stored before a record can have it. 0: all are in use. */
static uint32_t account_number(struct journal *j, const char *name)
{
    uint32_t number = journal_name_find(j, name);

    return number ? number : journal_name_add(j, name);
}

static int account_new(struct accounts *as, const char *name, struct account **ret, struct errmsg *e)
{
    _cleanup_(freep) struct account *a = calloc(1, sizeof(*a));

    if (!a)
        return fail(e, -ENOMEM, "out of memory for an account");

    assert(strlen(name) < sizeof(a->name));
    memcpy(a->name, name, strlen(name));
    a->accounts = as;
    a->isolated = true;
    a->log.tenant = a->name;
    if (account_name_uid(name, &a->uid)) {
        account_note_member(a, a->uid);
    } else {
        a->number = account_number(as->journal, name);
        if (a->number == 0)
            return fail(e, -ENOSPC,
                        "no room for the name of tenant %s beside %d others: evict pages of tenants that are "
                        "not in the configuration",
                        name, JOURNAL_NAMES_MAX);
    }

    a->next = as->list;
    as->list = a;
    as->n++;
    *ret = take_ptr(a);
    return 0;
}

int accounts_get_named(struct accounts *as, const char *name, struct account **ret, struct errmsg *e)
{
    struct account *a = as->list;
    int r;

    while (a && strcmp(a->name, name) != 0)
        a = a->next;
    if (!a) {
        r = account_new(as, name, &a, e);
        if (r < 0)
            return r;
    }

    *ret = account_ref(a);
    return 0;
}

bool account_may_take(uint64_t n, uint64_t n_all, uint64_t max, uint64_t share)
{
    if (n >= share || n_all >= max)
        return false;
    return n_all < max - max / 8 || n <= max / 64;
}

int accounts_get(struct accounts *as, uid_t uid, struct account **ret, struct errmsg *e)
{
    char name[ACCOUNT_NAME_BYTES];

    (void) snprintf(name, sizeof(name), ACCOUNT_UID_PREFIX "%" PRIu32, uid);
    return accounts_get_named(as, name, ret, e);
}

int accounts_get_recorded(struct accounts *as, uint32_t uid, uint32_t number, struct account **ret,
                          struct errmsg *e)
{
    const char *name = number ? journal_name(as->journal, number) : NULL;

    if (number == 0 && uid != UINT32_MAX) /* (uid_t) -1 is no user */
        return accounts_get(as, uid, ret, e);
    if (!name)
        return fail(e, -EBADMSG, "the name of its tenant is damaged");
    return accounts_get_named(as, name, ret, e);
}

void accounts_drop_names(struct accounts *as)
{
    for (uint32_t number = 1; number <= JOURNAL_NAMES_MAX; number++) {
        const struct account *a = as->list;

        while (a && a->number != number)
            a = a->next;
        if (!a && journal_name(as->journal, number))
            journal_name_remove(as->journal, number);
    }
}

void account_note_member(struct account *a, uid_t uid)
{
    if (uid == 0 || uid == getuid())
        a->isolated = false;
}

struct account *account_unref(struct account *a)
{
    struct account **link;

    if (!a || --a->n_refs > 0)
        return NULL;

    assert(a->n_connections == 0 && a->n_sessions == 0 && a->n_leases == 0 && a->arena_bytes == 0 &&
           a->waiting_bytes == 0);
    link = &a->accounts->list;
    while (*link != a)
        link = &(*link)->next;
    *link = a->next;
    a->accounts->n--;
    if (a->number != 0)
        journal_name_remove(a->accounts->journal, a->number);
    free(a);
    return NULL;
}
