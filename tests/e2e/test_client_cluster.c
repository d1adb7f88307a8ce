/*
 * The cluster tier through the library: two daemons with a kvcobra-cluster each, and one redis-server. What
 * one of them publishes, the other one finds with the same bits; what the server damages or loses is a miss.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/cluster_fixture.h"
#include "tests/e2e/tier_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { CHUNKS = TIER_SHARED / 64, FLEET_KEYS = 1 };

/* Repeats a match until it finds @n tokens: the daemon first has to hear that kvcobra-cluster has joined. */
static bool finds(struct host *h, uint32_t text, size_t n)
{
    struct embedded m = scene_client(&h->scene);
    size_t found = tier_match(&h->scene, &m, text, 8000);

    for (struct wait w = wait_begin(); found != n && wait_again(&w);)
        found = tier_match(&h->scene, &m, text, 8000);
    embedded_free(&m);
    return found == n;
}

static void publish(struct host *h, uint32_t text)
{
    struct embedded m = scene_client(&h->scene);

    tier_publish(&m, text);
    embedded_free(&m);
}

static size_t find_once(struct host *h, uint32_t text)
{
    struct embedded m = scene_client(&h->scene);
    size_t n = tier_match(&h->scene, &m, text, 8000);

    embedded_free(&m);
    return n;
}

static bool logs(const struct host *h, const char *text)
{
    bool found = daemon_logged(&h->scene.daemon, text);

    for (struct wait w = wait_begin(); !found && wait_again(&w);)
        found = daemon_logged(&h->scene.daemon, text);
    return found;
}

static const Kvcobra__ControlTierReply *ask_state(struct host *h)
{
    return scene_tier(h->scene.control, KVCOBRA__TIER_ACTION__TIER_ASK);
}

static bool begin(struct redis *r)
{
    if (redis_start(r))
        return true;
    test_skip("there is no redis-server (Debian package redis-server)");
    return false;
}

/* ---- tests ---- */

