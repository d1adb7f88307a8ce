/* One daemon and one small model; see raw_service_fixture.h. */
#include "tests/e2e/raw_service_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/splitmix64.h"
#include "gpu/page_layout.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

struct daemon raw_daemon;
struct geometry raw_geometry;
struct table *raw_table;

struct table *raw_make_table(uint64_t seed)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    struct table *t = NULL;
    void *bytes = NULL;
    size_t n_bytes;

    assert(random_table_bytes(&g, seed, 2.0, true, &bytes, &n_bytes) == 0);
    assert(table_parse(bytes, n_bytes, &t, NULL) == 0);
    free(bytes);
    return t;
}

void raw_activate_table(const struct table *t)
{
    uint8_t digest[32];

    raw_activate(raw_daemon.operator_socket, t->bytes, t->n_bytes, digest);
    CU_ASSERT(memcmp(digest, t->digest, 32) == 0);
}

void raw_start(unsigned flags, const char *const *args)
{
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    CU_ASSERT_FATAL(daemon_start(&raw_daemon, flags, args));
    raw_activate_table(raw_table);
}

void raw_stop(void)
{
    raw_table = table_unref(raw_table);
    CU_ASSERT(daemon_stop(&raw_daemon));
}

struct raw_model raw_model_open(void)
{
    struct raw_model m;

    assert(raw_open_model(raw_open(raw_daemon.socket), &raw_geometry, random_table_model_digest, &m) == 0);
    return m;
}

struct chunk_key raw_key(uint64_t n)
{
    struct chunk_key k = {{0}};

    for (size_t i = 0; i < sizeof(k.bytes);
         i += sizeof(n)) { /* both halves choose buckets, so both are uniform */
        uint64_t half = splitmix64_next(&n);

        memcpy(k.bytes + i, &half, sizeof(half));
    }
    return k;
}

int raw_publish(struct raw_model *m, uint64_t n, struct raw_slot *ret_slot, uint64_t *ret_lease)
{
    struct chunk_key key = raw_key(n);
    unsigned class = n == 0 ? PAGE_FIRST : PAGE_REST;

    *ret_slot = raw_reserve(m, &key, class);
    if (ret_slot->err < 0)
        return ret_slot->err;
    raw_write_page(m, raw_table, &key, class, 0, (unsigned) n);
    return raw_commit(m, ret_slot, &key, 0, ret_lease);
}

bool raw_lease_one(struct raw_model *m, uint64_t n, const struct raw_slot *s, uint64_t *ret_lease,
                   int *ret_reason)
{
    struct chunk_key key = raw_key(n);
    size_t granted = 0;
    int r = raw_lease(m, &key, s, 1, &granted, ret_lease, ret_reason);

    CU_ASSERT_EQUAL(r, 0);
    return granted == 1;
}

Kvcobra__Reply *raw_status(void)
{
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_GET_STATUS, &get);
    int fd = raw_open(raw_daemon.operator_socket);
    Kvcobra__Reply *reply = raw_request(fd, &q, NULL, 0, NULL);

    assert(reply && reply->err == 0);
    (void) close(fd);
    return reply;
}

int raw_evict(const char *tenant)
{
    Kvcobra__Evict m = KVCOBRA__EVICT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_EVICT, &m);
    int fd = raw_open(raw_daemon.operator_socket), r;

    m.tenant = (char *) tenant;
    r = raw_errno(fd, &q);
    (void) close(fd);
    return r;
}

uint64_t raw_held_pages(void)
{
    Kvcobra__Reply *r = raw_status();
    uint64_t n = r->status->held_pages;

    wire_reply_free(r);
    return n;
}

uint64_t raw_busy_bytes(void)
{
    Kvcobra__Reply *r = raw_status();
    uint64_t bytes = r->status->tenants[0]->held_bytes;

    wire_reply_free(r);
    return bytes;
}

/* The waits below check what they saw last: a page that is being sealed for the disk is busy for a moment. */
void raw_wait_for_busy_bytes(uint64_t bytes)
{
    uint64_t now = raw_busy_bytes();

    for (struct wait w = wait_begin(); now != bytes && wait_again(&w);)
        now = raw_busy_bytes();
    CU_ASSERT_EQUAL(now, bytes);
}

void raw_wait_for_held(uint64_t n)
{
    uint64_t now = raw_held_pages();

    for (struct wait w = wait_begin(); now != n && wait_again(&w);)
        now = raw_held_pages();
    CU_ASSERT_EQUAL(now, n);
}

/* Worker threads may still hold pages of sessions that have ended, so the holds of every space are read. */
static bool nothing_is_held(void)
{
    Kvcobra__Reply *r = raw_status();
    bool nothing = r->status->sessions == 0 && r->status->held_pages == 0;

    for (size_t x = 0; x < r->status->n_spaces; x++)
        nothing = nothing && r->status->spaces[x]->held_pages == 0;
    wire_reply_free(r);
    return nothing;
}

void raw_wait_for_no_sessions(void)
{
    bool nothing = nothing_is_held();

    for (struct wait w = wait_begin(); !nothing && wait_again(&w);)
        nothing = nothing_is_held();
    CU_ASSERT_TRUE(nothing);
}
