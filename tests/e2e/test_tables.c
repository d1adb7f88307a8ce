/*
 * Tables in the real daemon, without the library: swaps under a client, what survives a restart,
 * descriptors.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/hello_features.h"
#include "proto/shared.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "tables";

static int ref_table(struct raw_model *m, const struct table *t)
{
    Kvcobra__RefTable ref = KVCOBRA__REF_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_REF_TABLE, &ref);

    ref.model = m->handle;
    ref.digest = (ProtobufCBinaryData){32, (uint8_t *) t->digest};
    return raw_errno(m->fd, &q);
}

static int unref_table(struct raw_model *m, const struct table *t)
{
    Kvcobra__UnrefTable unref = KVCOBRA__UNREF_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_UNREF_TABLE, &unref);

    unref.model = m->handle;
    unref.digest = (ProtobufCBinaryData){32, (uint8_t *) t->digest};
    return raw_errno(m->fd, &q);
}

/* Sends a request on the operator socket. Return: errno of the reply. */
static int operator_errno(Kvcobra__Request *q)
{
    int fd = raw_open(raw_daemon.operator_socket);
    int r = raw_errno(fd, q);

    (void) close(fd);
    return r;
}

static int retire_table(const struct table *t)
{
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &retire);

    retire.digest = (ProtobufCBinaryData){32, (uint8_t *) t->digest};
    return operator_errno(&q);
}

static int roll_back(const struct table *t, uint64_t revision)
{
    Kvcobra__RollbackTable rollback = KVCOBRA__ROLLBACK_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE, &rollback);

    rollback.digest = (ProtobufCBinaryData){32, (uint8_t *) t->digest};
    rollback.revision = revision;
    return operator_errno(&q);
}

static int table_state(const struct table *t)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
    int fd = raw_open(raw_daemon.operator_socket), state = 0;
    Kvcobra__Reply *r = raw_request(fd, &q, NULL, 0, NULL);

    for (size_t i = 0; r && i < r->list_tables->n_tables; i++)
        if (memcmp(r->list_tables->tables[i]->digest.data, t->digest, 32) == 0)
            state = (int) r->list_tables->tables[i]->state;
    wire_reply_free(r);
    (void) close(fd);
    return state;
}

/*
 * A swap while a client has a reference to the old table: the table drains, and retires with its pages when
 * the last reference ends.
 */
static void test_table_swap(void)
{
    struct raw_slot slot, later;
    struct table *next;
    struct raw_model m;
    const struct control_page *control;
    uint64_t lease, lease2;
    size_t granted;
    struct chunk_key key = raw_key(1);
    int reason;

    raw_start(DAEMON_BY_FD, NULL);
    next = raw_make_table(2);
    m = raw_model_open();
    control = (const struct control_page *) m.control;
    CU_ASSERT_EQUAL(control_revision(control->models[0].word), 1);
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &slot, &lease), 0);
    raw_activate_table(next);
    CU_ASSERT_EQUAL(control_revision(control->models[0].word), 2);
    CU_ASSERT(memcmp(control->models[0].digests[control_active(control->models[0].word)], next->digest, 32) ==
              0);
    CU_ASSERT_EQUAL(table_state(raw_table), KVCOBRA__TABLE_STATE__TABLE_DRAINING);
    CU_ASSERT_EQUAL(raw_publish(&m, 2, &later, &lease2), 0); /* a sequence keeps its table */
    CU_ASSERT_EQUAL(raw_release(&m, lease2), 0);
    CU_ASSERT_EQUAL(ref_table(&m, next), 0);
    CU_ASSERT_EQUAL(unref_table(&m, next), 0);
    CU_ASSERT_EQUAL(unref_table(&m, next), -ENOENT);
    CU_ASSERT_EQUAL(unref_table(&m, raw_table), 0);
    CU_ASSERT_EQUAL(table_state(raw_table), KVCOBRA__TABLE_STATE__TABLE_DRAINING); /* a page is still held */
    CU_ASSERT_EQUAL(ref_table(&m, raw_table), -ESTALE);
    CU_ASSERT_EQUAL(raw_lease(&m, &key, &slot, 1, &granted, &lease2, &reason), -ESTALE);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    /* a rollback could return to it */
    CU_ASSERT_EQUAL(table_state(raw_table), KVCOBRA__TABLE_STATE__TABLE_DRAINING);
    CU_ASSERT_EQUAL(retire_table(next), -EBUSY);
    CU_ASSERT_EQUAL(retire_table(raw_table), 0);
    CU_ASSERT_EQUAL(table_state(raw_table), KVCOBRA__TABLE_STATE__TABLE_RETIRED);
    CU_ASSERT_EQUAL(table_state(next), KVCOBRA__TABLE_STATE__TABLE_ACTIVE);
    next = table_unref(next);
    raw_close_model(&m);
    raw_stop();
}

