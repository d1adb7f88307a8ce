/* The control page: what readers may see at any moment, and what happens when its lists are full. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/usage.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"
#include "daemon/store/tenant.h"
#include "gpu/device.h"

const char test_suite[] = "control";

static struct tenant *make_tenant(void)
{
    static struct device device;
    uint8_t secret[32] = {1}, boot_id[BOOT_ID_BYTES] = {2};
    static struct accounts accounts;
    struct account *account;
    struct tenant_options o;
    struct tenant *t;

    assert(accounts_get(&accounts, 1000, &account, NULL) == 0);
    o = (struct tenant_options){
        .account = account,
        .device = &device,
        .quota_bytes = 1 << 20,
        .secret = secret,
        .boot_id = boot_id,
        .n_ghosts = 16,
    };
    assert(tenant_new(&o, &t, NULL) == 0);
    (void) account_unref(account); /* the tenant has a reference */
    return t;
}

/* Any two numbers give different digests. */
static const uint8_t *digest(uint8_t what, unsigned n)
{
    static uint8_t d[2][DIGEST_BYTES];
    static unsigned next;

    next ^= 1;
    memset(d[next], what, DIGEST_BYTES);
    memcpy(d[next], &n, sizeof(n));
    return d[next];
}

static int publish(struct tenant *t, unsigned model, unsigned table, uint64_t revision, uint32_t *ret_slot)
{
    uint8_t geometry[DIGEST_BYTES] = {9};

    const struct control_tables c = {.active = digest(2, table), .revision = revision};

    return control_publish(t, digest(1, model), geometry, &c, ret_slot, NULL);
}

static bool active_is(const struct tenant *t, uint32_t slot, unsigned table)
{
    uint64_t word = atomic_load(&t->control->models[slot].word);

    return control_active(word) < CONTROL_DIGESTS_MAX &&
           memcmp(t->control->models[slot].digests[control_active(word)], digest(2, table), DIGEST_BYTES) ==
               0;
}

static void test_empty_page(void)
{
    struct tenant *t = make_tenant();

    CU_ASSERT_EQUAL(t->control->magic, CONTROL_MAGIC);
    CU_ASSERT_EQUAL(atomic_load(&t->control->moved), 0);
    for (unsigned i = 0; i < CONTROL_MODELS_MAX; i++) /* table 0 of an unused entry must not look active */
        CU_ASSERT_EQUAL(control_active(atomic_load(&t->control->models[i].word)), CONTROL_NO_TABLE);
    CU_ASSERT_EQUAL(control_find(t, digest(1, 0)), -1);
    (void) tenant_free(t);
}

static void test_publish(void)
{
    struct tenant *t = make_tenant();
    uint32_t a, b;

    CU_ASSERT_EQUAL(publish(t, 1, 10, 5, &a), 0);
    CU_ASSERT_EQUAL(publish(t, 2, 20, 1, &b), 0);
    CU_ASSERT_NOT_EQUAL(a, b);
    CU_ASSERT(active_is(t, a, 10) && active_is(t, b, 20));
    CU_ASSERT_EQUAL(control_revision(atomic_load(&t->control->models[a].word)), 5);
    CU_ASSERT_EQUAL(publish(t, 1, 11, 6, &b), 0);
    CU_ASSERT_EQUAL(a, b);
    CU_ASSERT(active_is(t, a, 11));
    CU_ASSERT(memcmp(t->control->models[a].digests[0], digest(2, 10), DIGEST_BYTES) == 0); /* append-only */
    CU_ASSERT_EQUAL(publish(t, 1, 10, 7, &b), 0); /* again: no new entry */
    CU_ASSERT_EQUAL(t->n_digests[a], 2);
    (void) tenant_free(t);
}

/* Models that clients use stay; if all are, no other is added. */
static void test_models_are_limited(void)
{
    struct tenant *t = make_tenant();
    uint32_t slot = 77;

    for (unsigned i = 0; i < CONTROL_MODELS_MAX; i++) {
        CU_ASSERT_EQUAL(publish(t, i, i, 1, &slot), 0);
        control_model_ref(t, slot);
    }
    slot = 77;
    CU_ASSERT_EQUAL(publish(t, CONTROL_MODELS_MAX, 1, 1, &slot), -ENOSPC);
    CU_ASSERT_EQUAL(slot, 77);
    CU_ASSERT_EQUAL(t->control_object, 1);
    CU_ASSERT_EQUAL(publish(t, 3, 100, 2, &slot), 0); /* models of the page can change */
    (void) tenant_free(t);
}

