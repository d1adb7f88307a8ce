/*
 * KVC_SEQ_PUBLISH_ALL and repeated matches: one process publishes every full chunk, another finds all of
 * them, finds further ones as they are published, and does so over restarts of the daemon.
 * KVC_SEQ_REPEATABLE: a run that matched attends like the run that published.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const args[] = {
    "--pool-bytes=16M", "--extent-bytes=1M", "--span-bytes=256K",
    "--arena-bytes=8M", "--quota-bytes=64M", NULL,
};

/* Whole chunks: 1472 of 1500 tokens, 1792 of 1800. */
enum { PROMPT = 1500, WHOLE = 1472, LONGER = 1800, LONGER_WHOLE = 1792 };

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

static kvc_seq *sequence_with(const struct embedded *m, uint32_t flags)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = flags};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

static kvc_seq *sequence(const struct embedded *m)
{
    return sequence_with(m, KVC_SEQ_PUBLISH_ALL);
}

/* Matches the first @n tokens of text 0 with token @changed (SIZE_MAX: none) changed.
 * Return: the sequence's new length; an error. */
static ssize_t match(kvc_seq *s, size_t n, size_t changed)
{
    uint32_t *tokens = scene_tokens(0, n);
    size_t found = 0;
    int r;

    if (changed < n)
        tokens[changed] ^= 1;
    r = kvc_seq_match(s, tokens, n, &found);
    free(tokens);
    CU_ASSERT(r < 0 || found == kvc_seq_length(s));
    return r < 0 ? r : (ssize_t) found;
}

/* Whether @s, of text 0, has the codes of the first @n_coded tokens and the exact ones of the others. */
static bool reads_like_private(const struct scene *sc, const struct embedded *m, kvc_seq *s, size_t n_coded)
{
    struct embedded alone = scene_private(sc);
    size_t n = kvc_seq_length(s), bytes = n * m->n_heads * m->g.d * sizeof(float);
    uint32_t *tokens = scene_tokens(0, n);
    kvc_seq *want = sequence(&alone);
    bool same = true;

    CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, 0, 0, n_coded), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(want, tokens, n_coded, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, 0, n_coded, n - n_coded), 0);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *a = embedded_read(m, s, layer, side, n), *b = embedded_read(&alone, want, layer, side, n);

            same &= memcmp(a, b, bytes) == 0;
            free(a);
            free(b);
        }
    free(tokens);
    embedded_free(&alone);
    return same;
}

/* ---- two processes ---- */

/* Publishes the prompt, then more of the text when the parent asks for it. */
static bool publisher(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = scene_client(sc);
    kvc_seq *s = sequence(&m);
    size_t published = 0;
    float *out;

    if (!pipe_wait(from_parent))
        return false;
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s, 0, 0, PROMPT, PROMPT, &published), 0);
    CU_ASSERT_EQUAL(published, WHOLE);
    pipe_signal(to_parent);
    if (!pipe_wait(from_parent))
        return false;
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s, 0, PROMPT, LONGER - PROMPT, 100, &published), 0);
    CU_ASSERT_EQUAL(published, LONGER_WHOLE);
    out = scene_attend(&m, s, 0);
    pipe_send(to_parent, out, scene_attend_floats(&m) * sizeof(*out));
    free(out);
    (void) pipe_wait(from_parent);
    embedded_free(&m);
    return true;
}

static void test_two_processes(void)
{
    struct scene sc;
    struct child a;
    struct embedded m;
    kvc_seq *s;
    float *want, *got;
    size_t bytes;

    scene_start(&sc, small(), 3, 1, args);
    a = child_start(publisher, &sc);
    m = scene_client(&sc);
    bytes = scene_attend_floats(&m) * sizeof(float);
    want = malloc(bytes);
    s = sequence(&m);
    CU_ASSERT_EQUAL(match(s, PROMPT, SIZE_MAX), 0); /* the publisher waits */
    pipe_signal(a.to);
    CU_ASSERT_FATAL(pipe_wait(a.from));
    CU_ASSERT_EQUAL(match(s, 200, SIZE_MAX), 192);
    CU_ASSERT_EQUAL(match(s, PROMPT, SIZE_MAX), WHOLE);
    CU_ASSERT_EQUAL(match(s, LONGER, SIZE_MAX), WHOLE);
    CU_ASSERT(reads_like_private(&sc, &m, s, WHOLE));
    pipe_signal(a.to);
    pipe_receive(a.from, want, bytes);
    CU_ASSERT_EQUAL(match(s, LONGER, SIZE_MAX), LONGER_WHOLE);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, LONGER_WHOLE, LONGER - LONGER_WHOLE), 0);
    got = scene_attend(&m, s, 0);
    CU_ASSERT_EQUAL(memcmp(got, want, bytes), 0); /* the same codes and the same exact tail: the same bits */
    free(want);
    free(got);
    pipe_signal(a.to);
    CU_ASSERT(child_end(&a));
    CU_ASSERT(reads_like_private(&sc, &m, s, LONGER_WHOLE)); /* the publisher has ended, its pages stay */
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- which sequences match again ---- */

