/*
 * The disk tier by the protocol, for clients without the library: APPEND_RAW that only looks waits for a page
 * of the disk, READ_RAW decodes it, and no client gets a page of another tenant.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/raw_vectors_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "raw_tier";

enum { FETCH_MS = 8000, CHUNKS = 4, SIDES_BYTES = RAW_LAYERS * RAW_LAYER_BYTES * 2 };

static char folder[64], keys[80];

/* ---- the daemon ---- */

static void write_keys(const char *seals)
{
    FILE *f;

    (void) unlink(keys);
    f = fopen(keys, "wxe");
    assert(f && fchmod(fileno(f), 0600) == 0);
    fprintf(f, "index ");
    for (int i = 0; i < 64; i++)
        fputc('a', f);
    for (const char *c = seals; *c; c++) { /* each digit is the number of a key, and all its digits */
        fprintf(f, "\nseal %c ", *c);
        for (int i = 0; i < 64; i++)
            fputc(*c, f);
    }
    fprintf(f, "\n");
    assert(fclose(f) == 0);
}

static void begin_with(const char *option)
{
    static char disk_arg[96], key_arg[112];
    const char *const args[] = {disk_arg, key_arg, "--disk-bytes=64M", option, NULL};

    (void) strcpy(folder, "/tmp/kvcobra-raw-tier-XXXXXX");
    assert(mkdtemp(folder));
    (void) snprintf(disk_arg, sizeof(disk_arg), "--disk-dir=%s", folder);
    (void) snprintf(keys, sizeof(keys), "%s.keys", folder);
    (void) snprintf(key_arg, sizeof(key_arg), "--key-file=%s", keys);
    write_keys("1");
    raw_start(DAEMON_BY_PATH, args);
}

static void begin(void)
{
    begin_with(NULL);
}

static void finish(void)
{
    char path[96];

    raw_stop();
    (void) snprintf(path, sizeof(path), "%s/records", folder);
    CU_ASSERT_EQUAL(unlink(path), 0);
    (void) snprintf(path, sizeof(path), "%s/pages", folder);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
    CU_ASSERT_EQUAL(unlink(keys), 0);
}

/* CONTROL_TIER. The reply is the caller's. */
static Kvcobra__Reply *control(Kvcobra__TierAction action)
{
    Kvcobra__ControlTier body = KVCOBRA__CONTROL_TIER__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_CONTROL_TIER, &body);
    int fd = raw_open(raw_daemon.operator_socket);
    Kvcobra__Reply *reply;

    body.action = action;
    reply = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply != NULL && reply->body_case == KVCOBRA__REPLY__BODY_CONTROL_TIER);
    (void) close(fd);
    return reply;
}

static uint64_t ask_unopened(void)
{
    Kvcobra__Reply *reply = control(KVCOBRA__TIER_ACTION__TIER_ASK);
    uint64_t n = reply->control_tier->unopened;

    wire_reply_free(reply);
    return n;
}

/* All pages are on the disk afterwards, and none in memory. */
static void move_to_disk(void)
{
    Kvcobra__Reply *reply = control(KVCOBRA__TIER_ACTION__TIER_WRITE_ALL);
    bool flushed = reply->control_tier->all_written;

    wire_reply_free(reply);
    for (struct wait w = wait_begin(); !flushed && wait_again(&w);) {
        reply = control(KVCOBRA__TIER_ACTION__TIER_ASK);
        flushed = reply->control_tier->all_written;
        wire_reply_free(reply);
    }
    CU_ASSERT_TRUE_FATAL(flushed);
    CU_ASSERT_EQUAL(raw_evict(""), 0);
}

/* ---- chunks ---- */

static Kvcobra__AppendRaw find_of(struct raw_model *m, uint32_t first_token, uint32_t fetch_ms)
{
    Kvcobra__AppendRaw a = raw_append_of(m, first_token);

    a.only_find = 1;
    a.fetch_ms = fetch_ms;
    return a;
}

/* Return: errno of APPEND_RAW that only looks. The page is released. */
static int find(struct raw_model *m, uint32_t first_token, uint32_t fetch_ms)
{
    Kvcobra__AppendRaw a = find_of(m, first_token, fetch_ms);
    uint64_t lease = 0;
    int r = raw_append(m, &a, &lease);

    if (r == 0)
        CU_ASSERT_EQUAL(raw_release(m, lease), 0);
    return r;
}

