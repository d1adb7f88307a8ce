/*
 * Each attack of attack_client.h, and all at once, by processes of one user, while a neighbour and an
 * operator go on. Every request of the neighbour is granted, and the daemon's memory grows by no more than
 * the limits of daemon/LIMITS.md. How long the neighbour waits is printed and not judged, since tests run on
 * busy machines: tools/attack_test.sh measures longer and compares with the targets.
 *
 * KVC_ATTACK_MS: how long each attack is measured (500).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/e2e/attack_client.h"
#include "tests/e2e/attack_fixture.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/lib/test.h"

const char test_suite[] = "attacks";

#ifdef __SANITIZE_ADDRESS__
#define ADDRESS_SANITIZER true
#else
#define ADDRESS_SANITIZER false
#endif

enum { PROCESSES = 4, MS = 500, GROWTH_BYTES_MAX = 16 << 20 };

static unsigned duration_ms(void)
{
    const char *text = getenv("KVC_ATTACK_MS");

    return text ? (unsigned) strtoul(text, NULL, 10) : MS;
}

static void print_waits(struct attack_waits *w)
{
    printf(" %8.3f %8.3f %8.3f", attack_quantile(w, 0.5) / 1e3, attack_quantile(w, 0.99) / 1e3,
           attack_quantile(w, 1) / 1e3);
}

/* A row: milliseconds (median, p99, longest) of the neighbour, of the echo and of the operator; then KiB. */
static void measure(const char *name, attack_fn *const *attacks, size_t n, unsigned with)
{
    struct attack_result *r;

    if (!other_user_is_possible())
        return;
    r = attack_measure(attacks, n, with, duration_ms());
    CU_ASSERT(r->done);
    CU_ASSERT_EQUAL(r->n_refused, 0);
    CU_ASSERT(r->daemon.n > 0 && r->status.n > 0);
    if (!ADDRESS_SANITIZER) /* which keeps freed memory */
        CU_ASSERT(r->grown_bytes <= GROWTH_BYTES_MAX);
    printf("row %-12s", name);
    print_waits(&r->daemon);
    print_waits(&r->echo);
    print_waits(&r->status);
    printf(" %6" PRIu64 " %6u%s\n", r->grown_bytes >> 10, r->daemon.n,
           attack_has_cgroup() ? "" : " (no cgroup)");
}

static void measure_one(const char *name, attack_fn *attack, unsigned with)
{
    attack_fn *attacks[PROCESSES];

    for (size_t i = 0; i < PROCESSES; i++)
        attacks[i] = attack;
    measure(name, attacks, PROCESSES, with);
}

static void test_none(void)
{
    measure("none", NULL, 0, 0);
}

#define ATTACK(name)                                                                                         \
    static void test_##name(void)                                                                            \
    {                                                                                                        \
        measure_one(#name, attack_##name, 0);                                                                \
    }

ATTACK(list)
ATTACK(reserve)
ATTACK(lease)
ATTACK(abort)
ATTACK(rubbish)
ATTACK(deaf)
ATTACK(fetch)
ATTACK(publish)
ATTACK(raw_pages)
ATTACK(connections)
ATTACK(sessions)
ATTACK(leases)
ATTACK(index)
ATTACK(descriptors)
ATTACK(fields)
ATTACK(metrics)

/* LEASEs that wait for pages of the disk. */
static void test_waits(void)
{
    measure_one("waits", attack_waits, ATTACK_DISK);
}

/* Each session is a descriptor that the daemon stores with the manager. */
static void test_manager(void)
{
    measure_one("manager", attack_sessions, ATTACK_DEAF_MANAGER);
}

static void test_mix(void)
{
    static attack_fn *const attacks[] = {
        attack_list,     attack_reserve, attack_lease,   attack_abort,       attack_rubbish,
        attack_deaf,     attack_fetch,   attack_publish, attack_raw_pages,   attack_connections,
        attack_sessions, attack_leases,  attack_index,   attack_descriptors, attack_fields,
        attack_metrics,  attack_waits,
    };

    measure("mix", attacks, sizeof(attacks) / sizeof(attacks[0]), ATTACK_DISK);
}

const struct test_case test_cases[] = {
    TEST(test_none),    TEST(test_list),      TEST(test_reserve),     TEST(test_lease),
    TEST(test_abort),   TEST(test_rubbish),   TEST(test_deaf),        TEST(test_fetch),
    TEST(test_publish), TEST(test_raw_pages), TEST(test_connections), TEST(test_sessions),
    TEST(test_leases),  TEST(test_index),     TEST(test_descriptors), TEST(test_manager),
    TEST(test_mix),     TEST(test_fields),    TEST(test_metrics),     TEST(test_waits),
    TEST_END,
};
