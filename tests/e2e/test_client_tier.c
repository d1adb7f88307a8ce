/*
 * The disk tier through the library: pages that left memory come back with the same bits, also after a daemon
 * that was stopped or killed; a disk that is damaged, gone, or sealed with other keys gives misses.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/tier_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

/* ---- texts ---- */

/* Whether every text is found as a whole. */
static bool finds_all(const struct tier *t)
{
    struct embedded m = scene_client(&t->scene);
    bool all = true;

    for (uint32_t text = 0; text < TIER_TEXTS; text++)
        all = tier_match(&t->scene, &m, text, 8000) == TIER_SHARED && all;
    embedded_free(&m);
    return all;
}

static size_t find_any(const struct tier *t)
{
    struct embedded m = scene_client(&t->scene);
    size_t n = 0;

    for (uint32_t text = 0; text < TIER_TEXTS; text++)
        n += tier_match(&t->scene, &m, text, 8000);
    embedded_free(&m);
    return n;
}

/* ---- tests ---- */

static void test_more_pages_than_memory(void)
{
    struct tier t;
    const Kvcobra__ControlTierReply *s;
    Kvcobra__StatusReply *status;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    status = scene_status(&t.scene);
    CU_ASSERT(status->evictions > 0);
    CU_ASSERT_STRING_EQUAL(status->disk_tier, "ready");
    status = scene_status_free(status);
    s = tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK);
    CU_ASSERT_EQUAL(s->written_pages, TIER_TEXTS * TIER_SHARED / 64);
    CU_ASSERT_EQUAL(s->lost, 0);

    CU_ASSERT(finds_all(&t));
    s = tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK);
    CU_ASSERT(s->read_pages > 0);
    CU_ASSERT_EQUAL(s->unopened, 0);
    tier_finish(&t);
}

static void test_cold_start(void)
{
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    tier_restart(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->pages, TIER_TEXTS * TIER_SHARED / 64);
    CU_ASSERT(finds_all(&t));
    CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->unopened, 0);
    tier_finish(&t);
}

/* What was published just before a stop is on the disk, without a flush. */
static void test_stop_writes_pages(void)
{
    struct tier t;
    struct embedded m;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    tier_publish(&m, 0);
    tier_restart(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    embedded_free(&m);
    m = scene_client(&t.scene);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 0, 8000), TIER_SHARED);
    embedded_free(&m);
    tier_finish(&t);
}

/* A daemon is killed while it writes. What it finds later is right, and it goes on. */
static void test_killed_while_writing(void)
{
    struct tier t;
    struct embedded m;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    for (uint32_t text = 0; text < TIER_TEXTS; text++)
        tier_publish(&m, text);
    daemon_kill(&t.scene.daemon);
    tier_start_again(&t);
    embedded_free(&m);
    CU_ASSERT(tier_reaches(&t, "ready"));
    (void) find_any(&t);
    tier_publish_all(&t);
    CU_ASSERT(finds_all(&t));
    CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->unopened, 0);
    tier_finish(&t);
}

static void test_peek_has_two_numbers(void)
{
    struct tier t;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    size_t memory = 1, all = 1;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    CU_ASSERT_EQUAL(kvc_model_peek_tiers(m.model, NULL, tokens, TIER_TOKENS, &memory, &all), 0);
    CU_ASSERT(memory == 0 && all == 0);
    tier_publish(&m, 0);
    CU_ASSERT_EQUAL(kvc_model_peek_tiers(m.model, NULL, tokens, TIER_TOKENS, &memory, &all), 0);
    CU_ASSERT(memory == TIER_SHARED && all >= TIER_SHARED);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    all = 0;
    for (struct wait w = wait_begin(); all != TIER_SHARED && wait_again(&w);)
        CU_ASSERT_EQUAL(kvc_model_peek_tiers(m.model, NULL, tokens, TIER_TOKENS, &memory, &all), 0);
    CU_ASSERT_EQUAL(kvc_model_peek_tiers(m.model, NULL, tokens, TIER_TOKENS, &memory, &all), 0);
    CU_ASSERT_EQUAL(memory, 0);
    CU_ASSERT_EQUAL(all, TIER_SHARED);
    CU_ASSERT_EQUAL(kvc_model_peek(m.model, NULL, tokens, TIER_TOKENS, &memory), 0);
    CU_ASSERT_EQUAL(memory, 0);

    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 0, KVC_FETCH_NEVER), 0);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 0, 8000), TIER_SHARED);
    CU_ASSERT_EQUAL(kvc_model_peek(m.model, NULL, tokens, TIER_TOKENS, &memory), 0);
    CU_ASSERT_EQUAL(memory, TIER_SHARED);
    free(tokens);
    embedded_free(&m);
    tier_finish(&t);
}

