/* Accounts by name, and what records of an earlier process say of them. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/store/account.h"
#include "daemon/store/journal.h"

const char test_suite[] = "account";

static struct journal j;
static struct accounts as;

static void setup(void)
{
    assert(journal_new(&j, NULL) == 0);
    as = (struct accounts){.journal = &j};
}

static struct account *get(const char *name)
{
    struct account *a;

    CU_ASSERT_EQUAL_FATAL(accounts_get_named(&as, name, &a, NULL), 0);
    return a;
}

/* One account per name, freed with its last reference; only names of sections are in the journal. */
static void test_references(void)
{
    struct account *a, *b, *c;

    setup();
    a = get("team");
    b = get("team");
    c = get("uid-1000");
    CU_ASSERT(a == b && a->n_refs == 2 && as.n == 2);
    CU_ASSERT(a->number == 1 && c->number == 0 && c->uid == 1000);
    CU_ASSERT_STRING_EQUAL(journal_name(&j, 1), "team");
    (void) account_unref(a);
    CU_ASSERT_EQUAL(as.n, 2);
    (void) account_unref(b);
    CU_ASSERT(as.n == 1 && journal_name(&j, 1) == NULL);
    CU_ASSERT_EQUAL(accounts_get(&as, 1000, &b, NULL), 0);
    CU_ASSERT_PTR_EQUAL(b, c);
    (void) account_unref(b);
    (void) account_unref(c);
    CU_ASSERT(as.n == 0 && !as.list);
    journal_deinit(&j);
}

static void test_isolation(void)
{
    struct account *root, *other, *team;

    setup();
    assert(accounts_get(&as, getuid(), &root, NULL) == 0 && accounts_get(&as, 4711, &other, NULL) == 0);
    team = get("team");
    CU_ASSERT(!root->isolated && other->isolated && team->isolated);
    account_note_member(team, 4711);
    CU_ASSERT_TRUE(team->isolated);
    account_note_member(team, 0);
    CU_ASSERT_FALSE(team->isolated);
    (void) account_unref(root);
    (void) account_unref(other);
    (void) account_unref(team);
    journal_deinit(&j);
}

/* Records of version 2 have the number 0; a number without a name is refused, never another account. */
static void test_records(void)
{
    struct account *team, *a = NULL;

    setup();
    team = get("team");
    CU_ASSERT_EQUAL(accounts_get_recorded(&as, 4711, 1, &a, NULL), 0);
    CU_ASSERT_PTR_EQUAL(a, team);
    CU_ASSERT(account_is_recorded(team, 1, 1) && account_is_recorded(team, 2, 1));
    CU_ASSERT_FALSE(account_is_recorded(team, 0, 0));
    (void) account_unref(a);
    CU_ASSERT_EQUAL(accounts_get_recorded(&as, 4711, 0, &a, NULL), 0);
    CU_ASSERT_STRING_EQUAL(a->name, "uid-4711");
    CU_ASSERT(account_is_recorded(a, 4711, 0) && !account_is_recorded(a, 4712, 0));
    CU_ASSERT_FALSE(account_is_recorded(a, 4711, 1));
    (void) account_unref(a);
    a = team;
    CU_ASSERT_EQUAL(accounts_get_recorded(&as, 4711, 2, &a, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(accounts_get_recorded(&as, 4711, JOURNAL_NAMES_MAX + 1, &a, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(accounts_get_recorded(&as, UINT32_MAX, 0, &a, NULL), -EBADMSG);
    CU_ASSERT_PTR_EQUAL(a, team);
    (void) account_unref(team);
    journal_deinit(&j);
}

/* The journal is full of names: a new one is refused with a sentence, and names without an account go. */
static void test_limit(void)
{
    struct account *last, *a = NULL;
    struct errmsg e = {""};
    char name[16];

    setup();
    for (unsigned i = 0; i < JOURNAL_NAMES_MAX - 1; i++) {
        (void) snprintf(name, sizeof(name), "old%u", i);
        CU_ASSERT_EQUAL(journal_name_add(&j, name), i + 1);
    }
    last = get("last");
    CU_ASSERT_EQUAL(last->number, JOURNAL_NAMES_MAX);
    CU_ASSERT_EQUAL(accounts_get_named(&as, "more", &a, &e), -ENOSPC);
    CU_ASSERT(strstr(e.text, "more") && !a && as.n == 1);
    accounts_drop_names(&as);
    CU_ASSERT(!journal_name(&j, 1) && journal_name(&j, JOURNAL_NAMES_MAX));
    a = get("more");
    CU_ASSERT_EQUAL(a->number, 1);
    (void) account_unref(a);
    (void) account_unref(last);
    journal_deinit(&j);
}

static void test_shares(void)
{
    CU_ASSERT(account_may_take(9, 9, 64, 10));
    CU_ASSERT(!account_may_take(10, 10, 64, 10)); /* the share */
    CU_ASSERT(account_may_take(55, 55, 64, 64));
    CU_ASSERT(!account_may_take(56, 56, 64, 64)); /* 8 of 64 are left for those with at most one */
    CU_ASSERT(!account_may_take(2, 56, 64, 64));
    CU_ASSERT(account_may_take(1, 56, 64, 64));
    CU_ASSERT(account_may_take(0, 63, 64, 64));
    CU_ASSERT(!account_may_take(0, 64, 64, 64));
    CU_ASSERT(account_may_take(3, 3, 4, 4)); /* too few to keep any back */
}

const struct test_case test_cases[] = {
    TEST(test_references), TEST(test_isolation), TEST(test_records),
    TEST(test_limit),      TEST(test_shares),    TEST_END,
};
