/*
 * The life of a page in the real daemon, without the library: correct messages, forbidden ones, and the pages
 * of dead clients.
 */
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "proto/index.h"
#include "proto/shared.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "pages";

enum { MISS_UNKNOWN = 1, MISS_EVICTED = 2 };

static void test_publish_and_find(void)
{
    struct raw_model a, b;
    struct raw_slot slots[2];
    struct chunk_key keys[2] = {raw_key(0), raw_key(1)};
    struct index_reader reader;
    struct index_hit hit;
    size_t granted, bytes;
    uint64_t lease;
    uint8_t *extent;
    int reason;

    raw_start(DAEMON_BY_FD, NULL);
    a = raw_model_open();
    b = raw_model_open();
    CU_ASSERT(memcmp(a.index_key, b.index_key, INDEX_KEY_BYTES) == 0);
    CU_ASSERT(memcmp(a.table_digest, raw_table->digest, 32) == 0);
    CU_ASSERT_EQUAL_FATAL(index_reader_init(&reader, b.index, b.index_bytes, NULL), 0);
    CU_ASSERT_EQUAL(index_lookup(&reader, &keys[0], &hit), INDEX_MISS);
    for (uint64_t n = 0; n < 2; n++)
        CU_ASSERT_EQUAL(raw_publish(&a, n, &slots[n], NULL), 0);
    /* B finds the page in the index without a message, and may read it after the grant. */
    CU_ASSERT_EQUAL(index_lookup(&reader, &keys[1], &hit), INDEX_FOUND);
    CU_ASSERT_EQUAL(hit.slot, slots[1].slot);
    CU_ASSERT_EQUAL(hit.generation, slots[1].generation);
    CU_ASSERT_EQUAL(hit.page_class, PAGE_REST);
    CU_ASSERT_EQUAL(raw_lease(&b, keys, slots, 2, &granted, &lease, &reason), 0);
    CU_ASSERT_EQUAL(granted, 2);
    extent = raw_map_extent(&b, slots[1].extent, &bytes);
    CU_ASSERT_EQUAL(slots[1].bytes % 128, 0);
    /* the page that was written last */
    CU_ASSERT(memcmp(extent + slots[1].offset, a.arena, slots[1].bytes) == 0);
    (void) munmap(extent, bytes);
    CU_ASSERT_EQUAL(raw_held_pages(), 2);
    CU_ASSERT_EQUAL(raw_release(&b, lease), 0);
    CU_ASSERT_EQUAL(raw_release(&b, lease), -ESTALE);
    raw_close_model(&a);
    raw_close_model(&b);
    raw_stop();
}