/* Every page on the disk is changed by one bit: all are misses, and the daemon serves on. */
static void test_damaged_disk(void)
{
    struct tier t;
    char path[128];
    struct stat st;
    int fd;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    CU_ASSERT(daemon_end(&t.scene.daemon));
    (void) snprintf(path, sizeof(path), "%s/disk/pages", t.folder);
    fd = open(path, O_RDWR | O_CLOEXEC);
    CU_ASSERT_FATAL(fd >= 0 && fstat(fd, &st) == 0);
    for (off_t at = 100; at < st.st_size; at += 4096) {
        uint8_t byte;

        CU_ASSERT_FATAL(pread(fd, &byte, 1, at) == 1);
        byte ^= 16;
        CU_ASSERT_FATAL(pwrite(fd, &byte, 1, at) == 1);
    }
    (void) close(fd);
    tier_start_again(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    CU_ASSERT_EQUAL(find_any(&t), 0);
    CU_ASSERT(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->unopened > 0);
    CU_ASSERT_STRING_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->state, "ready");
    tier_publish_all(&t);
    CU_ASSERT(finds_all(&t));
    tier_finish(&t);
}

/* Another sealing key opens no page; another index secret does not get the folder. */
static void test_other_keys(void)
{
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    tier_write_keys(&t, 'a', '2', 2);
    tier_restart(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    CU_ASSERT_EQUAL(find_any(&t), 0);
    CU_ASSERT(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->unopened > 0);

    tier_write_keys(&t, 'b', '2', 2);
    tier_restart(&t);
    CU_ASSERT(tier_reaches(&t, "off"));
    CU_ASSERT_PTR_NOT_NULL(strstr(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->message, "index secret"));
    CU_ASSERT_EQUAL(find_any(&t), 0);
    tier_finish(&t);
}

/* The folder is moved away while the daemon runs, and comes back. */
static void test_folder_vanishes(void)
{
    struct tier t;
    char disk[96], away[96];
    struct embedded m;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    (void) snprintf(disk, sizeof(disk), "%s/disk", t.folder);
    (void) snprintf(away, sizeof(away), "%s/away", t.folder);
    CU_ASSERT_EQUAL_FATAL(rename(disk, away), 0);
    CU_ASSERT(tier_reaches(&t, "off"));
    CU_ASSERT(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->message[0] != '\0');
    m = scene_client(&t.scene);
    tier_publish(&m, TIER_TEXTS); /* memory serves on */
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, TIER_TEXTS, 0), TIER_SHARED);
    embedded_free(&m);

    CU_ASSERT_EQUAL_FATAL(rename(away, disk), 0);
    (void) scene_control_tier(t.scene.control, KVCOBRA__TIER_ACTION__TIER_RESUME, NULL,
                              NULL); /* or it resumed by itself */
    CU_ASSERT(tier_reaches(&t, "ready"));
    CU_ASSERT(finds_all(&t));
    tier_finish(&t);
}

