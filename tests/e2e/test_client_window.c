/*
 * Matches of layers that attend to a window: pages before it need not exist, a hole gives a shorter match,
 * and what such a match found is read, continued, published and forked as any other. Flushes make the holes.
 * Pages of slower tiers are in test_client_prefetch.c.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-tiers.h"
#include "tests/e2e/prompts_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum {
    CHUNKS = SHARED / 64,
    WINDOW = 128,
    FIRST = SHARED / 64 - 2, /* the chunk of position SHARED + 1 - WINDOW */
    NEW = 3 * 64 + 10,       /* tokens behind a match */
};

static const uint32_t windows[] = {1, 64, 65, 66, WINDOW, 200, 1000, 4096, 0};

static kvc_seq *new_seq(const struct embedded *m, uint32_t window)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .window = window};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

static size_t match(kvc_seq *s, const uint32_t *tokens, size_t n)
{
    size_t found = 12345;

    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, n + 1, &found), 0);
    CU_ASSERT_EQUAL(kvc_seq_length(s), found);
    return found;
}

static kvc_seq *matched(const struct embedded *m, const uint32_t *tokens, uint32_t window, size_t want)
{
    kvc_seq *s = new_seq(m, window);

    CU_ASSERT_EQUAL(match(s, tokens, SHARED), want);
    return s;
}

static size_t peek(const struct embedded *m, const uint32_t *tokens, uint32_t window)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .window = window};
    size_t memory = 1, all = 2;

    CU_ASSERT_EQUAL(kvc_model_peek_tiers(m->model, &o, tokens, SHARED, &memory, &all), 0);
    CU_ASSERT_EQUAL(memory, all);
    CU_ASSERT_EQUAL(kvc_model_peek(m->model, &o, tokens, SHARED, &memory), 0);
    CU_ASSERT_EQUAL(memory, all);
    return memory;
}

/* Chunks @first .. @end - 1 of text 0 go. */
static void drop(struct prompts *f, size_t first, size_t end)
{
    Kvcobra__Prefix o = prompts_prefix(f, NULL);

    CU_ASSERT_EQUAL(operator_flush(f->sc.control, &o, f->tokens, end * 64, (end - first) * 64, NULL, NULL),
                    0);
}

/* ---- what is read ---- */

static bool reads_alike(const struct embedded *m, kvc_seq *a, kvc_seq *b, size_t first, size_t n)
{
    size_t width = m->g.n_kv_heads * m->g.d;
    float *x = calloc(n, width * sizeof(*x)), *y = calloc(n, width * sizeof(*y));
    bool same = true;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (int side = KVC_K; side <= KVC_V; side++) {
            CU_ASSERT_EQUAL(kvc_seq_read(a, layer, (enum kvc_side) side, first, n, x), 0);
            CU_ASSERT_EQUAL(kvc_seq_read(b, layer, (enum kvc_side) side, first, n, y), 0);
            same &= memcmp(x, y, n * width * sizeof(*x)) == 0;
        }
    free(x);
    free(y);
    return same;
}

static int attend(const struct embedded *m, kvc_seq *s, size_t n_q, uint32_t window, float *out)
{
    float *q = embedded_queries(m, 0, 1, kvc_seq_length(s) - n_q, n_q);
    const kvc_attend_item item = {.struct_bytes = sizeof(item), .seq = s, .q = q, .n_q = n_q, .out = out};
    const kvc_attend_options o = {.struct_bytes = sizeof(o), .window = window};
    int r = kvc_seq_attend_batch(&item, 1, 1, &o);

    free(q);
    return r;
}

/* Whether the newest @n_q tokens of both attend alike, bit for bit. */
static bool attend_alike(const struct embedded *m, kvc_seq *a, kvc_seq *b, size_t n_q)
{
    size_t n = n_q * m->g.n_heads * m->g.d;
    float *x = calloc(n, sizeof(*x)), *y = calloc(n, sizeof(*y));
    bool same;

    CU_ASSERT_EQUAL(attend(m, a, n_q, WINDOW, x), 0);
    CU_ASSERT_EQUAL(attend(m, b, n_q, WINDOW, y), 0);
    same = memcmp(x, y, n * sizeof(*x)) == 0;
    free(x);
    free(y);
    return same;
}