static void test_first_committer_wins(void)
{
    struct raw_model a, b;
    struct raw_slot of_a, of_b, again;
    struct chunk_key key = raw_key(7);
    uint64_t lease_a, lease_b;

    raw_start(DAEMON_BY_FD, NULL);
    a = raw_model_open();
    b = raw_model_open();
    of_a = raw_reserve(&a, &key, PAGE_REST);
    of_b = raw_reserve(&b, &key, PAGE_REST);
    CU_ASSERT(!of_a.exists && !of_b.exists && of_a.slot != of_b.slot);
    raw_write_page(&a, raw_table, &key, PAGE_REST, 0, 1);
    raw_write_page(&b, raw_table, &key, PAGE_REST, 0, 2);
    CU_ASSERT_EQUAL(raw_commit(&a, &of_a, &key, 0, &lease_a), 0);
    CU_ASSERT_EQUAL(raw_commit(&b, &of_b, &key, 0, &lease_b), 0); /* a lease on A's page */
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    again = raw_reserve(&b, &key, PAGE_REST);
    CU_ASSERT(again.exists);
    CU_ASSERT_EQUAL(again.slot, of_a.slot);
    CU_ASSERT_EQUAL(again.generation, of_a.generation);
    CU_ASSERT_EQUAL(raw_commit(&b, &again, &key, 0, NULL), 0); /* takes another lease, publishes nothing */
    CU_ASSERT_EQUAL(raw_release(&a, lease_a), 0);
    CU_ASSERT_EQUAL(raw_release(&b, lease_b), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    raw_close_model(&a);
    raw_close_model(&b);
    raw_stop();
}

/* Each wrong header field or byte is refused with -EBADMSG; the reservation stays usable. */
static void test_bad_pages_are_refused(void)
{
    static const struct {
        size_t byte;
        bool fix_crc; /* corrects the header's checksum after the change */
    } cases[] = {{0, true},   {4, true},   {6, true},    {8, true},    {40, true},   {72, true},
                 {88, true},  {90, true},  {92, true},   {94, true},   {96, true},   {104, true},
                 {112, true}, {116, true}, {124, false}, {128, false}, {1000, false}};
    struct chunk_key key = raw_key(3);
    struct raw_slot slot;
    struct raw_model m;

    raw_start(DAEMON_BY_FD, NULL);
    m = raw_model_open();
    slot = raw_reserve(&m, &key, PAGE_REST);
    CU_ASSERT_EQUAL_FATAL(slot.err, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 5);
        m.arena[cases[i].byte] ^= 1;
        if (cases[i].fix_crc) {
            uint32_t crc = crc32c(m.arena, 124);

            memcpy(m.arena + 124, &crc, sizeof(crc));
        }
        CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), -EBADMSG);
    }
    raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 5);
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, m.arena_bytes - slot.bytes + 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, UINT64_MAX, NULL), -EINVAL);
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), 0);
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), 0); /* published already: one more lease */
    raw_close_model(&m);
    raw_stop();
}

/* One bit of a string of a table of format 3, anywhere in the page: a reader would take it for another
 * string. */
static void test_damaged_string(void)
{
    struct chunk_key key = raw_key(3);
    struct page_layout l;
    struct raw_slot slot;
    struct raw_model m;
    void *bytes;
    size_t n;

    raw_start(DAEMON_BY_FD, NULL);
    raw_table = table_unref(raw_table);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes_trellis(&raw_geometry, 7, 2, PREDICT_HEAD, 6, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &raw_table, NULL), 0);
    free(bytes);
    raw_activate_table(raw_table);
    CU_ASSERT_EQUAL_FATAL(page_layout_init(&l, raw_table, (struct shard){0, 2}), 0);
    m = raw_model_open();
    slot = raw_reserve(&m, &key, PAGE_REST);
    CU_ASSERT_EQUAL_FATAL(slot.err, 0);
    raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 5);
    for (size_t i = 0; i < l.payload_bytes[PAGE_REST]; i += 37) {
        m.arena[PAGE_HEADER_BYTES + i] ^= (uint8_t) (1 << i % 8);
        CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), -EBADMSG);
        m.arena[PAGE_HEADER_BYTES + i] ^= (uint8_t) (1 << i % 8);
    }
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), 0);
    page_layout_deinit(&l);
    raw_close_model(&m);
    raw_stop();
}

static void test_sinks_must_be_finite(void)
{
    struct chunk_key key = raw_key(0);
    struct page_layout l;
    struct raw_slot slot;
    struct raw_model m;
    uint8_t *header;

    raw_start(DAEMON_BY_FD, NULL);
    m = raw_model_open();
    CU_ASSERT_EQUAL_FATAL(page_layout_init(&l, raw_table, (struct shard){0, 2}), 0);
    slot = raw_reserve(&m, &key, PAGE_FIRST);
    raw_write_page(&m, raw_table, &key, PAGE_FIRST, 0, 5);
    header = m.arena;
    /* the last sink: infinity */
    memcpy(header + PAGE_HEADER_BYTES + l.payload_bytes[PAGE_FIRST] - 2, "\x00\x7c", 2);
    {
        uint32_t crc = crc32c(header + PAGE_HEADER_BYTES, l.payload_bytes[PAGE_FIRST]);

        memcpy(header + 112, &crc, 4);
        crc = crc32c(header, 124);
        memcpy(header + 124, &crc, 4);
    }
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), -EBADMSG);
    page_layout_deinit(&l);
    raw_close_model(&m);
    raw_stop();
}