/* The file system of the folder is full: the tier keeps to what it has, and memory serves on. */
static void test_full_file_system(void)
{
    struct tier t;
    const Kvcobra__ControlTierReply *s;

    tier_prepare(&t);
    if (mount("none", t.disk_arg + strlen("--disk-dir="), "tmpfs", 0, "size=3m,mode=0700") < 0) {
        test_skip("only root can mount a small file system");
        (void) rmdir(t.disk_arg + strlen("--disk-dir="));
        (void) unlink(t.keys);
        (void) rmdir(t.folder);
        return;
    }

    t.is_mounted = true;
    tier_start(&t);
    s = tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK);
    for (struct wait w = wait_begin(); strcmp(s->state, "opening") == 0 && wait_again(&w);)
        s = tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK);
    if (strcmp(s->state, "ready") == 0) {
        tier_publish_all(&t);
        s = tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK);
        CU_ASSERT_STRING_EQUAL(s->state, "ready");
        CU_ASSERT_PTR_NOT_NULL(strstr(s->message, "No space left on device"));
        CU_ASSERT(s->segments > 0 && s->segments == s->segments_max && s->physical_bytes <= 3 << 20);
        CU_ASSERT(s->pages > 0 && s->pages < TIER_TEXTS * TIER_SHARED / 64);
        CU_ASSERT(find_any(&t) >= TIER_SHARED); /* the newest text is in memory, others are on the disk */
        CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->unopened, 0);
    } else {
        test_skip("tmpfs has direct I/O since Linux 6.6");
    }
    tier_finish(&t);
}

static void test_drop(void)
{
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(scene_control_tier(t.scene.control, KVCOBRA__TIER_ACTION__TIER_DROP, "another", NULL),
                    -ENOENT);
    CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->pages, TIER_TEXTS * TIER_SHARED / 64);
    CU_ASSERT_EQUAL(scene_control_tier(t.scene.control, KVCOBRA__TIER_ACTION__TIER_DROP, NULL, NULL), 0);
    CU_ASSERT_EQUAL(find_any(&t), 0);
    CU_ASSERT_EQUAL(scene_control_tier(t.scene.control, KVCOBRA__TIER_ACTION__TIER_RESUME, NULL, NULL),
                    -EALREADY);
    tier_finish(&t);
}

/* The beginning of a prompt as operators name it. */
struct beginning {
    Kvcobra__Prefix prefix;
    uint8_t digest[KVC_DIGEST_BYTES];
    char tenant[32];
};

static void begin_prefix(struct tier *t, struct beginning *b)
{
    Kvcobra__ListTablesReply *tables = NULL;

    (void) snprintf(b->tenant, sizeof(b->tenant), "uid-%lu", (unsigned long) geteuid());
    CU_ASSERT_EQUAL_FATAL(operator_list_tables(t->scene.control, &tables, NULL), 0);
    memcpy(b->digest, tables->tables[0]->digest.data, sizeof(b->digest));
    b->prefix = (Kvcobra__Prefix) KVCOBRA__PREFIX__INIT;
    b->prefix.tenant = b->tenant;
    b->prefix.table_digest = operator_digest(b->digest);
    operator_message_freep(&tables);
}

/* What continues the first @n tokens of @text is found neither in memory nor on the disk. */
static void flush_prefix(struct tier *t, uint32_t text, size_t n)
{
    uint32_t *tokens = scene_tokens(text, n);
    struct beginning b;

    begin_prefix(t, &b);
    CU_ASSERT_EQUAL(operator_flush(t->scene.control, &b.prefix, tokens, n, 64, NULL, NULL), 0);
    free(tokens);
}