/* FETCH_TABLE. Return: errno of the reply; *ret_bytes: as the reply says. */
static int fetch_table(int fd, const struct table *t, uint64_t *ret_bytes, char *ret_sentence, size_t room)
{
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch);
    struct wire_packet packet = {.n_fds = 0};
    Kvcobra__Reply *reply;
    int r;

    fetch.digest = (ProtobufCBinaryData){32, (uint8_t *) t->digest};
    reply = raw_request(fd, &q, NULL, 0, &packet);
    CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
    r = reply->err;
    *ret_bytes = r == 0 ? reply->fetch_table->bytes : 0;
    (void) snprintf(ret_sentence, room, "%s", reply->message);
    CU_ASSERT_EQUAL(packet.n_fds, r == 0);
    wire_packet_close_fds(&packet);
    wire_reply_free(reply);
    return r;
}

/* Lines of the daemon's log that hold @words. */
static size_t count_events(const char *words)
{
    int fd = raw_open(raw_daemon.operator_socket);
    uint64_t after = 0;
    size_t found = 0;
    bool more = true;

    while (more) {
        Kvcobra__ListEvents list = KVCOBRA__LIST_EVENTS__INIT;
        Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LIST_EVENTS, &list);
        Kvcobra__Reply *reply;

        list.after = after;
        reply = raw_request(fd, &q, NULL, 0, NULL);
        CU_ASSERT_FATAL(reply && reply->err == 0);
        more = reply->list_events->n_events > 0;
        for (size_t i = 0; i < reply->list_events->n_events; i++) {
            const Kvcobra__LogEvent *e = reply->list_events->events[i];

            found += memmem(e->json.data, e->json.len, words, strlen(words)) != NULL;
            after = e->number;
        }
        wire_reply_free(reply);
    }
    (void) close(fd);
    return found;
}

/* A connection whose HELLO has these features; *ret_features: those of the reply. */
static int open_with_features(uint64_t features, uint64_t *ret_features)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    int fd = raw_connect(raw_daemon.socket);
    Kvcobra__Reply *reply;

    hello.version_min = hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "features test";
    hello.features = features;
    reply = raw_request(fd, &m, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply && reply->err == 0);
    *ret_features = reply->hello->features;
    wire_reply_free(reply);
    CU_ASSERT_EQUAL(raw_confirm(fd), 0);
    return fd;
}

/*
 * A client of an earlier version, which does not say that it reads tables of format 3: it opens the model,
 * keeps a table of format 2 that it has, and gets a sentence instead of one of format 3.
 */