/* Decodes all of a leased chunk. @ret: [SIDES_BYTES]. */
static void decode(struct raw_model *m, uint64_t lease, uint8_t *ret)
{
    for (uint32_t i = 0; i < 2 * RAW_LAYERS; i++) {
        CU_ASSERT_EQUAL(raw_read(m, lease, 0, i / 2, i % 2, KVCOBRA__NUMBER_TYPE__NUMBER_F32, 0), 0);
        memcpy(ret + i * RAW_LAYER_BYTES, m->arena, RAW_LAYER_BYTES);
    }
}

/* Publishes a chunk, and stores what it decodes to. */
static void publish(struct raw_model *m, uint32_t first_token, uint8_t *ret)
{
    Kvcobra__AppendRaw a = raw_append_of(m, first_token);
    uint64_t lease;

    CU_ASSERT_EQUAL_FATAL(raw_append(m, &a, &lease), 0);
    decode(m, lease, ret);
    CU_ASSERT_EQUAL(raw_release(m, lease), 0);
}

/* ---- tests ---- */

static void test_find_and_read(void)
{
    static uint8_t before[CHUNKS][SIDES_BYTES], after[SIDES_BYTES];
    struct raw_model m;

    begin();
    m = raw_model_open();
    for (uint32_t i = 0; i < CHUNKS; i++)
        publish(&m, 1000 * i, before[i]);
    move_to_disk();
    CU_ASSERT_EQUAL(find(&m, 0, 0), -ENODATA); /* it does not wait */
    for (uint32_t i = 0; i < CHUNKS; i++) {
        Kvcobra__AppendRaw a = find_of(&m, 1000 * i, FETCH_MS);
        uint64_t lease;

        CU_ASSERT_EQUAL_FATAL(raw_append(&m, &a, &lease), 0);
        decode(&m, lease, after);
        CU_ASSERT_EQUAL(memcmp(before[i], after, sizeof(after)), 0);
        CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    }
    CU_ASSERT_EQUAL(find(&m, 0, 0), 0); /* in memory now */
    CU_ASSERT_EQUAL(find(&m, 5000, FETCH_MS), -ENODATA);
    raw_close_model(&m);
    raw_wait_for_held(0);
    finish();
}

/* An append computes the page anew: it does not wait for the disk, whatever fetch_ms is. */
static void test_append_does_not_fetch(void)
{
    static uint8_t bytes[SIDES_BYTES];
    Kvcobra__AppendRaw a;
    Kvcobra__Reply *reply;
    struct raw_model m;
    uint64_t lease;

    begin();
    m = raw_model_open();
    publish(&m, 0, bytes);
    move_to_disk();
    a = raw_append_of(&m, 0);
    a.fetch_ms = FETCH_MS;
    CU_ASSERT_EQUAL(raw_append(&m, &a, &lease), 0);
    reply = control(KVCOBRA__TIER_ACTION__TIER_ASK);
    CU_ASSERT_EQUAL(reply->control_tier->read_pages, 0);
    wire_reply_free(reply);
    raw_close_model(&m);
    finish();
}

/* A process that asks for a page and ends: one that lives could resume its session, which keeps its pages. */
static void ask_and_end(void)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    pid_t pid = fork();
    int status;

    assert(pid >= 0);
    if (pid == 0) {
        struct raw_model m = raw_model_open();
        Kvcobra__AppendRaw a = find_of(&m, 0, FETCH_MS);
        Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_APPEND_RAW, &a);
        ssize_t n = wire_request_pack(&q, packet);

        _exit(n > 0 && wire_send(m.fd, packet, (size_t) n, NULL, 0) == 0 ? 0 : 1);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT_EQUAL(status, 0);
}

/* Two processes ask for one page, and one of them may be gone before it arrives. */
static void test_client_leaves(void)
{
    static uint8_t bytes[SIDES_BYTES];
    struct raw_model m;

    begin();
    m = raw_model_open();
    publish(&m, 0, bytes);
    for (unsigned i = 0; i < 20; i++) {
        move_to_disk();
        ask_and_end();
        CU_ASSERT_EQUAL(find(&m, 0, FETCH_MS), 0);
        raw_wait_for_held(0); /* move_to_disk() evicts what is not held */
    }
    raw_close_model(&m);
    raw_wait_for_no_sessions();
    raw_wait_for_held(0);
    finish();
}