/* @e: what follows "-EINVAL" in a refusal. */
static void check_refused(const struct embedded *m, int r)
{
    CU_ASSERT_EQUAL(r, -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), "has no tokens before 1152"));
}

/* A client whose first 15 chunks are gone: reads, attends and continues as one that has all of them. */
static void test_early_pages_are_not_needed(void)
{
    struct prompts f;
    struct embedded other;
    kvc_seq *want, *got, *fork = NULL;
    float *out;
    size_t published = 0;

    prompts_begin(&f);
    other = scene_client(&f.sc);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    want = matched(&f.m, f.tokens, 0, SHARED);
    drop(&f, 0, 15);
    kvc_seq_free(matched(&other, f.tokens, 0, 0));
    got = matched(&other, f.tokens, WINDOW, SHARED);
    out = calloc(SHARED, f.m.g.n_heads * f.m.g.d * sizeof(*out));
    CU_ASSERT(reads_alike(&f.m, want, got, FIRST * 64, SHARED - FIRST * 64));
    check_refused(&other, kvc_seq_read(got, 0, KVC_K, FIRST * 64 - 1, 2, out));
    CU_ASSERT_EQUAL(kvc_seq_read(got, 0, KVC_K, 0, 0, out), 0);

    CU_ASSERT_EQUAL(embedded_append(&f.m, want, 0, SHARED, 1), 0);
    CU_ASSERT_EQUAL(embedded_append(&other, got, 0, SHARED, 1), 0);
    CU_ASSERT(attend_alike(&f.m, want, got, 1));
    CU_ASSERT_EQUAL(embedded_append(&f.m, want, 0, SHARED + 1, NEW - 1), 0);
    CU_ASSERT_EQUAL(embedded_append(&other, got, 0, SHARED + 1, NEW - 1), 0);
    CU_ASSERT(attend_alike(&f.m, want, got, 1));
    CU_ASSERT(attend_alike(&f.m, want, got, NEW));
    check_refused(&other, attend(&other, got, 1, 0, out)); /* all positions */
    check_refused(&other, attend(&other, got, NEW, WINDOW + 2, out));
    CU_ASSERT_EQUAL(attend(&other, got, NEW, WINDOW + 1, out), 0); /* position 1152 is the first one */

    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(got, &fork), 0);
    CU_ASSERT(attend_alike(&f.m, fork, want, NEW));
    check_refused(&other, kvc_seq_read(fork, 0, KVC_K, 0, 1, out));

    /* the next one finds what was published behind the match */
    CU_ASSERT_EQUAL(kvc_seq_commit(got, f.tokens, TOKENS, &published), 0);
    CU_ASSERT_EQUAL(published, TOKENS);
    kvc_seq_free(got);
    CU_ASSERT_EQUAL(kvc_seq_commit(want, f.tokens, TOKENS, &published),
                    0); /* its newest chunk has codes, too */
    got = new_seq(&f.m, WINDOW);
    CU_ASSERT_EQUAL(match(got, f.tokens, TOKENS), TOKENS);
    CU_ASSERT(reads_alike(&f.m, want, got, TOKENS - WINDOW, WINDOW));
    free(out);
    kvc_seq_free(got);
    kvc_seq_free(fork);
    kvc_seq_free(want);
    embedded_free(&other);
    prompts_finish(&f);
}

/* ---- holes ---- */

/* The longest text of which every seen position is there, by its definition. */
static size_t longest(const bool has[CHUNKS], uint32_t window)
{
    for (size_t n = CHUNKS; n > 0; n--) {
        bool whole = true;

        for (size_t p = 0; p < n * 64; p++)
            whole &= has[p / 64] || (window > 0 && p + window <= n * 64);
        if (whole)
            return n * 64;
    }
    return 0;
}

