/*
 * What a client sends when a reply is unusual: a small limit of items in a message, a page that it cannot
 * use, a slot that was written again, a session that ended. A relay changes the replies of a real daemon
 * and records the requests.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_fixture.h"
#include "tests/e2e/relay_fixture.h"
#include "tests/lib/random_table.h"

static const char *const pool[] = {"--pool-bytes=64M", "--arena-bytes=8M", NULL};

enum { RECORDS_MAX = 64 };

struct record {
    size_t n_lease, lease_items[RECORDS_MAX];     /* items of each LEASE */
    size_t n_reserve, reserve_items[RECORDS_MAX]; /* of each RESERVE */
    size_t n_commit, commit_items[RECORDS_MAX];   /* of each COMMIT */
    size_t n_keep, keep_leases[RECORDS_MAX];      /* leases in each KEEP_LEASES */
    bool keep_is_last[RECORDS_MAX];
    size_t n_kept, n_granted, n_release;
    uint64_t kept[RECORDS_MAX], granted[RECORDS_MAX]; /* leases that KEEP_LEASES listed, that LEASE granted */

    /* what the relay changes */
    uint32_t items_per_message;      /* 0: not */
    int spoilt_page;                 /* of each reply to LEASE has one byte too many; -1: none */
    bool other_generations;          /* pages of a LEASE have another generation */
    Kvcobra__Request__BodyCase cuts; /* the next such request does not arrive, the connection ends; 0: none */
    bool forgets_session;            /* HELLO comes without a token */
    bool forgot_session;             /* that happened */
};

static bool on_request(void *ctx, Kvcobra__Request *m)
{
    struct record *r = ctx;
    bool passes = r->cuts == 0 || m->body_case != r->cuts;

    if (!passes)
        r->cuts = 0;
    r->n_release += m->body_case == KVCOBRA__REQUEST__BODY_RELEASE;

    if (m->body_case == KVCOBRA__REQUEST__BODY_LEASE && r->n_lease < RECORDS_MAX)
        r->lease_items[r->n_lease++] = m->lease->n_items;
    if (m->body_case == KVCOBRA__REQUEST__BODY_RESERVE && r->n_reserve < RECORDS_MAX)
        r->reserve_items[r->n_reserve++] = m->reserve->n_items;
    if (m->body_case == KVCOBRA__REQUEST__BODY_COMMIT && r->n_commit < RECORDS_MAX)
        r->commit_items[r->n_commit++] = m->commit->n_items;
    if (m->body_case == KVCOBRA__REQUEST__BODY_KEEP_LEASES && r->n_keep < RECORDS_MAX) {
        r->keep_is_last[r->n_keep] = m->keep_leases->last;
        r->keep_leases[r->n_keep++] = m->keep_leases->n_leases;
        for (size_t i = 0; i < m->keep_leases->n_leases && r->n_kept < RECORDS_MAX; i++)
            r->kept[r->n_kept++] = m->keep_leases->leases[i];
    }
    if (m->body_case == KVCOBRA__REQUEST__BODY_HELLO && r->forgets_session) {
        m->hello->session_token.len = 0;
        r->forgot_session = true;
    }
    return passes;
}

static void on_reply(void *ctx, Kvcobra__Request__BodyCase about, Kvcobra__Reply *m)
{
    struct record *r = ctx;

    if (m->err != 0)
        return;
    if (about == KVCOBRA__REQUEST__BODY_HELLO && r->items_per_message > 0)
        m->hello->limits->items_per_message = r->items_per_message;
    if (about != KVCOBRA__REQUEST__BODY_LEASE)
        return;
    if (r->n_granted < RECORDS_MAX)
        r->granted[r->n_granted++] = m->lease->lease;
    for (size_t i = 0; i < m->lease->n_pages; i++) {
        m->lease->pages[i]->bytes += (int) i == r->spoilt_page;
        m->lease->pages[i]->generation += r->other_generations;
    }
}

/* A daemon with @n_chunks published chunks of text 0, and a client behind a relay. */
struct stage {
    struct scene direct;
    struct relay relay;
    struct record record;
    struct embedded m;
    uint32_t *tokens; /* of one chunk more */
    size_t n_tokens;
};