/* ---- keys ---- */

/* How often the daemon logged that it read its configuration again. */
static unsigned count_reloads(void)
{
    FILE *f = fopen(raw_daemon.log, "re");
    char *line = NULL;
    size_t bytes = 0;
    unsigned n = 0;

    assert(f);
    while (getline(&line, &bytes, f) > 0)
        n += strstr(line, "event=reloaded") != NULL;
    free(line);
    (void) fclose(f);
    return n;
}

static void reload(const char *seals)
{
    unsigned n = count_reloads();

    write_keys(seals);
    CU_ASSERT_EQUAL(kill(raw_daemon.pid, SIGHUP), 0);
    for (struct wait w = wait_begin(); count_reloads() == n && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL_FATAL(count_reloads(), n + 1);
}

/* Keys rotate without a restart: a new one seals, the old one opens as long as it is there. */
static void test_rotated_keys(void)
{
    static uint8_t bytes[SIDES_BYTES];
    struct raw_model m;

    begin();
    m = raw_model_open();
    publish(&m, 0, bytes);
    move_to_disk();
    reload("12");
    publish(&m, 1000, bytes);
    move_to_disk();
    CU_ASSERT_EQUAL(find(&m, 0, FETCH_MS), 0);
    CU_ASSERT_EQUAL(find(&m, 1000, FETCH_MS), 0);
    CU_ASSERT_EQUAL(ask_unopened(), 0);
    CU_ASSERT_EQUAL(raw_evict(""), 0);

    reload("2");
    CU_ASSERT_EQUAL(find(&m, 1000, FETCH_MS), 0);
    CU_ASSERT_EQUAL(find(&m, 0, FETCH_MS), -ENODATA); /* a miss, and counted */
    CU_ASSERT_EQUAL(ask_unopened(), 1);
    CU_ASSERT_EQUAL(find(&m, 0, FETCH_MS), -ENODATA); /* it is not tried again */
    CU_ASSERT_EQUAL(ask_unopened(), 1);
    raw_close_model(&m);
    finish();
}

/* ---- two tenants ---- */

static bool run_as(uid_t uid, bool (*run)(void))
{
    pid_t pid = fork();
    int status;

    assert(pid >= 0);
    if (pid == 0) {
        other_user_become(uid);
        _exit(run() && CU_get_number_of_failures() == 0 ? 0 : 1);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool publish_own(void)
{
    static uint8_t bytes[SIDES_BYTES];
    struct raw_model m = raw_model_open();

    publish(&m, 0, bytes);
    raw_close_model(&m);
    return true;
}

static bool finds_own(void)
{
    struct raw_model m = raw_model_open();
    int r = find(&m, 0, FETCH_MS);

    CU_ASSERT(r == 0 || r == -ENODATA);
    raw_close_model(&m);
    return r == 0;
}

/* Publishes far more than the quota on the disk. */
static bool publish_many(void)
{
    static uint8_t bytes[SIDES_BYTES];
    struct raw_model m = raw_model_open();

    for (uint32_t i = 0; i < 600; i++)
        publish(&m, 1000 * (i + 1), bytes);
    raw_close_model(&m);
    return true;
}

/* A user neither finds nor pushes out what another one has on the disk. */
static void test_tenants_apart(void)
{
    if (!other_user_is_possible())
        return;

    begin_with("--disk-quota-bytes=1M");
    assert(chmod(raw_daemon.folder, 0711) == 0 && chmod(raw_daemon.socket, 0666) == 0);
    CU_ASSERT_TRUE(run_as(OTHER_USER_UID, publish_own));
    raw_wait_for_no_sessions();
    move_to_disk();
    CU_ASSERT_FALSE(run_as(OTHER_USER_UID - 1, finds_own)); /* the same tokens */
    CU_ASSERT_TRUE(run_as(OTHER_USER_UID - 1, publish_many));
    raw_wait_for_no_sessions();
    move_to_disk();
    CU_ASSERT_TRUE(run_as(OTHER_USER_UID, finds_own));
    raw_wait_for_no_sessions();
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_find_and_read), TEST(test_append_does_not_fetch), TEST(test_client_leaves),
    TEST(test_rotated_keys),  TEST(test_tenants_apart),         TEST_END,
};