static size_t fetch(const struct embedded *m, const uint32_t *tokens, uint32_t window)
{
    kvc_seq *s = new_seq(m, window);
    kvc_fetch *f = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(s, tokens, SHARED, 0, &f), 0);
    for (;;) {
        struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};
        int r;

        CU_ASSERT(poll(&p, 1, -1) == 1);
        r = kvc_fetch_result(f, &n);
        if (r == -EINPROGRESS)
            continue;

        CU_ASSERT_EQUAL(r, 0);
        break;
    }
    kvc_fetch_free(f);
    CU_ASSERT_EQUAL(kvc_seq_length(s), n);
    kvc_seq_free(s);
    return n;
}

static void test_holes(void)
{
    static const size_t holes[] = {0, 9, 19, 15, 17, 10, 3, 18, 1, 2};
    bool has[CHUNKS];
    struct prompts f;
    struct embedded other;

    prompts_begin(&f);
    other = scene_client(&f.sc);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    memset(has, true, sizeof(has));
    for (size_t i = 0; i < sizeof(holes) / sizeof(*holes); i++) {
        drop(&f, holes[i], holes[i] + 1);
        has[holes[i]] = false;
        for (size_t w = 0; w < sizeof(windows) / sizeof(*windows); w++) {
            size_t want = longest(has, windows[w]);

            CU_ASSERT_EQUAL(peek(&other, f.tokens, windows[w]), want);
            CU_ASSERT_EQUAL(fetch(&other, f.tokens, windows[w]), want);
            kvc_seq_free(matched(&other, f.tokens, windows[w], want));
        }
    }
    embedded_free(&other);
    prompts_finish(&f);
}

/* A second match goes on from the first one, with or without chunks of its window. */
static void test_further_match(void)
{
    struct prompts f;
    kvc_seq *s, *want;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    want = matched(&f.m, f.tokens, 0, SHARED);
    drop(&f, 0, 7);
    s = new_seq(&f.m, WINDOW);
    CU_ASSERT_EQUAL(match(s, f.tokens, 9 * 64), 9 * 64);
    CU_ASSERT_EQUAL(match(s, f.tokens, 10 * 64), 10 * 64);
    CU_ASSERT(reads_alike(&f.m, s, want, 7 * 64, 3 * 64)); /* chunk 7 is of the first one */
    drop(&f, 11, 12);
    CU_ASSERT_EQUAL(match(s, f.tokens, 12 * 64), 11 * 64);
    CU_ASSERT_EQUAL(match(s, f.tokens, SHARED), SHARED);
    CU_ASSERT(reads_alike(&f.m, s, want, FIRST * 64, WINDOW));
    kvc_seq_free(s);
    kvc_seq_free(want);
    prompts_finish(&f);
}

/* ---- the sequence ---- */

static size_t truncated(kvc_seq *s, size_t n)
{
    size_t kept = 77;

    CU_ASSERT_EQUAL(kvc_seq_truncate(s, n, &kept), 0);
    CU_ASSERT_EQUAL(kvc_seq_length(s), kept);
    return kept;
}

/* What is left always has the window before its end, or is empty. */
static void test_truncate(void)
{
    struct prompts f;
    kvc_seq *s;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    s = matched(&f.m, f.tokens, WINDOW, SHARED);
    CU_ASSERT_EQUAL(embedded_append(&f.m, s, 0, SHARED, 40), 0);
    CU_ASSERT_EQUAL(truncated(s, SHARED + 30), SHARED + 30);
    CU_ASSERT_EQUAL(truncated(s, SHARED), SHARED);
    CU_ASSERT_EQUAL(truncated(s, SHARED - 1), 0);
    CU_ASSERT_EQUAL(match(s, f.tokens, SHARED), SHARED);
    CU_ASSERT_EQUAL(truncated(s, 0), 0);
    CU_ASSERT_EQUAL(embedded_append(&f.m, s, 0, 0, 200), 0); /* computed: from here on all is there */
    CU_ASSERT_EQUAL(truncated(s, 130), 130);
    kvc_seq_free(s);
    prompts_finish(&f);
}