static void test_earlier_client(void)
{
    struct table *next = NULL;
    struct raw_model m;
    uint64_t bytes, features;
    char why[256];
    void *image;
    size_t n;
    int fd;

    raw_start(DAEMON_BY_FD, NULL);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes_trellis(&raw_geometry, 7, 2, PREDICT_HEAD, 6, &image, &n), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(image, n, &next, NULL), 0);
    free(image);
    m = raw_model_open();
    CU_ASSERT_EQUAL(fetch_table(m.fd, raw_table, &bytes, why, sizeof(why)), 0);
    CU_ASSERT_EQUAL(bytes, raw_table->n_bytes);
    CU_ASSERT_EQUAL(count_events("table-unread"), 0);
    raw_activate_table(next);
    CU_ASSERT_EQUAL(count_events("table-unread"), 1); /* for this client */
    CU_ASSERT_EQUAL(fetch_table(m.fd, next, &bytes, why, sizeof(why)), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(why, "format 3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(why, "--trellis 0"));
    CU_ASSERT_EQUAL(fetch_table(m.fd, raw_table, &bytes, why, sizeof(why)), 0);
    CU_ASSERT_EQUAL(ref_table(&m, next), 0); /* as a client does that leaves encoding to the daemon */
    raw_close_model(&m);

    fd = open_with_features(UINT64_MAX, &features);
    CU_ASSERT_EQUAL(features, PROTO_FEATURE_TABLE_3); /* nothing that this daemon does not know */
    CU_ASSERT_EQUAL(fetch_table(fd, next, &bytes, why, sizeof(why)), 0);
    CU_ASSERT_EQUAL(bytes, next->n_bytes);
    (void) close(fd);
    fd = open_with_features(~PROTO_FEATURE_TABLE_3, &features);
    CU_ASSERT_EQUAL(features, 0);
    CU_ASSERT_EQUAL(fetch_table(fd, next, &bytes, why, sizeof(why)), -EOPNOTSUPP);
    (void) close(fd);
    fd = raw_open(raw_daemon.operator_socket); /* operators keep tables in files */
    CU_ASSERT_EQUAL(fetch_table(fd, next, &bytes, why, sizeof(why)), 0);
    (void) close(fd);
    next = table_unref(next);
    raw_stop();
}

/*
 * ROLLBACK to the earlier table while its pages exist: they are found again, and a
 * repeated request changes nothing.
 */
static void test_rollback(void)
{
    struct raw_slot slot;
    struct table *next;
    struct raw_model m;
    uint64_t lease;
    int reason;

    raw_start(DAEMON_BY_FD, NULL);
    next = raw_make_table(2);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &slot, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(unref_table(&m, raw_table), 0);
    raw_activate_table(next);
    CU_ASSERT_EQUAL(roll_back(next, 0), 0);
    CU_ASSERT_EQUAL(table_state(raw_table), KVCOBRA__TABLE_STATE__TABLE_ACTIVE);
    /* no client used it, and an operator may go forward to it again without its file */
    CU_ASSERT_EQUAL(table_state(next), KVCOBRA__TABLE_STATE__TABLE_DRAINING);
    CU_ASSERT_EQUAL(roll_back(next, 0), 0);
    CU_ASSERT_EQUAL(table_state(raw_table), KVCOBRA__TABLE_STATE__TABLE_ACTIVE);
    CU_ASSERT_EQUAL(roll_back(raw_table, 0), -ENODATA);
    CU_ASSERT_EQUAL(roll_back(next, 1), -ESTALE);
    CU_ASSERT_EQUAL(ref_table(&m, raw_table), 0);
    CU_ASSERT(raw_lease_one(&m, 1, &slot, &lease, &reason));
    raw_activate_table(next);
    CU_ASSERT_EQUAL(table_state(next), KVCOBRA__TABLE_STATE__TABLE_ACTIVE);
    next = table_unref(next);
    raw_close_model(&m);
    raw_stop();
}

static int evict(const char *tenant, uint64_t *ret_pages)
{
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_EVICT, &evict);
    int fd = raw_open(raw_daemon.operator_socket), r;
    Kvcobra__Reply *reply;

    evict.tenant = (char *) tenant;
    reply = raw_request(fd, &q, NULL, 0, NULL);
    r = reply->err;
    if (r == 0)
        *ret_pages = reply->evict->pages;
    wire_reply_free(reply);
    (void) close(fd);
    return r;
}

static int set_quota(const char *tenant, uint64_t bytes, uint64_t *ret_used)
{
    Kvcobra__SetQuota quota = KVCOBRA__SET_QUOTA__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_SET_QUOTA, &quota);
    int fd = raw_open(raw_daemon.operator_socket), r;
    Kvcobra__Reply *reply;

    quota.tenant = (char *) tenant;
    quota.quota_bytes = bytes;
    reply = raw_request(fd, &q, NULL, 0, NULL);
    r = reply->err;
    if (r == 0)
        *ret_used = reply->set_quota->used_bytes;
    wire_reply_free(reply);
    (void) close(fd);
    return r;
}