static void stage_begin(struct stage *s, size_t n_chunks, uint32_t items_per_message)
{
    struct embedded publisher;
    struct scene behind;
    kvc_seq *seq = NULL;
    size_t n = 0;

    scene_start(&s->direct, random_table_geometry(2, 4, 2, 64), 3, 1, pool);
    s->n_tokens = 64 * (n_chunks + 1) + 1;
    s->tokens = scene_tokens(0, s->n_tokens);
    publisher = scene_client(&s->direct);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(publisher.model, NULL, 0, &seq), 0);
    /* the newest 64 tokens are not published */
    CU_ASSERT_EQUAL(scene_publish(&publisher, seq, 0, 0, 64 * (n_chunks + 1), 64, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * n_chunks);
    embedded_free(&publisher);

    s->record = (struct record){.items_per_message = items_per_message, .spoilt_page = -1};
    relay_start(&s->relay, s->direct.daemon.socket, on_request, on_reply, &s->record);
    behind = s->direct;
    (void) strcpy(behind.daemon.socket, s->relay.path);
    s->m = scene_client(&behind);
}

static bool nothing_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0;
}

static void stage_end(struct stage *s)
{
    embedded_free(&s->m);
    relay_stop(&s->relay);
    if (!s->record.forgot_session) /* the daemon keeps what a lost session holds until this process ends */
        CU_ASSERT(scene_wait(&s->direct, nothing_held));
    free(s->tokens);
    scene_end(&s->direct);
}

/* Loses the connection, and waits until the client has another one. */
static void reconnect(struct stage *s)
{
    relay_cut(&s->relay);
    scene_reconnect(s->m.client, s->relay.path);
}

static size_t sum(const size_t *x, size_t n)
{
    size_t total = 0;

    for (size_t i = 0; i < n; i++)
        total += x[i];
    return total;
}

static size_t largest(const size_t *x, size_t n)
{
    size_t most = 0;

    for (size_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/*
 * A daemon that takes two items in a message. After the chunks that the index has, LEASE names one more,
 * which the daemon counts as a miss, if the message has room for it.
 */
static void small_messages(size_t n_chunks)
{
    struct stage s;
    struct record *r = &s.record;
    kvc_seq *seq = NULL;
    size_t n = 0, n_leases = (n_chunks + 1) / 2;

    stage_begin(&s, n_chunks, 2);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * n_chunks);
    CU_ASSERT_EQUAL(r->n_lease, n_leases);
    CU_ASSERT_EQUAL(largest(r->lease_items, r->n_lease), 2);

    reconnect(&s); /* the session is resumed: its leases are listed */
    CU_ASSERT_EQUAL(r->n_keep, (n_leases + 1) / 2);
    CU_ASSERT_EQUAL(largest(r->keep_leases, r->n_keep), n_leases < 2 ? n_leases : 2);
    CU_ASSERT_EQUAL(sum(r->keep_leases, r->n_keep), n_leases);
    for (size_t i = 0; i < r->n_keep; i++)
        CU_ASSERT_EQUAL(r->keep_is_last[i], i + 1 == r->n_keep);
    stage_end(&s);
}

static void test_small_messages(void)
{
    for (size_t n_chunks = 1; n_chunks <= 6; n_chunks++)
        small_messages(n_chunks);
}

/* RESERVE and COMMIT keep the limit too, and every page arrives. */
static void test_small_messages_of_a_publisher(void)
{
    struct stage s;
    kvc_seq *seq = NULL;
    size_t n = 0;

    stage_begin(&s, 1, 2);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
    CU_ASSERT_EQUAL(scene_publish(&s.m, seq, 1, 0, 64 * 6, 64 * 6, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * 5);
    CU_ASSERT_EQUAL(largest(s.record.reserve_items, s.record.n_reserve), 2);
    CU_ASSERT_EQUAL(largest(s.record.commit_items, s.record.n_commit), 2);
    CU_ASSERT_EQUAL(sum(s.record.commit_items, s.record.n_commit), 5);
    stage_end(&s);
}

static bool two_pages_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 2;
}

/*
 * Of three pages that the daemon granted one has an impossible size. The pages before it are used; it and
 * those behind it are given back, or they would be held as long as the process lives.
 */
static void spoilt_page(int which)
{
    struct stage s;
    kvc_seq *seq = NULL;
    size_t n = 0;
    int r;

    stage_begin(&s, 3, 0);
    s.record.spoilt_page = which;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
    r = kvc_seq_match(seq, s.tokens, s.n_tokens, &n);
    CU_ASSERT_EQUAL(r, which == 0 ? -EPROTO : 0);
    CU_ASSERT_EQUAL(n, 64 * (size_t) which);
    CU_ASSERT(scene_wait(&s.direct, which == 0 ? nothing_held : two_pages_held));
    stage_end(&s);
}

static void test_unusable_page_is_given_back(void)
{
    spoilt_page(0);
    spoilt_page(2);
}

/*
 * The session ended with its connection, and the daemon leases the slot again with another generation: it
 * holds another page. The sequence must not read it, and later KEEP_LEASES must not name the lost session's
 * lease.
 */
static void test_slot_was_written_again(void)
{
    struct stage s;
    struct record *r = &s.record;
    kvc_seq *seq = NULL, *later = NULL;
    size_t n = 0;

    stage_begin(&s, 3, 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * 3);
    r->forgets_session = r->other_generations = true;
    reconnect(&s);
    CU_ASSERT_EQUAL(r->n_granted, 2); /* asked for them again, in vain */
    CU_ASSERT_EQUAL(r->n_keep, 0);
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), -ESTALE);

    r->forgets_session = r->other_generations = false;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &later), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(later, s.tokens, s.n_tokens, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * 3);
    CU_ASSERT_EQUAL_FATAL(r->n_granted, 3);
    reconnect(&s);
    CU_ASSERT_EQUAL(r->n_keep, 1);
    CU_ASSERT_EQUAL(r->n_kept, 1);
    CU_ASSERT_EQUAL(r->kept[0], r->granted[2]);
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), 0); /* this time its pages are there */
    CU_ASSERT_EQUAL(n, 64 * 3);
    CU_ASSERT_EQUAL(kvc_seq_match(later, s.tokens, s.n_tokens, &n), 0);
    stage_end(&s);
}