/* Slots of other sessions cannot be committed or aborted, with any numbers. */
static void test_foreign_and_stale_slots(void)
{
    struct chunk_key key = raw_key(1), other = raw_key(2);
    struct raw_slot slot, wrong;
    struct raw_model a, b;

    raw_start(DAEMON_BY_FD, NULL);
    a = raw_model_open();
    b = raw_model_open();
    slot = raw_reserve(&a, &key, PAGE_REST);
    raw_write_page(&b, raw_table, &key, PAGE_REST, 0, 1);
    CU_ASSERT_EQUAL(raw_commit(&b, &slot, &key, 0, NULL), -ESTALE);
    CU_ASSERT_EQUAL(raw_abort(&b, &slot), -ESTALE);
    wrong = slot;
    wrong.generation++;
    CU_ASSERT_EQUAL(raw_abort(&a, &wrong), -ESTALE);
    CU_ASSERT_EQUAL(raw_commit(&a, &slot, &other, 0, NULL), -EINVAL);
    for (int i = 0; i < 1000; i++) {
        wrong.slot = (uint32_t) test_rand() >> test_rand_below(32);
        wrong.generation = test_rand() >> test_rand_below(64);
        if (wrong.slot != slot.slot || wrong.generation != slot.generation)
            CU_ASSERT_EQUAL(raw_abort(&a, &wrong), -ESTALE);
    }
    CU_ASSERT_EQUAL(raw_abort(&a, &slot), 0);
    CU_ASSERT_EQUAL(raw_abort(&a, &slot), -ESTALE);
    wrong = raw_reserve(&a, &key, PAGE_REST); /* the same slot, with another generation */
    CU_ASSERT(wrong.generation > slot.generation);
    raw_write_page(&a, raw_table, &key, PAGE_REST, 0, 1);
    CU_ASSERT_EQUAL(raw_commit(&a, &slot, &key, 0, NULL), -ESTALE);
    raw_close_model(&a);
    raw_close_model(&b);
    raw_stop();
}

static void test_lease_run_ends_with_a_reason(void)
{
    struct chunk_key keys[4];
    struct raw_slot slots[4];
    struct raw_model m;
    uint64_t lease;
    size_t granted;
    int reason;

    raw_start(DAEMON_BY_FD, NULL);
    m = raw_model_open();
    for (uint64_t n = 0; n < 3; n++) {
        keys[n] = raw_key(n);
        CU_ASSERT_EQUAL(raw_publish(&m, n, &slots[n], NULL), 0);
    }
    keys[3] = raw_key(99);
    slots[3] = (struct raw_slot){.slot = 0, .generation = 0};
    CU_ASSERT_EQUAL(raw_lease(&m, keys, slots, 4, &granted, &lease, &reason), 0);
    CU_ASSERT_EQUAL(granted, 3);
    CU_ASSERT_EQUAL(reason, MISS_UNKNOWN);
    slots[1].generation++;
    CU_ASSERT_EQUAL(raw_lease(&m, keys, slots, 3, &granted, &lease, &reason), 0);
    CU_ASSERT_EQUAL(granted, 1);
    slots[1].generation--;
    slots[0].slot = UINT32_MAX;
    CU_ASSERT_EQUAL(raw_lease(&m, keys, slots, 3, &granted, &lease, &reason), 0);
    CU_ASSERT_EQUAL(granted, 0);
    CU_ASSERT_EQUAL(lease, 0);
    raw_close_model(&m);
    raw_stop();
}