static void test_match_again(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *writer, *s, *fork = NULL;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    writer = sequence(&m);
    s = sequence(&m);
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, writer, 0, 0, 640, 640, &n), 0);
    CU_ASSERT_EQUAL(n, 640);                                /* whole chunks only: all of them */
    CU_ASSERT_EQUAL(match(writer, 700, SIZE_MAX), -EINVAL); /* its tokens were appended, not matched */
    CU_ASSERT_EQUAL(match(s, 640, SIZE_MAX), 576);          /* leaves one token to compute */
    CU_ASSERT_EQUAL(match(s, 641, 100), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "tokens 64 to 127 differ"));
    CU_ASSERT_EQUAL(match(s, 500, SIZE_MAX), -EINVAL); /* shorter than what it holds */
    CU_ASSERT_EQUAL(match(s, 641, 600), 576);          /* the next chunk is another text's */
    CU_ASSERT_EQUAL(match(s, 576, SIZE_MAX), 576);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &fork), 0);
    CU_ASSERT_EQUAL(match(s, 641, SIZE_MAX), 640);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 640, 3), 0);
    CU_ASSERT_EQUAL(match(s, 700, SIZE_MAX), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 640, &n), 0); /* only matched chunks are left */
    CU_ASSERT_EQUAL(match(s, 700, SIZE_MAX), 640);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 200, &n), 0);
    CU_ASSERT_EQUAL(n, 192);
    CU_ASSERT_EQUAL(match(s, 641, SIZE_MAX), 640);
    CU_ASSERT_EQUAL(match(fork, 641, SIZE_MAX), 640);
    CU_ASSERT(reads_like_private(&sc, &m, s, 640) && reads_like_private(&sc, &m, fork, 640));
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 0, &n), 0);
    CU_ASSERT_EQUAL(match(s, 641, 600), 576); /* empty: any text */
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- the arena ---- */

/* An append claims the pages of all chunks that it fills. If they do not fit, nothing has changed. */
static void test_arena_full(void)
{
    static const char *const small_arena[] = {
        "--pool-bytes=16M", "--extent-bytes=1M", "--span-bytes=256K",
        "--arena-bytes=1M", "--quota-bytes=64M", NULL,
    };
    static const uint32_t flags[] = {KVC_SEQ_PUBLISH_ALL, KVC_SEQ_REPEATABLE,
                                     KVC_SEQ_REPEATABLE | KVC_SEQ_PUBLISH_ALL};
    enum { N = 6400 };
    struct scene sc;
    struct embedded m;

    scene_start(&sc, small(), 3, 1, small_arena);
    m = scene_client(&sc);
    for (unsigned i = 0; i < 3; i++) {
        kvc_seq *s = sequence_with(&m, flags[i]);
        kvc_usage u = {.struct_bytes = sizeof(u)};
        size_t n = 0;

        CU_ASSERT_EQUAL(embedded_append(&m, s, i, 0, N), -ENOSPC);
        CU_ASSERT_EQUAL(kvc_seq_length(s), 0);
        CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
        CU_ASSERT_EQUAL(u.padding_bytes + u.code_bytes, 0);
        CU_ASSERT_EQUAL(scene_publish(&m, s, i, 0, N, 1000, &n), 0);
        CU_ASSERT_EQUAL(n, flags[i] & KVC_SEQ_PUBLISH_ALL ? N : N - 64);
        kvc_seq_free(s);
    }
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- repeatable attention ---- */

/* Attention of tokens first .. of text 0 in layer 1: [length - first, query heads, d]. */
static float *attend_from(const struct embedded *m, kvc_seq *s, size_t first)
{
    size_t n = kvc_seq_length(s) - first, width = (size_t) m->g.n_heads * m->g.d;
    float *q = embedded_queries(m, 0, 1, first, n), *out = malloc(n * width * sizeof(*out));

    CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(s, 1, q, n, out), 0);
    free(q);
    return out;
}