/* The same without a change: the slots have the same pages, so the sequence continues. */
static void test_session_is_lost_but_not_its_pages(void)
{
    struct stage s;
    kvc_seq *seq = NULL;
    size_t n = 0;

    stage_begin(&s, 3, 2);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), 0);
    s.record.forgets_session = true;
    reconnect(&s);
    CU_ASSERT_EQUAL(largest(s.record.lease_items, s.record.n_lease), 2);
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * 3);
    CU_ASSERT_EQUAL(s.record.n_release, 0); /* what is in use is not given back */
    stage_end(&s);
}

/* The connection ends before LEASE arrives: the match connects again and repeats it. */
static void test_connection_ends_during_a_match(void)
{
    struct stage s;
    kvc_seq *seq = NULL;
    kvc_client_info i = {.struct_bytes = sizeof(i)};
    size_t n = 0;

    stage_begin(&s, 3, 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
    s.record.cuts = KVCOBRA__REQUEST__BODY_LEASE;
    CU_ASSERT_EQUAL(kvc_seq_match(seq, s.tokens, s.n_tokens, &n), 0);
    CU_ASSERT_EQUAL(n, 64 * 3);
    CU_ASSERT_EQUAL(s.record.n_lease, 2);
    CU_ASSERT_EQUAL(kvc_client_get_info(s.m.client, &i), 0);
    CU_ASSERT(i.connected && i.n_reconnects == 1);
    stage_end(&s);
}

/* The same during COMMIT: every page is published once. */
static void test_connection_ends_during_a_commit(void)
{
    static const Kvcobra__Request__BodyCase cases[] = {KVCOBRA__REQUEST__BODY_RESERVE,
                                                       KVCOBRA__REQUEST__BODY_COMMIT};

    for (size_t k = 0; k < 2; k++) {
        struct stage s;
        Kvcobra__StatusReply *status;
        kvc_seq *seq = NULL;
        size_t n = 0;

        stage_begin(&s, 1, 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seq), 0);
        s.record.cuts = cases[k];
        CU_ASSERT_EQUAL(scene_publish(&s.m, seq, 1, 0, 64 * 4, 64 * 4, &n), 0);
        CU_ASSERT_EQUAL(n, 64 * 3);
        status = scene_status(&s.direct);
        CU_ASSERT_EQUAL(status->tenants[0]->pages, 1 + 3);
        CU_ASSERT_EQUAL(status->held_pages, 3);
        status = scene_status_free(status);
        stage_end(&s);
    }
}

/* A client that ends while fetches wait ends them too: no page stays held, no descriptor open. */
static void test_client_ends_during_fetches(void)
{
    kvc_fetch *fetches[2] = {NULL};
    kvc_seq *seqs[2] = {NULL};
    struct stage s;

    stage_begin(&s, 3, 0);
    for (size_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(s.m.model, NULL, 0, &seqs[i]), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(seqs[i], s.tokens, s.n_tokens, 1, &fetches[i]), 0);
    }
    stage_end(&s);
}

const struct test_case test_cases[] = {
    TEST(test_small_messages),
    TEST(test_small_messages_of_a_publisher),
    TEST(test_unusable_page_is_given_back),
    TEST(test_slot_was_written_again),
    TEST(test_session_is_lost_but_not_its_pages),
    TEST(test_connection_ends_during_a_match),
    TEST(test_connection_ends_during_a_commit),
    TEST(test_client_ends_during_fetches),
    TEST_END,
};
const char test_suite[] = "client_relay";