/* In a pool of one extent held pages are never evicted; others are, and ghosts give the reason. */
static void test_full_pool(void)
{
    const char *const args[] = {"--pool-bytes=256K", "--extent-bytes=256K", "--span-bytes=64K",
                                "--arena-bytes=1M",  "--quota-bytes=64M",   NULL};
    struct raw_slot slots[256], more;
    uint64_t leases[256], lease;
    struct raw_model m;
    uint64_t n = 1;
    int r, reason = 0;

    raw_start(DAEMON_BY_FD, args);
    m = raw_model_open();
    while (n < 256 && (r = raw_publish(&m, n, &slots[n], &leases[n])) == 0)
        n++;
    CU_ASSERT_EQUAL(r, -ENOSPC);
    CU_ASSERT(n > 8);
    CU_ASSERT_EQUAL(raw_held_pages(), n - 1);
    CU_ASSERT_EQUAL(raw_publish(&m, 1000, &more, NULL), -ENOSPC); /* everything is held */
    CU_ASSERT_EQUAL(raw_lease_one(&m, 1, &slots[1], &lease, &reason), 1);
    CU_ASSERT_EQUAL(raw_release(&m, leases[1]), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1000, &more, NULL), -ENOSPC); /* the page has another lease */
    CU_ASSERT_EQUAL(raw_release(&m, leases[2]), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1000, &more, NULL), 0); /* page 2 made room */
    CU_ASSERT_EQUAL(more.slot, slots[2].slot);
    CU_ASSERT(more.generation > slots[2].generation);
    CU_ASSERT_EQUAL(raw_lease_one(&m, 2, &slots[2], &lease, &reason), 0);
    CU_ASSERT_EQUAL(reason, MISS_EVICTED);
    raw_close_model(&m);
    raw_stop();
}

/* Quotas of an arena and two pages, less a byte, exactly, and more a byte. */
static void test_quota(void)
{
    struct raw_slot slots[3];
    struct page_layout l;
    char quota[64];
    struct raw_model m;
    const char *args[] = {"--arena-bytes=64K", quota, NULL};

    raw_table = raw_make_table(1);
    CU_ASSERT_EQUAL_FATAL(page_layout_init(&l, raw_table, (struct shard){0, 2}), 0);
    for (int delta = -1; delta <= 1; delta++) {
        raw_table = table_unref(raw_table);
        (void) snprintf(quota, sizeof(quota), "--quota-bytes=%zu",
                        (size_t) ((ptrdiff_t) (65536 + 2 * l.slot_bytes[PAGE_REST]) + delta));
        raw_start(DAEMON_BY_FD, args);
        m = raw_model_open();
        CU_ASSERT_EQUAL(raw_publish(&m, 1, &slots[0], NULL), 0);
        CU_ASSERT_EQUAL(raw_publish(&m, 2, &slots[1], NULL), delta < 0 ? -EDQUOT : 0);
        CU_ASSERT_EQUAL(raw_publish(&m, 3, &slots[2], NULL), -EDQUOT);
        raw_close_model(&m);
        raw_stop();
        raw_table = raw_make_table(1);
    }
    raw_table = table_unref(raw_table);
    page_layout_deinit(&l);
}