/* Another model replaces those that no client uses: in a new page, where the others keep their tables. */
static void test_unused_models_are_dropped(void)
{
    struct tenant *t = make_tenant();
    struct control_page *first = t->control;
    uint32_t slot;
    int kept = fcntl(extent_fd(t->control_memory), F_DUPFD_CLOEXEC, 3);

    for (unsigned i = 0; i < CONTROL_MODELS_MAX; i++) {
        CU_ASSERT_EQUAL(publish(t, i, 10 + i, 5, &slot), 0);
        control_model_ref(t, slot);
    }
    control_model_ref(t, 9);
    for (unsigned i = 0; i < CONTROL_MODELS_MAX; i++)
        if (i != 3)
            control_model_unref(t, digest(1, i));
    CU_ASSERT_EQUAL(publish(t, 100, 200, 7, &slot), 0);
    CU_ASSERT_EQUAL(atomic_load(&first->moved), 1);
    CU_ASSERT_EQUAL(t->control_object, 2);
    CU_ASSERT_EQUAL(t->n_models, 3);
    CU_ASSERT(active_is(t, slot, 200));
    CU_ASSERT_FATAL(control_find(t, digest(1, 3)) >= 0 && control_find(t, digest(1, 9)) >= 0);
    CU_ASSERT(active_is(t, (uint32_t) control_find(t, digest(1, 3)), 13));
    CU_ASSERT(active_is(t, (uint32_t) control_find(t, digest(1, 9)), 19));
    CU_ASSERT_EQUAL(control_find(t, digest(1, 4)), -1);
    control_model_unref(t, digest(1, 3)); /* users moved with their models */
    control_model_unref(t, digest(1, 9));
    for (unsigned i = 0; i < 2 * CONTROL_MODELS_MAX; i++) /* a page that was replaced twice takes no memory */
        CU_ASSERT_EQUAL(publish(t, 300 + i, 1, 1, &slot), 0);
    CU_ASSERT(t->control_object > 2);
    CU_ASSERT_EQUAL(usage_of_fd(kept), 0);
    (void) close(kept);
    (void) tenant_free(t);
}

/* When the list of digests is full, a new page replaces the old one, which is marked as moved. */
static void test_full_list_builds_a_new_page(void)
{
    struct tenant *t = make_tenant();
    struct extent *old;
    uint32_t a, b;
    int fd;

    CU_ASSERT_EQUAL(publish(t, 7, 1000, 3, &b), 0);
    control_model_ref(t, b);
    for (unsigned i = 0; i < CONTROL_DIGESTS_MAX; i++)
        CU_ASSERT_EQUAL(publish(t, 1, i, i + 1, &a), 0);
    CU_ASSERT_EQUAL(t->control_object, 1);
    fd = fcntl(extent_fd(t->control_memory), F_DUPFD_CLOEXEC, 3);
    CU_ASSERT_EQUAL_FATAL(extent_import(fd, CONTROL_PAGE_BYTES, EXTENT_READ, &old, NULL), 0);
    CU_ASSERT_EQUAL(publish(t, 1, 500, 90, &a), 0);
    CU_ASSERT_EQUAL(t->control_object, 2);
    CU_ASSERT_EQUAL(atomic_load(&((struct control_page *) extent_data(old))->moved), 1);
    CU_ASSERT_EQUAL(atomic_load(&t->control->moved), 0);
    CU_ASSERT(active_is(t, a, 500) && active_is(t, b, 1000));
    CU_ASSERT_EQUAL(control_revision(atomic_load(&t->control->models[a].word)), 90);
    CU_ASSERT_EQUAL(control_revision(atomic_load(&t->control->models[b].word)), 3);
    CU_ASSERT_EQUAL(t->n_digests[a], 2); /* the one that was active, and the new one */
    (void) extent_free(old);
    (void) tenant_free(t);
}

/* Canary and shadow beside the active table, also after the page was rebuilt. */
static void test_trials(void)
{
    struct tenant *t = make_tenant();
    uint8_t geometry[DIGEST_BYTES] = {9}, canary[DIGEST_BYTES] = {50}, shadow[DIGEST_BYTES] = {60},
            active[DIGEST_BYTES];
    struct control_tables c = {
        .active = active,
        .canary = canary,
        .canary_share = 200,
        .shadow = shadow,
        .shadow_ppm = 12345,
        .revision = 1,
    };
    uint32_t slot;

    /* 62 active digests fit beside canary and shadow, then the page is rebuilt */
    for (unsigned i = 0; i < CONTROL_DIGESTS_MAX; i++) {
        const struct control_model *m;
        uint64_t word, other;

        memcpy(active, digest(2, i), sizeof(active));
        CU_ASSERT_EQUAL(control_publish(t, digest(1, 1), geometry, &c, &slot, NULL), 0);
        CU_ASSERT_EQUAL(t->control_object, i < CONTROL_DIGESTS_MAX - 2 ? 1 : 2);
        m = &t->control->models[slot];
        word = atomic_load(&m->word);
        other = atomic_load(&t->control->shadow[slot]);
        CU_ASSERT(active_is(t, slot, i));
        CU_ASSERT_EQUAL(control_canary_share(word), 200);
        CU_ASSERT_FATAL(control_canary(word) < CONTROL_DIGESTS_MAX && (other & 255) >= 1 &&
                        (other & 255) <= CONTROL_DIGESTS_MAX);
        CU_ASSERT(memcmp(m->digests[control_canary(word)], canary, DIGEST_BYTES) == 0);
        CU_ASSERT(memcmp(m->digests[(other & 255) - 1], shadow, DIGEST_BYTES) == 0);
        CU_ASSERT_EQUAL(other >> 8, 12345);
    }
    c.canary = c.shadow = NULL;
    CU_ASSERT_EQUAL(control_publish(t, digest(1, 1), geometry, &c, &slot, NULL), 0);
    CU_ASSERT_EQUAL(control_canary_share(atomic_load(&t->control->models[slot].word)), 0);
    CU_ASSERT_EQUAL(control_canary(atomic_load(&t->control->models[slot].word)), CONTROL_NO_TABLE);
    CU_ASSERT_EQUAL(atomic_load(&t->control->shadow[slot]), 0);
    (void) tenant_free(t);
}

const struct test_case test_cases[] = {
    TEST(test_trials),
    TEST(test_empty_page),
    TEST(test_publish),
    TEST(test_models_are_limited),
    TEST(test_unused_models_are_dropped),
    TEST(test_full_list_builds_a_new_page),
    TEST_END,
};
