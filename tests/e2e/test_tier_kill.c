/*
 * kvcobrad is killed at each step of a fetch from the disk. In the next process, no slot of the fetch is
 * taken, and the disk still has the page.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "tier_kill";

enum { PROMPT = 512, SHARED = 448, FETCH_MS = 8000 };

static char folder[64], kill_path[96];
static struct scene sc;

static void begin(void)
{
    static char disk_arg[96];
    static const char *const args[] = {
        "--pool-bytes=4M", "--extent-bytes=1M", "--span-bytes=256K", "--disk-bytes=64M", disk_arg, NULL};

    (void) strcpy(folder, "/tmp/kvcobra-tier-kill-XXXXXX");
    assert(mkdtemp(folder));
    (void) snprintf(disk_arg, sizeof(disk_arg), "--disk-dir=%s", folder);
    (void) snprintf(kill_path, sizeof(kill_path), "%s.kill", folder);
    assert(setenv("KVC_TEST_KILL", kill_path, 1) == 0);
    supervisor_begin(args);
    scene_attach(&sc, &raw_daemon, random_table_geometry(2, 4, 2, 64), 3, 1);
}

static void finish(void)
{
    char path[96];

    scene_detach(&sc);
    supervisor_finish();
    (void) snprintf(path, sizeof(path), "%s/records", folder);
    CU_ASSERT_EQUAL(unlink(path), 0);
    (void) snprintf(path, sizeof(path), "%s/pages", folder);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static const Kvcobra__ControlTierReply *ask(Kvcobra__TierAction action)
{
    return scene_tier(sc.control, action);
}

/* Writes all pages, and evicts those that no client holds. */
static void move_to_disk(void)
{
    const Kvcobra__ControlTierReply *s = ask(KVCOBRA__TIER_ACTION__TIER_WRITE_ALL);

    for (struct wait w = wait_begin(); !s->all_written && wait_again(&w);)
        s = ask(KVCOBRA__TIER_ACTION__TIER_ASK);
    CU_ASSERT_STRING_EQUAL_FATAL(s->state, "ready");
    CU_ASSERT_TRUE_FATAL(s->all_written);
    CU_ASSERT_EQUAL(operator_evict(sc.control, NULL, NULL, NULL, NULL), 0);
}

static void publish(void)
{
    struct embedded m = scene_client(&sc);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    kvc_seq_free(s);
    embedded_free(&m);
}

/* How many tokens a match finds. A client that loses the daemon finds none, or gets an error. */
static size_t match(void)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .fetch_ms = FETCH_MS};
    struct embedded m = scene_client(&sc);
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m.model, &o, &s), 0);
    if (kvc_seq_match(s, tokens, PROMPT, &n) < 0)
        n = 0;
    kvc_seq_free(s);
    free(tokens);
    embedded_free(&m);
    return n;
}

static bool nothing_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0;
}

static void arm(const char *step)
{
    FILE *f = fopen(kill_path, "we");

    assert(f && fputs(step, f) >= 0 && fclose(f) == 0);
}

static void kill_at(const char *step)
{
    move_to_disk();
    CU_ASSERT(scene_wait(&sc, nothing_held));
    arm(step);
    (void) match();
    CU_ASSERT_EQUAL(unlink(kill_path), 0);
    if (scene_control_tier(sc.control, KVCOBRA__TIER_ACTION__TIER_ASK, NULL, NULL) == 0)
        CU_FAIL("the daemon lives");
    supervisor_kill(); /* it is dead: this reaps it */
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    CU_ASSERT(scene_wait(&sc, nothing_held));
    for (struct wait w = wait_begin();
         strcmp(ask(KVCOBRA__TIER_ACTION__TIER_ASK)->state, "ready") != 0 && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(match(), SHARED);
    CU_ASSERT_EQUAL(ask(KVCOBRA__TIER_ACTION__TIER_ASK)->unopened, 0);
}

static void test_each_step(void)
{
    static const char *const steps[] = {
        "before store_claim",  "after store_claim",   "before disk_queue_put", "after disk_queue_put",
        "before seal_open",    "after seal_open",     "after page_check",      "before store_publish",
        "after store_publish", "before store_unhold", "after store_unhold",
    };

    begin();
    publish();
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        unsigned n = CU_get_number_of_failures();

        kill_at(steps[i]);
        if (CU_get_number_of_failures() > n)
            (void) fprintf(stderr, "%s\n", steps[i]);
    }
    finish();
}

const struct test_case test_cases[] = {TEST(test_each_step), TEST_END};