/* An operator's eviction leaves held pages and drops the others. */
static void test_evict_and_quota(void)
{
    static const char *const args[] = {"--arena-bytes=64K", NULL};
    struct raw_slot kept, gone, extra;
    uint64_t kept_lease, lease, pages = 0, used = 0, before = 0, slot_bytes;
    char tenant[32];
    struct raw_model m;
    int reason;

    raw_start(DAEMON_BY_FD, args);
    (void) snprintf(tenant, sizeof(tenant), "uid-%lu", (unsigned long) getuid());
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &kept, &kept_lease), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 2, &gone, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(evict("uid-x", &pages), -ENOENT);
    CU_ASSERT_EQUAL(evict(tenant, &pages), 0);
    CU_ASSERT_EQUAL(pages, 1);
    CU_ASSERT_FALSE(raw_lease_one(&m, 2, &gone, &lease, &reason));
    CU_ASSERT_EQUAL(reason, KVCOBRA__MISS_REASON__MISS_EVICTED);
    CU_ASSERT(raw_lease_one(&m, 1, &kept, &lease, &reason));
    CU_ASSERT_EQUAL(raw_publish(&m, 2, &gone, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(set_quota("uid-x", 1 << 20, &used), -ENOENT);
    CU_ASSERT_EQUAL(set_quota(tenant, 0, &used), -EINVAL);   /* no limit is given */
    CU_ASSERT_EQUAL(set_quota(tenant, 1 << 20, &before), 0); /* room for the two pages */
    CU_ASSERT_EQUAL(set_quota(tenant, 1, &used), 0);
    CU_ASSERT(before > used);
    slot_bytes = used - 65536; /* the arena and the held page */
    CU_ASSERT(slot_bytes >= kept.bytes && slot_bytes < 2 * kept.bytes);
    CU_ASSERT_EQUAL(raw_publish(&m, 3, &extra, &lease), -EDQUOT);
    CU_ASSERT_EQUAL(set_quota(tenant, used + slot_bytes - 1, &used), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 3, &extra, &lease), -EDQUOT);
    CU_ASSERT_EQUAL(set_quota(tenant, used + slot_bytes, &used), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 3, &extra, &lease), 0);
    raw_close_model(&m);
    raw_stop();
}

/* The state folder restores the tables and the active one; keys stay the same. */
static void test_state_survives(void)
{
    uint8_t index_key[INDEX_KEY_BYTES];
    struct raw_model m;

    raw_start(DAEMON_BY_PATH | DAEMON_WITH_STATE, NULL);
    m = raw_model_open();
    memcpy(index_key, m.index_key, sizeof(index_key));
    raw_close_model(&m);
    daemon_kill(&raw_daemon);
    CU_ASSERT_FATAL(daemon_start_again(&raw_daemon, NULL));
    m = raw_model_open();
    CU_ASSERT(memcmp(m.index_key, index_key, sizeof(index_key)) == 0);
    CU_ASSERT(memcmp(m.table_digest, raw_table->digest, 32) == 0);
    raw_close_model(&m);
    raw_stop();
}

static int set_guarantee(const char *tenant, uint64_t bytes)
{
    Kvcobra__SetQuota quota = KVCOBRA__SET_QUOTA__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_SET_QUOTA, &quota);
    int fd = raw_open(raw_daemon.operator_socket), r;

    quota.tenant = (char *) tenant;
    quota.guarantee_bytes = bytes;
    quota.set_guarantee = true;
    r = raw_errno(fd, &q);
    (void) close(fd);
    return r;
}

static void expect_quota(const char *tenant, uint64_t quota, uint64_t guarantee)
{
    Kvcobra__Reply *r = raw_status();
    bool found = false;

    for (size_t i = 0; i < r->status->n_tenants; i++) {
        const Kvcobra__TenantStatus *t = r->status->tenants[i];

        if (strcmp(t->name, tenant) != 0)
            continue;
        found = true;
        CU_ASSERT_EQUAL(t->quota_bytes, quota);
        CU_ASSERT_EQUAL(t->guarantee_bytes, guarantee);
    }
    CU_ASSERT(found);
    wire_reply_free(r);
}