/* Pages that were published before kvcobra-cluster joined are written, too: the queue keeps them. */
static void test_two_hosts(void)
{
    const Kvcobra__ControlTierReply *s;
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    host_start(&a, &r, 'a', NULL);
    host_start(&b, &r, 'a', NULL);
    publish(&a, 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    CU_ASSERT(finds(&b, 0, TIER_SHARED));
    CU_ASSERT_EQUAL(find_once(&b, 1), 0);
    s = ask_state(&b);
    CU_ASSERT_STRING_EQUAL(s->state, "none");
    CU_ASSERT_STRING_EQUAL(s->cluster_state, "ready");
    CU_ASSERT_EQUAL(s->cluster_read_pages, CHUNKS);
    CU_ASSERT(s->cluster_found >= CHUNKS);          /* a request that waited for an extent asked again */
    CU_ASSERT(s->cluster_asked > s->cluster_found); /* those of text 1, too */
    CU_ASSERT_EQUAL(s->cluster_unopened + s->cluster_written_pages, 0);
    s = ask_state(&a); /* the last reply may be on its way */
    for (struct wait w = wait_begin(); s->cluster_waiting > 0 && wait_again(&w);)
        s = ask_state(&a);
    CU_ASSERT_EQUAL(s->cluster_written_pages, CHUNKS);
    CU_ASSERT_EQUAL(s->cluster_waiting, 0);

    host_end(&a); /* what b has is its own */
    CU_ASSERT_EQUAL(find_once(&b, 0), TIER_SHARED);
    host_restart(&b); /* a host whose memory is empty */
    CU_ASSERT(finds(&b, 0, TIER_SHARED));
    host_end(&b);
    redis_end(&r);
}

/* Two hosts: @a published texts 0 and 1, @b has text 1 in memory, and all values are damaged. */
static void start_with_damaged_values(struct host *a, struct host *b, struct redis *r)
{
    host_start(a, r, 'a', NULL);
    host_start(b, r, 'a', NULL);
    publish(a, 0);
    publish(a, 1);
    CU_ASSERT(redis_reaches(r, 2 * CHUNKS + FLEET_KEYS));
    CU_ASSERT(finds(b, 1, TIER_SHARED)); /* b has joined */
    CU_ASSERT_EQUAL(redis_damage_pages(r), 2 * CHUNKS);
}

static void test_damaged_values(void)
{
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    start_with_damaged_values(&a, &b, &r);
    CU_ASSERT_EQUAL(find_once(&b, 0), 0);
    CU_ASSERT(logs(&b, "page-not-opened"));

    /* the chunks that b fetched in vain were removed, and are written anew; the others are as they were */
    publish(&b, 0);
    CU_ASSERT_EQUAL(find_once(&b, 0), TIER_SHARED);
    host_restart(&a);
    CU_ASSERT(finds(&a, 0, TIER_SHARED));
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

/* A cluster whose pages do not open costs room in memory, so it is not asked for a while. */
static void test_empty_promises(void)
{
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    start_with_damaged_values(&a, &b, &r);
    CU_ASSERT(redis_ask(&r, "ACL SETUSER default -unlink") >= 0); /* so that they stay */
    for (struct wait w = wait_begin();
         !daemon_logged(&b.scene.daemon, "cluster-tier-broken") && wait_again(&w);)
        CU_ASSERT_EQUAL(find_once(&b, 0), 0);
    CU_ASSERT(daemon_logged(&b.scene.daemon, "cluster-tier-broken"));
    CU_ASSERT_EQUAL(find_once(&b, 1), TIER_SHARED); /* memory is as it was */
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

static void test_other_tenants_stay(void)
{
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    host_start(&a, &r, 'a', "uid-4000000");
    host_start(&b, &r, 'a', NULL);
    CU_ASSERT(logs(&a, "cluster-tier-ready"));
    publish(&a, 0);
    publish(&b, 1);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS)); /* those of b */
    CU_ASSERT_EQUAL(find_once(&a, 1), 0);
    CU_ASSERT_EQUAL(find_once(&b, 0), 0);
    CU_ASSERT_EQUAL(redis_ask(&r, "DBSIZE"), CHUNKS + FLEET_KEYS);
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

/* Without kvcobra-cluster, and without the server, everything is a miss and the daemon serves. */
static void test_killed(void)
{
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    host_start(&a, &r, 'a', NULL);
    host_start(&b, &r, 'a', NULL);
    publish(&a, 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    CU_ASSERT(logs(&b, "cluster-tier-ready"));
    host_kill_process(&b);
    CU_ASSERT(logs(&b, "cluster-tier-absent"));
    CU_ASSERT_EQUAL(find_once(&b, 0), 0);
    publish(&b, 1);
    CU_ASSERT_EQUAL(find_once(&b, 1), TIER_SHARED);

    host_start_process(&b);
    CU_ASSERT(finds(&b, 0, TIER_SHARED));
    CU_ASSERT(redis_reaches(&r, 2 * CHUNKS + FLEET_KEYS)); /* the queue kept those of text 1 */

    (void) kill(r.pid, SIGSTOP);
    host_restart(&b);
    CU_ASSERT_EQUAL(find_once(&b, 0), 0);
    (void) kill(r.pid, SIGCONT);
    CU_ASSERT(finds(&b, 1, TIER_SHARED));
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

/* The cluster belongs to the fleet that came first. */
static void test_two_fleets(void)
{
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    host_start(&a, &r, 'a', NULL);
    publish(&a, 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    host_start(&b, &r, 'c', NULL);
    CU_ASSERT(logs(&b, "cluster-tier-refused"));
    publish(&b, 1);
    CU_ASSERT_EQUAL(find_once(&b, 1), TIER_SHARED);
    CU_ASSERT_EQUAL(find_once(&b, 0), 0);
    CU_ASSERT_EQUAL(redis_ask(&r, "DBSIZE"), CHUNKS + FLEET_KEYS);
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

/*
 * Pages have a time to live, and it rises while a client holds them, which only a refresh does. What they may
 * live is far longer than a pause of a busy machine.
 */
static void test_times_to_live(void)
{
    enum { TTL_S = 24 };
    const Kvcobra__ControlTierReply *state;
    long least, now;
    struct redis r;
    struct host a;
    struct embedded m;
    kvc_seq *s = NULL;
    size_t n = 0;

    if (!begin(&r))
        return;
    host_start(&a, &r, 'a', NULL);
    a.args[9] = "--cluster-ttl-s=24";
    a.args[10] = NULL;
    host_restart(&a);
    CU_ASSERT(logs(&a, "cluster-tier-ready"));
    m = scene_client(&a.scene);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, TIER_TOKENS, TIER_TOKENS, &n), 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    least = now = redis_page_ttl_ms(&r);
    CU_ASSERT(least > 0 && least <= TTL_S * 1000);
    for (struct wait w = wait_begin(); now <= least && wait_again(&w);) {
        least = now;
        now = redis_page_ttl_ms(&r);
    }
    CU_ASSERT(now > least && now <= TTL_S * 1000);
    CU_ASSERT_EQUAL(redis_ask(&r, "DBSIZE"), CHUNKS + FLEET_KEYS);
    state = ask_state(&a);
    for (struct wait w = wait_begin(); state->cluster_refreshed < CHUNKS && wait_again(&w);)
        state = ask_state(&a);
    CU_ASSERT(state->cluster_refreshed >= CHUNKS);
    kvc_seq_free(s);
    embedded_free(&m);
    host_end(&a);
    redis_end(&r);
}

/* How many pages of a prompt LOOKUP finds in the cluster alone. */
static size_t cluster_places(const struct host *h, const Kvcobra__Prefix *o, const uint32_t *tokens)
{
    Kvcobra__LookupReply *places = NULL;
    size_t found = 0;

    CU_ASSERT_EQUAL_FATAL(operator_lookup(h->scene.control, o, tokens, TIER_TOKENS, false, &places, NULL), 0);
    for (size_t i = 0; i < places->n_places; i++) {
        CU_ASSERT(!places->places[i]->in_cluster ||
                  !(places->places[i]->in_memory || places->places[i]->on_disk));
        found += places->places[i]->in_cluster != 0;
    }
    operator_message_freep(&places);
    return found;
}

/*
 * Evicts the tenant's pages, and counts those of the prompt in the cluster, until there are @n. A session
 * that just ended may hold pages for a moment, and a busy machine may answer too late: a page counts as
 * missing then.
 */
static bool cluster_places_reach(const struct host *h, const Kvcobra__Prefix *o, const uint32_t *tokens,
                                 size_t n)
{
    for (struct wait w = wait_begin(); wait_again(&w);) {
        CU_ASSERT_EQUAL(operator_evict(h->scene.control, o->tenant, NULL, NULL, NULL), 0);
        if (cluster_places(h, o, tokens) == n)
            return true;
    }
    return false;
}

/* LOOKUP sees pages of the cluster. A flushed prefix is not found again, also not there. */
static void test_flush(void)
{
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    struct redis r;
    struct host a;
    char tenant[32];
    uint8_t digest[KVC_DIGEST_BYTES];
    Kvcobra__Prefix o = KVCOBRA__PREFIX__INIT;

    if (!begin(&r)) {
        free(tokens);
        return;
    }
    (void) snprintf(tenant, sizeof(tenant), "uid-%ld", (long) getuid());
    host_start(&a, &r, 'a', NULL);
    scene_activate(&a.scene, 1, 7, digest);
    o.tenant = tenant;
    o.table_digest = operator_digest(digest);
    publish(&a, 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    CU_ASSERT_EQUAL(cluster_places(&a, &o, tokens), 0); /* memory has them: the cluster is not asked */
    CU_ASSERT(cluster_places_reach(&a, &o, tokens, CHUNKS));
    CU_ASSERT_EQUAL(operator_flush(a.scene.control, &o, tokens, 64 * 10, 64, NULL, NULL), 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS - 1));
    CU_ASSERT(cluster_places_reach(&a, &o, tokens, CHUNKS - 1));
    CU_ASSERT_EQUAL(find_once(&a, 0), 64 * 9);
    publish(&a, 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    CU_ASSERT_EQUAL(find_once(&a, 0), TIER_SHARED);
    free(tokens);
    host_end(&a);
    redis_end(&r);
}

/* A pin brings pages that only the cluster has to memory, and says how many did not come. */
static void test_pin(void)
{
    uint32_t *tokens = scene_tokens(0, TIER_TOKENS);
    Kvcobra__PinReply reply = KVCOBRA__PIN_REPLY__INIT;
    Kvcobra__Prefix o = KVCOBRA__PREFIX__INIT;
    uint8_t digest[KVC_DIGEST_BYTES];
    char tenant[32];
    struct embedded m; /* makes the tenant of b */
    struct redis r;
    struct host a, b;
    int err = 0;

    if (!begin(&r)) {
        free(tokens);
        return;
    }
    (void) snprintf(tenant, sizeof(tenant), "uid-%ld", (long) getuid());
    host_start(&a, &r, 'a', NULL);
    host_start(&b, &r, 'a', NULL);
    scene_activate(&a.scene, 1, 7, digest);
    scene_activate(&b.scene, 1, 7, digest);
    o.tenant = tenant;
    o.table_digest = operator_digest(digest);
    publish(&a, 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    CU_ASSERT(logs(&b, "cluster-tier-ready"));
    m = scene_client(&b.scene);
    /* b never had a page; a busy machine may answer a question too late */
    for (struct wait w = wait_begin(); err == 0 && reply.pages != CHUNKS / 2 && wait_again(&w);)
        err = operator_pin(b.scene.control, &o, tokens, TIER_SHARED / 2, 3600000, &reply, NULL);
    CU_ASSERT_EQUAL(err, 0);
    CU_ASSERT(reply.pages == CHUNKS / 2 && reply.missing == 0 && reply.pinned_bytes > 0);
    host_kill_process(&b);
    CU_ASSERT_EQUAL(operator_pin(b.scene.control, &o, tokens, TIER_SHARED, 3600000, &reply, NULL), 0);
    CU_ASSERT(reply.pages == CHUNKS / 2 && reply.missing == CHUNKS / 2);
    CU_ASSERT_EQUAL(tier_match(&b.scene, &m, 0, 0), TIER_SHARED / 2);
    embedded_free(&m);
    free(tokens);
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

/* Each host writes what it has again after the server was emptied, whichever host sees that first. */
static void test_refill(void)
{
    struct redis r;
    struct host a, b;

    if (!begin(&r))
        return;
    host_start(&a, &r, 'a', NULL);
    host_start(&b, &r, 'a', NULL);
    publish(&a, 0);
    publish(&b, 1);
    CU_ASSERT(redis_reaches(&r, 2 * CHUNKS + FLEET_KEYS));
    CU_ASSERT_EQUAL(redis_ask(&r, "FLUSHALL"), 0);
    CU_ASSERT(redis_reaches(&r, 2 * CHUNKS + FLEET_KEYS));

    host_kill_process(&a); /* it does not see that the server is emptied */
    CU_ASSERT(logs(&a, "cluster-tier-absent"));
    CU_ASSERT_EQUAL(redis_ask(&r, "FLUSHALL"), 0);
    CU_ASSERT(redis_reaches(&r, CHUNKS + FLEET_KEYS));
    host_start_process(&a);
    CU_ASSERT(redis_reaches(&r, 2 * CHUNKS + FLEET_KEYS));
    CU_ASSERT(finds(&b, 0, TIER_SHARED));
    host_end(&a);
    host_end(&b);
    redis_end(&r);
}

static void test_secret_of_a_host(void)
{
    static const char log[] = "/tmp/kvcobra-cluster-secret.log";
    const char *const args[] = {"--socket=/tmp/kvcobra-none/s", "--operator-socket=none",
                                "--cluster-socket=/tmp/kvcobra-none/c", "--cluster-tenants=uid-1", NULL};
    char text[1024] = "";
    FILE *f;

    CU_ASSERT_EQUAL(daemon_run(args, log), 78);
    f = fopen(log, "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT(fread(text, 1, sizeof(text) - 1, f) > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "--cluster-socket needs --key-file"));
    (void) fclose(f);
    (void) unlink(log);
}

const struct test_case test_cases[] = {
    TEST(test_two_hosts),
    TEST(test_damaged_values),
    TEST(test_other_tenants_stay),
    TEST(test_killed),
    TEST(test_two_fleets),
    TEST(test_times_to_live),
    TEST(test_flush),
    TEST(test_pin),
    TEST(test_refill),
    TEST(test_secret_of_a_host),
    TEST(test_empty_promises),
    TEST_END,
};
const char test_suite[] = "client_cluster";