/* How many of the chunks of @text are in memory, and how many on the disk. */
static void look(struct tier *t, uint32_t text, size_t *ret_memory, size_t *ret_disk)
{
    uint32_t *tokens = scene_tokens(text, TIER_SHARED);
    Kvcobra__LookupReply *places = NULL;
    struct beginning b;

    begin_prefix(t, &b);
    CU_ASSERT_EQUAL_FATAL(
        operator_lookup(t->scene.control, &b.prefix, tokens, TIER_SHARED, false, &places, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(places->n_places, TIER_SHARED / 64 * 2);
    *ret_memory = *ret_disk = 0;
    for (size_t i = 0; i < places->n_places; i++) {
        CU_ASSERT_EQUAL(places->places[i]->in_memory || places->places[i]->on_disk,
                        i % 2 == 0); /* none is repeatable */
        *ret_memory += places->places[i]->in_memory != 0;
        *ret_disk += places->places[i]->on_disk != 0;
    }
    operator_message_freep(&places);
    free(tokens);
}

/* The shared one of the first five chunks of a prompt that leaves text 0 at chunk @leaves; -1: none is. */
static int shared_chunk(struct tier *t, size_t leaves)
{
    uint32_t *tokens = scene_tokens(0, TIER_SHARED);
    Kvcobra__LookupReply *places = NULL;
    struct beginning b;
    int shared = -1;

    tokens[leaves * 64]++;
    begin_prefix(t, &b);
    CU_ASSERT_EQUAL_FATAL(operator_lookup(t->scene.control, &b.prefix, tokens, 5 * 64, true, &places, NULL),
                          0);
    for (size_t i = 0; i < places->n_places; i++) {
        CU_ASSERT(!places->places[i]->is_shared || shared < 0);
        if (places->places[i]->is_shared)
            shared = (int) (i / 2);
    }
    operator_message_freep(&places);
    free(tokens);
    return shared;
}

static void test_lookup(void)
{
    size_t memory, disk;
    struct embedded m;
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    look(&t, 0, &memory, &disk);
    CU_ASSERT(memory == 0 && disk == TIER_SHARED / 64);
    CU_ASSERT_EQUAL(shared_chunk(&t, 3), 2); /* the text goes on otherwise */
    CU_ASSERT_EQUAL(shared_chunk(&t, 8), -1);
    look(&t, 0, &memory, &disk); /* a look-up fetches nothing */
    CU_ASSERT_EQUAL(memory, 0);
    m = scene_client(&t.scene);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 0, 8000), TIER_SHARED);
    look(&t, 0, &memory, &disk);
    CU_ASSERT(memory == TIER_SHARED / 64 && disk == TIER_SHARED / 64);
    CU_ASSERT_EQUAL(shared_chunk(&t, 3), 2); /* a page in memory and on the disk is one */
    CU_ASSERT_EQUAL(shared_chunk(&t, 8), -1);
    embedded_free(&m);
    tier_finish(&t);
}

static Kvcobra__PinReply pin(struct tier *t, uint32_t text, size_t n_tokens, uint64_t ms)
{
    uint32_t *tokens = scene_tokens(text, TIER_SHARED);
    Kvcobra__PinReply reply = KVCOBRA__PIN_REPLY__INIT;
    struct beginning b;

    begin_prefix(t, &b);
    CU_ASSERT_EQUAL(operator_pin(t->scene.control, &b.prefix, tokens, n_tokens, ms, &reply, NULL), 0);
    free(tokens);
    return reply;
}

/* A pin brings pages from the disk to memory, also behind a gap; unpinning fetches nothing. */
static void test_pin(void)
{
    Kvcobra__PinReply reply;
    size_t memory, disk;
    struct embedded m;
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    reply = pin(&t, 0, TIER_SHARED, 0);
    CU_ASSERT(reply.pages == 0 && reply.missing == TIER_SHARED / 64);
    reply = pin(&t, 0, TIER_SHARED / 2, 3600000);
    CU_ASSERT(reply.pages == TIER_SHARED / 128 && reply.missing == 0 && reply.pinned_bytes > 0);
    look(&t, 0, &memory, &disk);
    CU_ASSERT(memory == TIER_SHARED / 128 && disk == TIER_SHARED / 64);
    m = scene_client(&t.scene);
    for (uint32_t text = 1; text < TIER_TEXTS; text++) /* they evict all that is not pinned */
        CU_ASSERT(tier_match(&t.scene, &m, text, 8000) > 0);
    CU_ASSERT(tier_match(&t.scene, &m, 0, 0) >= TIER_SHARED / 2);
    reply = pin(&t, 0, TIER_SHARED / 2, 0);
    CU_ASSERT(reply.pages == TIER_SHARED / 128 && reply.pinned_bytes == 0);

    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    flush_prefix(&t, 0, 4 * 64); /* chunk 3 is nowhere now */
    reply = pin(&t, 0, 6 * 64, 3600000);
    CU_ASSERT(reply.pages == 5 && reply.missing == 1);
    embedded_free(&m);
    tier_finish(&t);
}