/*
 * Quotas that an operator set, also for a tenant that never connected, survive a restart;
 * damaged lines are dropped.
 */
static void test_quotas_survive(void)
{
    static const char *const args[] = {"--pool-bytes=8M",   "--extent-bytes=1M", "--span-bytes=256K",
                                       "--arena-bytes=64K", "--quota-bytes=8M",  NULL};
    static const char damaged[] =
        "kvcobra quotas 1\n7001 3000000 -\nnonsense\n7002 0 -\n7003 - 8388608\n7004 - 1\n"
        "7005 99999999999999999999 -\n7006 - 99999999999999999999\n"; /* more than 64 bits */
    char path[160];
    uint64_t used;
    FILE *f;

    raw_start(DAEMON_BY_PATH | DAEMON_WITH_STATE, args);
    CU_ASSERT_EQUAL(set_guarantee("uid-7001", 3 << 20), 0);
    CU_ASSERT_EQUAL(set_quota("uid-7001", (3 << 20) - 1, &used), -EINVAL);
    CU_ASSERT_EQUAL(set_quota("uid-7001", 3 << 20, &used), 0);
    CU_ASSERT_EQUAL(set_guarantee("uid-7002", 5 << 20), 0); /* 3 + 5 of 8 */
    CU_ASSERT_EQUAL(set_guarantee("uid-7002", (5 << 20) + 1), -ENOSPC);
    CU_ASSERT_EQUAL(set_guarantee("uid-7003", 1), -ENOSPC);
    CU_ASSERT_EQUAL(set_guarantee("stranger", 1), -ENOENT);
    CU_ASSERT_EQUAL(set_guarantee("uid-7001 ", 1), -ENOENT);
    daemon_kill(&raw_daemon);
    CU_ASSERT_FATAL(daemon_start_again(&raw_daemon, args));
    expect_quota("uid-7001", 3 << 20, 3 << 20);
    expect_quota("uid-7002", 8 << 20, 5 << 20);
    CU_ASSERT_EQUAL(set_guarantee("uid-7003", 1), -ENOSPC);
    CU_ASSERT_EQUAL(set_guarantee("uid-7002", 0), 0);
    CU_ASSERT_EQUAL(set_guarantee("uid-7003", 1), 0);
    daemon_kill(&raw_daemon);
    (void) snprintf(path, sizeof(path), "%s/quotas", raw_daemon.state);
    f = fopen(path, "we");
    assert(f && fputs(damaged, f) >= 0 && fclose(f) == 0);
    CU_ASSERT_FATAL(daemon_start_again(&raw_daemon, args));
    expect_quota("uid-7001", 3000000, 0);
    expect_quota("uid-7003", 8 << 20, 8 << 20);
    expect_quota("uid-7004", 8 << 20, 0); /* no extent is left for it */
    CU_ASSERT(daemon_logged(&raw_daemon, "event=quota-ignored"));
    CU_ASSERT(daemon_logged(&raw_daemon, "bad line \\\"7005"));
    CU_ASSERT(daemon_logged(&raw_daemon, "bad line \\\"7006"));
    raw_stop();
}

/*
 * Counts a first page that was never published, one that was evicted, and the first missing page of a LEASE.
 */
static void test_misses_are_counted_by_reason(void)
{
    struct raw_slot slot, missing = {.slot = UINT32_MAX};
    struct raw_model m;
    uint64_t lease, pages;
    char tenant[32];
    Kvcobra__Reply *r;
    int reason;

    raw_start(DAEMON_BY_FD, NULL);
    (void) snprintf(tenant, sizeof(tenant), "uid-%lu", (unsigned long) getuid());
    m = raw_model_open();
    /* class first: a sequence without its first page is counted */
    CU_ASSERT_EQUAL(raw_publish(&m, 0, &slot, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &slot, &lease), 0); /* class rest: a later chunk, not counted */
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(evict(tenant, &pages), 0);
    CU_ASSERT_EQUAL(pages, 2);
    CU_ASSERT_EQUAL(raw_publish(&m, 0, &slot, &lease), 0);            /* evicted */
    CU_ASSERT_FALSE(raw_lease_one(&m, 1, &missing, &lease, &reason)); /* evicted */
    CU_ASSERT_FALSE(raw_lease_one(&m, 2, &missing, &lease, &reason)); /* never here */
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->tenants[0]->misses_unknown, 2);
    CU_ASSERT_EQUAL(r->status->tenants[0]->misses_evicted, 2);
    CU_ASSERT_EQUAL(r->status->tenants[0]->misses_other_table, 0);
    CU_ASSERT_EQUAL(r->status->tenants[0]->misses_retired_table, 0);
    wire_reply_free(r);
    raw_close_model(&m);
    raw_stop();
}