static long now_ms(void)
{
    struct timespec now;

    (void) clock_gettime(CLOCK_MONOTONIC, &now);
    return (long) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/*
 * Renews @m, without a message, until the reservation of a silent session has expired; then reads the busy
 * bytes. @last_ms: the last sign of life of @m. Return: the longest time without a renewal, in ms: on a busy
 * machine this process may itself be silent.
 */
static long renew_while_another_expires(struct raw_model *m, long last_ms, uint64_t *ret_busy)
{
    struct session_page *p = (struct session_page *) m->session;
    struct raw_model silent = raw_model_open();
    struct chunk_key key = raw_key(6);
    long longest_ms = 0;

    CU_ASSERT_EQUAL_FATAL(raw_reserve(&silent, &key, PAGE_REST).err, 0);
    for (struct wait w = wait_begin(); !daemon_logged(&raw_daemon, "event=expired") && wait_again(&w);) {
        long now = now_ms();

        (void) atomic_fetch_add(&p->renewals, 1);
        longest_ms = now - last_ms > longest_ms ? now - last_ms : longest_ms;
        last_ms = now;
    }
    CU_ASSERT(daemon_logged(&raw_daemon, "event=expired"));
    *ret_busy = raw_busy_bytes();
    last_ms = now_ms() - last_ms;
    raw_close_model(&silent);
    return last_ms > longest_ms ? last_ms : longest_ms;
}

/*
 * The grants and reservations of a silent client end, and its holds stay until it is gone. Renewals keep
 * reservations alive. The lease time is far longer than a busy machine delays a message, and the case waits
 * for the end of a reservation, not for a time.
 */
static void test_expiry(void)
{
    enum { LEASE_MS = 3000 };
    const char *const args[] = {"--lease-ms=3000", NULL};
    struct chunk_key key = raw_key(5);
    struct raw_slot page, reserved;
    struct raw_model m;
    uint64_t held, busy;
    long reserved_ms, silent_ms;

    raw_start(DAEMON_BY_FD, args);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &page, NULL), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    held = raw_busy_bytes();
    reserved_ms = now_ms();
    reserved = raw_reserve(&m, &key, PAGE_REST);
    CU_ASSERT_EQUAL(reserved.err, 0);
    silent_ms = renew_while_another_expires(&m, reserved_ms, &busy);
    CU_ASSERT(busy > held || silent_ms > LEASE_MS / 2); /* the reservation of @m is alive */
    raw_wait_for_busy_bytes(held);                      /* it expired without renewals; the hold stays */
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 1);
    CU_ASSERT_EQUAL(raw_commit(&m, &reserved, &key, 0, NULL), -ESTALE);
    raw_close_model(&m);
    raw_stop();
}

/* A client is killed: its holds, reservations and arena are freed, and its committed page stays. */
static void test_killed_client(void)
{
    struct raw_slot page, slot;
    struct chunk_key key = raw_key(5);
    int ready[2], reason;
    uint64_t lease;
    struct raw_model m;
    Kvcobra__Reply *r;
    pid_t child;

    raw_start(DAEMON_BY_FD, NULL);
    CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        struct raw_model mine = raw_model_open();

        if (raw_publish(&mine, 1, &page, NULL) != 0)
            _exit(1);
        if (raw_reserve(&mine, &key, PAGE_REST).err < 0 ||
            write(ready[1], &page, sizeof(page)) != (ssize_t) sizeof(page))
            _exit(1);
        (void) pause();
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(read(ready[0], &page, sizeof(page)), (ssize_t) sizeof(page));
    CU_ASSERT_EQUAL(raw_held_pages(), 1); /* the reservation is no page yet */
    (void) kill(child, SIGKILL);
    (void) waitpid(child, NULL, 0);
    raw_wait_for_held(0);
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->sessions, 0);
    CU_ASSERT_EQUAL(r->status->tenants[0]->arena_bytes, 0);
    CU_ASSERT_EQUAL(r->status->tenants[0]->pages, 1);
    wire_reply_free(r);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_lease_one(&m, 1, &page, &lease, &reason), 1);
    CU_ASSERT_EQUAL(raw_publish(&m, 5, &slot, NULL), 0);
    raw_close_model(&m);
    (void) close(ready[0]);
    (void) close(ready[1]);
    raw_stop();
}