static void test_flushed_prefixes(void)
{
    enum { PREFIX = 10 * 64 };
    struct embedded m;
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    tier_publish_all(&t);
    flush_prefix(&t, 0, PREFIX); /* on the disk alone */
    m = scene_client(&t.scene);
    tier_publish(&m, TIER_TEXTS); /* in memory, and on its way to the disk */
    flush_prefix(&t, TIER_TEXTS, PREFIX);
    flush_prefix(&t, TIER_TEXTS - 1, 64);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 0, 8000), PREFIX - 64);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 1, 8000), TIER_SHARED);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, TIER_TEXTS, 8000), PREFIX - 64);
    embedded_free(&m);

    tier_restart(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 0, 8000), PREFIX - 64);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, 1, 8000), TIER_SHARED);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, TIER_TEXTS - 1, 8000), 0);
    CU_ASSERT_EQUAL(tier_match(&t.scene, &m, TIER_TEXTS, 8000), PREFIX - 64);
    embedded_free(&m);
    tier_finish(&t);
}

/* A client that computes faster than the disk reads does not wait for it, once the disk was measured. */
static void test_skipped(void)
{
    kvc_seq_options o = {.struct_bytes = sizeof(o), .fetch_ms = 8000, .compute_tokens_per_s = UINT32_MAX};
    const Kvcobra__ControlTierReply *s;
    struct embedded m;
    struct tier t;

    tier_begin(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    m = scene_client(&t.scene);
    tier_publish(&m, 0);
    tier_publish(&m, 1);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(operator_evict(t.scene.control, NULL, NULL, NULL, NULL), 0);
    CU_ASSERT_EQUAL(tier_match_with(&t.scene, &m, 0, &o), TIER_SHARED); /* nothing was measured */
    s = tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK);
    CU_ASSERT(s->read_bytes_per_second > 0 && s->skipped == 0);

    CU_ASSERT_EQUAL(tier_match_with(&t.scene, &m, 1, &o), 0);
    CU_ASSERT_EQUAL(tier_match_with(&t.scene, &m, 0, &o), TIER_SHARED); /* it is in memory */
    CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->skipped, 1);
    o.compute_tokens_per_s = 1;
    CU_ASSERT_EQUAL(tier_match_with(&t.scene, &m, 1, &o), TIER_SHARED);
    CU_ASSERT_EQUAL(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->skipped, 1);
    embedded_free(&m);
    tier_finish(&t);
}

static void test_no_disk_tier(void)
{
    struct scene sc;

    scene_start(&sc, random_table_geometry(1, 1, 1, 32), 3, 1, NULL);
    CU_ASSERT_EQUAL(scene_control_tier(sc.control, KVCOBRA__TIER_ACTION__TIER_ASK, NULL, NULL), -EOPNOTSUPP);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_more_pages_than_memory),
    TEST(test_cold_start),
    TEST(test_stop_writes_pages),
    TEST(test_killed_while_writing),
    TEST(test_peek_has_two_numbers),
    TEST(test_damaged_disk),
    TEST(test_other_keys),
    TEST(test_folder_vanishes),
    TEST(test_full_file_system),
    TEST(test_drop),
    TEST(test_flushed_prefixes),
    TEST(test_lookup),
    TEST(test_pin),
    TEST(test_skipped),
    TEST(test_no_disk_tier),
    TEST_END,
};
const char test_suite[] = "client_tier";