static void test_no_table_and_wrong_geometry(void)
{
    uint8_t unknown_model[32] = {1};
    struct geometry other;
    struct raw_model m;
    int fd;

    raw_start(DAEMON_BY_FD, NULL);
    fd = raw_open(raw_daemon.socket);
    CU_ASSERT_EQUAL(raw_open_model(fd, &raw_geometry, unknown_model, &m), -ENODATA);
    other = raw_geometry;
    other.n_layers++;
    CU_ASSERT_EQUAL(raw_open_model(fd, &other, random_table_model_digest, &m), -EINVAL);
    other = raw_geometry;
    other.d = 7;
    CU_ASSERT_EQUAL(raw_open_model(fd, &other, random_table_model_digest, &m), -EINVAL);
    (void) close(fd);
    raw_stop();
}

/*
 * At most one unread packet with descriptors: a client that does not read gets -EAGAIN, not more
 * descriptors.
 */
static void test_one_packet_with_descriptors_at_a_time(void)
{
    enum { N = 8 };
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch);
    int fd, n_ok = 0, n_again = 0;
    ssize_t n;

    raw_start(DAEMON_BY_FD, NULL);
    fd = raw_open(raw_daemon.socket);
    fetch.digest = (ProtobufCBinaryData){32, (uint8_t *) raw_table->digest};
    n = wire_request_pack(&q, buf);
    for (int i = 0; i < N; i++)
        CU_ASSERT_EQUAL(wire_send(fd, buf, (size_t) n, NULL, 0), 0);
    /* Waits for many passes of the loop, so that all answers have come before the first is read. */
    for (int i = 0, waiting = 0; i < 5000 && waiting < N; i++) {
        Kvcobra__Reply *r = raw_status(); /* takes a pass of the loop */

        wire_reply_free(r);
        waiting++;
    }
    for (int i = 0; i < N; i++) {
        struct wire_packet p;
        Kvcobra__Reply *reply = NULL;

        CU_ASSERT_EQUAL_FATAL(wire_receive(fd, buf, &p), 0);
        CU_ASSERT_EQUAL_FATAL(wire_reply_unpack(buf, p.bytes, &reply), 0);
        n_ok += reply->err == 0;
        n_again += reply->err == -EAGAIN;
        CU_ASSERT_EQUAL(p.n_fds, reply->err == 0 ? 1 : 0);
        wire_packet_close_fds(&p);
        wire_reply_free(reply);
    }
    CU_ASSERT_EQUAL(n_ok, 1);
    CU_ASSERT_EQUAL(n_again, N - 1);
    n = wire_request_pack(&q, buf); /* all are read, so the next one is served */
    {
        struct wire_packet p;
        Kvcobra__Reply *reply = raw_request(fd, &q, NULL, 0, &p);

        CU_ASSERT(reply && reply->err == 0 && p.n_fds == 1);
        wire_packet_close_fds(&p);
        wire_reply_free(reply);
    }
    (void) close(fd);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_table_swap),
    TEST(test_earlier_client),
    TEST(test_rollback),
    TEST(test_evict_and_quota),
    TEST(test_state_survives),
    TEST(test_quotas_survive),
    TEST(test_misses_are_counted_by_reason),
    TEST(test_no_table_and_wrong_geometry),
    TEST(test_one_packet_with_descriptors_at_a_time),
    TEST_END,
};