/* A closed socket is no dead process: its holds stay, and the token resumes the session. */
static void test_disconnect_keeps_holds_and_resumes(void)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    uint8_t token[SESSION_TOKEN_BYTES];
    struct raw_slot page;
    struct raw_model m, again;
    Kvcobra__Reply *reply;
    uint64_t lease;
    int fd;

    raw_start(DAEMON_BY_FD, NULL);
    hello.version_min = hello.version_max = PROTO_VERSION;
    fd = raw_connect(raw_daemon.socket);
    reply = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply && reply->err == 0 && !reply->hello->resumed);
    memcpy(token, reply->hello->session_token.data, sizeof(token));
    wire_reply_free(reply);
    CU_ASSERT_EQUAL(raw_confirm(fd), 0);
    CU_ASSERT_EQUAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &page, &lease), 0);
    raw_close_model(&m);
    for (struct wait w = wait_begin(); !daemon_logged(&raw_daemon, "session-detached") && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(raw_held_pages(), 1);
    fd = raw_connect(raw_daemon.socket);
    token[0] ^= 1; /* another token has no effect */
    hello.session_token = (ProtobufCBinaryData){sizeof(token), token};
    reply = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT(reply && !reply->hello->resumed);
    wire_reply_free(reply);
    (void) close(fd);
    token[0] ^= 1;
    fd = raw_connect(raw_daemon.socket);
    reply = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT(reply && reply->hello->resumed);
    wire_reply_free(reply);
    CU_ASSERT_EQUAL(raw_confirm(fd), 0);
    CU_ASSERT_EQUAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &again), 0);
    CU_ASSERT_EQUAL(raw_release(&again, lease), 0); /* the old lease is valid */
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
    raw_close_model(&again);
    raw_stop();
}

/* An arena with a hole instead of the page reads as zeros: the page is refused, and the daemon continues. */
static void test_punched_arena(void)
{
    struct chunk_key key = raw_key(5);
    struct raw_slot slot;
    struct raw_model m;

    raw_start(DAEMON_BY_FD, NULL);
    m = raw_model_open();
    slot = raw_reserve(&m, &key, PAGE_REST);
    raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 1);
    CU_ASSERT_EQUAL(madvise(m.arena, m.arena_bytes, MADV_REMOVE), 0);
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(madvise(m.session, m.session_bytes, MADV_REMOVE), 0);
    raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 1);
    CU_ASSERT_EQUAL(raw_commit(&m, &slot, &key, 0, NULL), 0);
    raw_close_model(&m);
    raw_stop();
}

/*
 * More pages than the first index object takes: the daemon builds a new one, the old one refers to it,
 * nothing is lost.
 */
static void test_index_grows(void)
{
    enum { N = 4600 }; /* the first index is at its load limit at 4192 */
    const char *const args[] = {"--arena-bytes=64K", NULL};
    struct index_reader old, new;
    struct index_hit hit;
    struct raw_slot slot;
    struct raw_model a, b;
    struct chunk_key key;

    raw_start(DAEMON_BY_FD, args);
    a = raw_model_open();
    for (uint64_t n = 0; n < N; n++)
        CU_ASSERT_EQUAL_FATAL(raw_publish(&a, n, &slot, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(index_reader_init(&old, a.index, a.index_bytes, NULL), 0);
    key = raw_key(0);
    CU_ASSERT_EQUAL(index_lookup(&old, &key, &hit), INDEX_MOVED);
    b = raw_model_open();
    CU_ASSERT(b.index_object > a.index_object);
    CU_ASSERT_EQUAL_FATAL(index_reader_init(&new, b.index, b.index_bytes, NULL), 0);
    for (uint64_t n = 0; n < N; n++) {
        key = raw_key(n);
        CU_ASSERT_EQUAL(index_lookup(&new, &key, &hit), INDEX_FOUND);
    }
    raw_close_model(&a);
    raw_close_model(&b);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_publish_and_find),
    TEST(test_first_committer_wins),
    TEST(test_bad_pages_are_refused),
    TEST(test_damaged_string),
    TEST(test_sinks_must_be_finite),
    TEST(test_foreign_and_stale_slots),
    TEST(test_lease_run_ends_with_a_reason),
    TEST(test_full_pool),
    TEST(test_quota),
    TEST(test_expiry),
    TEST(test_killed_client),
    TEST(test_disconnect_keeps_holds_and_resumes),
    TEST(test_punched_arena),
    TEST(test_index_grows),
    TEST_END,
};