static void test_usage_and_export(void)
{
    kvc_usage u = {.struct_bytes = sizeof(u)}, all = {.struct_bytes = sizeof(all)};
    struct prompts f;
    kvc_seq *s, *want;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    want = matched(&f.m, f.tokens, 0, SHARED);
    s = matched(&f.m, f.tokens, WINDOW, SHARED);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(want, &all), 0);
    CU_ASSERT_EQUAL(u.tokens, SHARED);
    CU_ASSERT_EQUAL(u.numbers * CHUNKS, all.numbers * 2);
    CU_ASSERT_EQUAL(u.code_bytes * CHUNKS, all.code_bytes * 2);
    CU_ASSERT_EQUAL(u.header_bytes * CHUNKS, all.header_bytes * 2);
    CU_ASSERT(u.sink_bytes == 0 && all.sink_bytes > 0);
    CU_ASSERT_EQUAL(u.shared_bytes, u.code_bytes + u.header_bytes + u.padding_bytes);
    check_refused(&f.m, kvc_seq_export(s, -1, NULL));
    kvc_seq_free(s);
    kvc_seq_free(want);
    prompts_finish(&f);
}

static bool only_window_is_leased(const Kvcobra__StatusReply *s)
{
    return s->held_pages == WINDOW / 64 && s->tenants[0]->hits == WINDOW / 64 && s->tenants[0]->misses == 0;
}

/* Only the chunks of the window are leased, and only they count as found. */
static void test_leases(void)
{
    struct prompts f;
    kvc_seq *s;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    s = matched(&f.m, f.tokens, WINDOW, SHARED);
    CU_ASSERT(scene_wait(&f.sc, only_window_is_leased));
    kvc_seq_free(s);
    prompts_finish(&f);
}

/* Pages that no window reads leave by age; those that windows read stay longer, without their ancestors. */
static void test_eviction(void)
{
    static const char *const args[] = {"--pool-bytes=1M",    "--extent-bytes=256K", "--span-bytes=64K",
                                       "--arena-bytes=512K", "--quota-bytes=64M",   NULL};
    struct scene sc;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, TOKENS);
    size_t all = SHARED;

    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1, args);
    m = scene_client(&sc);
    for (uint32_t text = 0; text < 12; text++) {
        kvc_seq *s = new_seq(&m, WINDOW);
        size_t n = 0;

        CU_ASSERT_EQUAL(scene_publish(&m, s, text, 0, TOKENS, 5 * 64, &n), 0);
        CU_ASSERT_EQUAL(n, SHARED);
        kvc_seq_free(s);
        kvc_seq_free(matched(&m, tokens, WINDOW, SHARED)); /* a conversation that goes on meanwhile */
        all = peek(&m, tokens, 0);
    }
    CU_ASSERT_EQUAL(all, 0);
    embedded_free(&m);
    free(tokens);
    scene_end(&sc);
}

/* ---- a restart ---- */

static void test_restart(void)
{
    struct prompts f;
    kvc_seq *want, *s;
    size_t published = 0;

    prompts_begin(&f);
    want = prompts_publish(&f.m, f.tokens, NULL, 0);
    drop(&f, 0, 15);
    s = matched(&f.m, f.tokens, WINDOW, SHARED);
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(f.sc.control, f.sc.daemon.operator_socket);
    scene_reconnect(f.m.client, f.sc.daemon.socket);
    CU_ASSERT(reads_alike(&f.m, want, s, FIRST * 64, SHARED - FIRST * 64));
    CU_ASSERT_EQUAL(peek(&f.m, f.tokens, 0), 0);
    kvc_seq_free(matched(&f.m, f.tokens, WINDOW, SHARED));
    CU_ASSERT_EQUAL(embedded_append(&f.m, s, 0, SHARED, 2 * 64), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, f.tokens, TOKENS, &published), 0);
    CU_ASSERT_EQUAL(published, TOKENS);
    kvc_seq_free(s);
    kvc_seq_free(want);
    prompts_finish(&f);
}

const char test_suite[] = "client_window";
const struct test_case test_cases[] = {
    TEST(test_early_pages_are_not_needed),
    TEST(test_holes),
    TEST(test_further_match),
    TEST(test_truncate),
    TEST(test_usage_and_export),
    TEST(test_leases),
    TEST(test_eviction),
    TEST(test_restart),
    TEST_END,
};