/* The chunks of sequences with the flag have other keys: their vectors come from other attention. */
static void check_kinds(const struct embedded *m)
{
    static const uint32_t flags[] = {0, KVC_SEQ_PUBLISH_ALL, KVC_SEQ_REPEATABLE,
                                     KVC_SEQ_REPEATABLE | KVC_SEQ_PUBLISH_ALL};
    uint32_t *tokens = scene_tokens(0, PROMPT);

    for (unsigned i = 0; i < 4; i++) {
        const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = flags[i]};
        kvc_seq *s = sequence_with(m, flags[i]);
        size_t n = 1;

        CU_ASSERT_EQUAL(match(s, PROMPT, SIZE_MAX), i < 2 ? 0 : WHOLE);
        CU_ASSERT_EQUAL(kvc_model_peek(m->model, &o, tokens, PROMPT, &n), 0);
        CU_ASSERT_EQUAL(n, i < 2 ? 0 : WHOLE);
        kvc_seq_free(s);
    }
    free(tokens);
}

static void test_repeatable(void)
{
    static const size_t found[] = {64, 704, WHOLE};
    const uint32_t flags = KVC_SEQ_REPEATABLE | KVC_SEQ_PUBLISH_ALL;
    struct scene sc;
    struct embedded m, other;
    size_t width, n = 0;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *cold;
    float *want;

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    other = scene_client(&sc);
    width = (size_t) m.g.n_heads * m.g.d;
    cold = sequence_with(&m, flags);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, cold, 0, 0, PROMPT), 0);
    want = attend_from(&m, cold, 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(cold, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, WHOLE);
    check_kinds(&other);
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(other.client, 2), 0);
    for (unsigned i = 0; i < 3; i++) {
        kvc_seq *hit = sequence_with(&other, flags);
        float *got;

        CU_ASSERT_EQUAL(match(hit, found[i] + 1, SIZE_MAX), (ssize_t) found[i]);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&other, hit, 0, found[i], PROMPT - found[i]), 0);
        got = attend_from(&other, hit, found[i]);
        CU_ASSERT_EQUAL(memcmp(got, want + found[i] * width, (PROMPT - found[i]) * width * sizeof(*got)), 0);
        free(got);
        kvc_seq_free(hit);
    }
    free(want);
    free(tokens);
    embedded_free(&m);
    embedded_free(&other);
    scene_end(&sc);
}

/* ---- restarts ---- */

/* A sequence that matched 640 tokens, and a restart after which the writer publishes up to 1280. */
static void one_restart(bool store_lost)
{
    struct scene sc;
    struct embedded m, other;
    kvc_seq *writer, *s;
    size_t n = 0;

    supervisor_begin(args);
    scene_attach(&sc, &raw_daemon, small(), 3, 1);
    m = scene_client(&sc);
    other = scene_client(&sc);
    writer = sequence(&m);
    s = sequence(&other);
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, writer, 0, 0, 650, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 640);
    CU_ASSERT_EQUAL(match(s, 700, SIZE_MAX), 640);
    supervisor_kill();
    if (store_lost)
        supervisor_lose("kvc-");
    CU_ASSERT_EQUAL(embedded_append(&m, writer, 0, 650, 640), 0); /* without a daemon */
    CU_ASSERT_EQUAL(match(s, 1300, SIZE_MAX), 640);
    CU_ASSERT_EQUAL(match(s, 1300, 100), -EINVAL);
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    scene_reconnect(m.client, sc.daemon.socket);
    scene_reconnect(other.client, sc.daemon.socket);
    CU_ASSERT_EQUAL(match(s, 1300, SIZE_MAX), 640);
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, writer, 0, 1290, 10, 10, &n), 0);
    CU_ASSERT_EQUAL(n, 1280);
    CU_ASSERT_EQUAL(match(s, 1300, 700), 640);
    CU_ASSERT_EQUAL(match(s, 1300, SIZE_MAX), 1280);
    CU_ASSERT_EQUAL(match(s, 1300, 100), -EINVAL);
    CU_ASSERT_EQUAL(embedded_append(&other, s, 0, 1280, 20), 0);
    CU_ASSERT(reads_like_private(&sc, &other, s, 1280));
    embedded_free(&m);
    embedded_free(&other);
    scene_detach(&sc);
    supervisor_finish();
}

static void test_restart(void)
{
    one_restart(false);
    one_restart(true);
}

const struct test_case test_cases[] = {
    TEST(test_two_processes), TEST(test_match_again), TEST(test_arena_full),
    TEST(test_repeatable),    TEST(test_restart),     TEST_END,
};
const char test_suite[] = "client_publish_all";
