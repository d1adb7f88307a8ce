/*
 * KVC_SEQ_REPEATABLE: attention of every token of a text, appended in different ways, against binary64 and
 * against each other.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/sequence/seq.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { TEXT = 330, LAYERS = 2 };

/*
 * Scores, weights and sums are binary32, and rows are read() alike: a few hundred terms of relative error
 * 2^-24 stay below 2^-16 of the output (embedded_nmse_max()), whatever kernel the machine has; squared. Two
 * runs have the same bits.
 */
static const double nmse_to_exact = 0x1p-32;

/* How a text is appended and attended. */
struct way {
    const char *name;
    uint32_t flags;
    size_t pieces[8]; /* lengths, repeated; 0: the end of the list */
    bool commits;     /* after every piece */
    size_t start;     /* tokens, in whole chunks, that are in codes before the first piece, like a match */
    unsigned threads;
    uint32_t window;
    bool rotated; /* keys and queries are after RoPE, with interleaved pairs */
};

static size_t width_of(const struct embedded *m)
{
    return (size_t) m->n_heads * geometry_group(&m->g) * m->g.d;
}

static kvc_seq *sequence_of(const struct embedded *m, uint32_t flags, bool rotated)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o),
                               .keys = rotated ? KVC_KEYS_AFTER_ROPE : KVC_KEYS_BEFORE_ROPE,
                               .pairs = rotated ? KVC_PAIRS_INTERLEAVED : KVC_PAIRS_HALF_SPLIT,
                               .flags = flags};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

static kvc_seq *sequence(const struct embedded *m, uint32_t flags)
{
    return sequence_of(m, flags, false);
}

/* Attention of the newest @n tokens, of text 0, into out [LAYERS, TEXT, width]. */
static void attend(const struct embedded *m, kvc_seq *s, size_t n, uint32_t window, float *out)
{
    const kvc_attend_options o = {.struct_bytes = sizeof(o), .window = window};
    size_t first = kvc_seq_length(s) - n, width = width_of(m);

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        float *q = embedded_queries(m, 0, layer, first, n);
        const kvc_attend_item item = {.struct_bytes = sizeof(item),
                                      .seq = s,
                                      .q = q,
                                      .n_q = n,
                                      .out = out + (layer * TEXT + first) * width};

        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend_batch(&item, 1, layer, &o), 0);
        free(q);
    }
}

/* A sequence whose first tokens are in codes and nothing else: what a match makes. */
static kvc_seq *started(const struct embedded *m, uint32_t flags, bool rotated, size_t n)
{
    kvc_seq *s = sequence_of(m, flags | KVC_SEQ_PUBLISH_ALL, rotated);
    uint32_t tokens[TEXT] = {0};

    if (n > 0) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, 0, n), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, n, NULL), 0);
    }
    s->flags = flags;
    return s;
}

/* Outputs [LAYERS, TEXT, width] of all tokens; those of w->start tokens stay 0. */
static float *run(const struct embedded *m, const struct way *w)
{
    float *out = calloc((size_t) LAYERS * TEXT * width_of(m), sizeof(*out));
    kvc_seq *s = started(m, w->flags, w->rotated, w->start);
    uint32_t tokens[TEXT] = {0};
    size_t piece = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m->client, w->threads ? w->threads : 1), 0);
    for (size_t at = w->start, n; at < TEXT; at += n) {
        if (w->pieces[piece] == 0)
            piece = 0;
        n = w->pieces[piece++];
        n = n < TEXT - at ? n : TEXT - at;
        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, at, n), 0);
        attend(m, s, n, w->window, out);
        if (w->commits)
            CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, at + n, NULL), 0);
    }
    kvc_seq_free(s);
    return out;
}

/* Vectors of a layer, all of them exact (as in the tail), or all but the sinks from codes. */
static float *vectors(const struct embedded *m, uint32_t layer, enum kvc_side side, bool coded)
{
    kvc_seq *s = started(m, 0, false, coded ? TEXT / 64 * 64 : 0);
    float *x;

    CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, kvc_seq_length(s), TEXT - kvc_seq_length(s)), 0);
    x = embedded_read(m, s, layer, side, TEXT);
    kvc_seq_free(s);
    return x;
}

/* Attention in binary64, one chunk of queries after the other: its own chunk exact, earlier ones decoded. */
static double *oracle(const struct embedded *m)
{
    size_t rows = (size_t) m->n_heads * m->g.d, width = width_of(m);
    double *want = malloc((size_t) LAYERS * TEXT * width * sizeof(*want));

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        float *exact[2], *kv[2];

        for (unsigned side = 0; side < 2; side++) {
            exact[side] = vectors(m, layer, side, false);
            kv[side] = vectors(m, layer, side, true);
        }
        for (size_t end = TEXT, first = (TEXT - 1) / 64 * 64;; end = first, first -= 64) {
            float *q = embedded_queries(m, 0, layer, first, end - first);
            double *out;

            for (unsigned side = 0; side < 2; side++)
                memcpy(kv[side] + first * rows, exact[side] + first * rows,
                       (end - first) * rows * sizeof(float));
            out = embedded_attention(m, kv[0], kv[1], q, first, end - first);
            memcpy(want + (layer * TEXT + first) * width, out, (end - first) * width * sizeof(*out));
            free(q);
            free(out);
            if (first == 0)
                break;
        }
        for (unsigned side = 0; side < 2; side++) {
            free(exact[side]);
            free(kv[side]);
        }
    }
    return want;
}

static double *widened(const float *x, size_t n)
{
    double *y = malloc(n * sizeof(*y));

    for (size_t i = 0; i < n; i++)
        y[i] = x[i];
    return y;
}

/* The largest error over layers of the tokens from @first on. */
static double worst(const struct embedded *m, const float *got, const double *want, size_t first)
{
    size_t width = width_of(m);
    double e = 0;

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        size_t at = (layer * TEXT + first) * width;
        double x = nmse(got + at, want + at, (TEXT - first) * width);

        e = x > e ? x : e;
    }
    return e;
}

#define BOTH (KVC_SEQ_REPEATABLE | KVC_SEQ_PUBLISH_ALL)

static const struct way ways[] = {
    {.name = "one append", .flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}},
    {.name = "one append, threads", .flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}, .threads = 3},
    {.name = "odd pieces", .flags = KVC_SEQ_REPEATABLE, .pieces = {3, 61, 65, 130, 1, 7}},
    {.name = "odd pieces, commits", .flags = KVC_SEQ_REPEATABLE, .pieces = {70, 1, 57, 63}, .commits = true},
    {.name = "whole chunks, published", .flags = BOTH, .pieces = {64}, .commits = true},
    {.name = "odd pieces, published", .flags = BOTH, .pieces = {5, 59, 100}, .commits = true},
    {.name = "token by token", .flags = KVC_SEQ_REPEATABLE, .pieces = {1}},
    {.name = "token by token, threads", .flags = KVC_SEQ_REPEATABLE, .pieces = {1}, .threads = 3},
    {.name = "token by token, published", .flags = BOTH, .pieces = {1}, .commits = true},
    {.name = "after 64 tokens", .flags = KVC_SEQ_REPEATABLE, .pieces = {40, 200}, .start = 64},
    {.name = "after 256 tokens", .flags = BOTH, .pieces = {TEXT}, .start = 256},
    {.name = "after 320 tokens", .flags = KVC_SEQ_REPEATABLE, .pieces = {1}, .start = 320},
};

static void run_shape(struct embedded m)
{
    double *want = oracle(&m), *first = NULL;

    for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        float *got = run(&m, &ways[i]);
        double e = worst(&m, got, want, ways[i].start),
               between = first ? worst(&m, got, first, ways[i].start) : 0;

        if (!(e <= nmse_to_exact && between == 0))
            printf("    %s: nmse %g to binary64, %g to one append\n", ways[i].name, e, between);
        CU_ASSERT(e <= nmse_to_exact);
        CU_ASSERT(between == 0);
        if (!first)
            first = widened(got, (size_t) LAYERS * TEXT * width_of(&m));
        free(got);
    }
    free(first);
    free(want);
    embedded_free(&m);
}

static void test_ways_to_append(void)
{
    run_shape(embedded_new(LAYERS, 6, 3, 64, 3, 0, 0));
    run_shape(embedded_new_predicting(LAYERS, 4, 2, 80, 2, 0, 0, PREDICT_LAYER));
    run_shape(embedded_new_predicting(LAYERS, 2, 1, 32, 2, 0, 0, PREDICT_NONE));
    run_shape(embedded_new(LAYERS, 8, 4, 64, 2.5, 1, 2));
}

/* Without the flag the queries of one append read all its keys exactly: outputs differ by the error of the
 * codes, here some 10^4 times what rounding explains. */
static void test_flag_matters(void)
{
    static const struct way one = {.pieces = {TEXT}}, many = {.pieces = {40}},
                            flagged = {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}};
    struct embedded m = embedded_new(LAYERS, 6, 3, 64, 3, 0, 0);
    float *a = run(&m, &one), *b = run(&m, &many), *c = run(&m, &flagged);
    double *want = widened(a, (size_t) LAYERS * TEXT * width_of(&m));

    CU_ASSERT(worst(&m, b, want, 0) > nmse_to_exact * 0x1p16);
    CU_ASSERT(worst(&m, c, want, 0) > nmse_to_exact * 0x1p16);
    free(a);
    free(b);
    free(c);
    free(want);
    embedded_free(&m);
}

static void test_windows(void)
{
    static const struct way in_windows[] = {
        {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}, .window = 70},
        {.flags = KVC_SEQ_REPEATABLE, .pieces = {13, 64, 99}, .window = 70, .threads = 2},
        {.flags = BOTH, .pieces = {1}, .window = 70, .commits = true},
        {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}, .window = 70, .start = 128},
    };
    static const struct way all = {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}};
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    float *first = run(&m, &in_windows[0]), *unlimited = run(&m, &all);
    double *want = widened(first, (size_t) LAYERS * TEXT * width_of(&m));

    CU_ASSERT(worst(&m, unlimited, want, 0) > 1e-3);
    for (unsigned i = 1; i < 4; i++) {
        float *got = run(&m, &in_windows[i]);

        CU_ASSERT_EQUAL(worst(&m, got, want, in_windows[i].start), 0);
        free(got);
    }
    free(first);
    free(unlimited);
    free(want);
    embedded_free(&m);
}

/* Rotations that are undone depend on positions alone, so the bits are the same here too. */
static void test_rotated_keys(void)
{
    static const struct way rotated[] = {
        {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}, .rotated = true},
        {.flags = KVC_SEQ_REPEATABLE, .pieces = {13, 64, 99}, .rotated = true, .threads = 2},
        {.flags = BOTH, .pieces = {1}, .rotated = true, .commits = true},
        {.flags = BOTH, .pieces = {TEXT}, .rotated = true, .start = 192},
    };
    static const struct way plain = {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}};
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    float *first = run(&m, &rotated[0]), *other = run(&m, &plain);
    double *want = widened(first, (size_t) LAYERS * TEXT * width_of(&m));

    CU_ASSERT(worst(&m, other, want, 0) > 1e-3);
    for (unsigned i = 1; i < 4; i++) {
        float *got = run(&m, &rotated[i]);

        CU_ASSERT_EQUAL(worst(&m, got, want, rotated[i].start), 0);
        free(got);
    }
    free(first);
    free(other);
    free(want);
    embedded_free(&m);
}

/* Several sequences in one call, with the flag and without: each as if it were alone. */
static void test_batch(void)
{
    enum { N = 3 };
    static const uint32_t flags[N] = {KVC_SEQ_REPEATABLE, 0, BOTH};
    static const size_t lengths[N] = {200, 130, 300}, n_new[N] = {130, 1, 2};
    struct embedded m = embedded_new(LAYERS, 6, 3, 64, 3, 0, 0);
    size_t width = width_of(&m);
    kvc_attend_item items[N];

    CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m.client, 3), 0);
    for (uint32_t i = 0; i < N; i++) {
        items[i] = (kvc_attend_item){.struct_bytes = sizeof(kvc_attend_item),
                                     .seq = sequence(&m, flags[i]),
                                     .q = embedded_queries(&m, i, 1, lengths[i], n_new[i]),
                                     .n_q = n_new[i],
                                     .out = malloc(n_new[i] * width * sizeof(float))};
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, items[i].seq, i, 0, lengths[i]), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, items[i].seq, i, lengths[i], n_new[i]), 0);
    }
    CU_ASSERT_EQUAL_FATAL(kvc_seq_attend_batch(items, N, 1, NULL), 0);
    for (uint32_t i = 0; i < N; i++) {
        float *alone = malloc(n_new[i] * width * sizeof(*alone));

        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(items[i].seq, 1, items[i].q, n_new[i], alone), 0);
        CU_ASSERT_EQUAL(memcmp(alone, items[i].out, n_new[i] * width * sizeof(*alone)), 0);
        free(alone);
        free((void *) items[i].q);
        free(items[i].out);
    }
    embedded_free(&m);
}

/* ---- what changes a sequence ---- */

/* Appends text 0 up to its end and attends; compares with a run that nothing interrupted. */
static bool goes_on_alike(const struct embedded *m, kvc_seq *s, size_t n_all)
{
    static const struct way whole = {.flags = KVC_SEQ_REPEATABLE, .pieces = {TEXT}};
    float *out = calloc((size_t) LAYERS * TEXT * width_of(m), sizeof(*out)), *want = run(m, &whole);
    double *wide = widened(want, (size_t) LAYERS * TEXT * width_of(m));
    size_t at = kvc_seq_length(s);
    bool alike;

    CU_ASSERT_EQUAL_FATAL(n_all, TEXT);
    CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, at, TEXT - at), 0);
    attend(m, s, TEXT - at, 0, out);
    alike = worst(m, out, wide, at) == 0;
    free(out);
    free(want);
    free(wide);
    return alike;
}

static void test_truncate(void)
{
    static const size_t cuts[][3] = {
        /* appended, cut to, kept: rows of full chunks stay until the next append */
        {330, 300, 300}, {330, 128, 128}, {330, 70, 70}, {200, 191, 191}, {200, 0, 0},
    };
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    size_t kept = 0;

    for (unsigned i = 0; i < sizeof(cuts) / sizeof(*cuts); i++) {
        kvc_seq *s = sequence(&m, KVC_SEQ_REPEATABLE);

        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, cuts[i][1]), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 1, cuts[i][1], cuts[i][0] - cuts[i][1]), 0);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s, cuts[i][1], &kept), 0);
        CU_ASSERT_EQUAL(kept, cuts[i][2]);
        CU_ASSERT_EQUAL(s->n_pages, kept / 64); /* codes of a chunk that was cut are gone */
        CU_ASSERT(goes_on_alike(&m, s, TEXT));
        kvc_seq_free(s);
    }
    embedded_free(&m);
}

/* A step that ends after its first layer; then a fork, with codes of chunks whose rows are in the tail. */
static void test_fork_after_a_cut_step(void)
{
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    kvc_seq *s = sequence(&m, KVC_SEQ_REPEATABLE), *fork = NULL;
    float *k = embedded_input(&m, 1, 0, KVC_K, 190, 70), *v = embedded_input(&m, 1, 0, KVC_V, 190, 70);
    kvc_usage u = {.struct_bytes = sizeof(u)};
    size_t kept = 0;

    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 190), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, k, v, 70), 0);
    CU_ASSERT_EQUAL(s->n_pages, 4);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 190, &kept), 0);
    CU_ASSERT(kept == 190 && s->n_pages == 2);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &fork), 0);
    CU_ASSERT(fork->n_pages == 2 && fork->pages[1] == s->pages[1]);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(fork, &u), 0);
    CU_ASSERT_EQUAL(u.header_bytes, 2 * 128);
    CU_ASSERT_EQUAL(u.tail_bytes, (190 - 64) * LAYERS * 2 * 64 * 2 * sizeof(uint16_t)); /* chunk 0 was due */
    CU_ASSERT(goes_on_alike(&m, s, TEXT));
    kvc_seq_free(s);
    CU_ASSERT(goes_on_alike(&m, fork, TEXT));
    free(k);
    free(v);
    embedded_free(&m);
}

/* Attention needs the exact rows of each query's chunk. */
static void test_queries_without_rows(void)
{
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    kvc_seq *s = sequence(&m, KVC_SEQ_REPEATABLE);
    float *q = embedded_queries(&m, 0, 0, 0, TEXT), *out = malloc(TEXT * width_of(&m) * sizeof(*out));
    uint32_t tokens[TEXT] = {0};

    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 300), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 300, out), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 300, 1), 0); /* drops the rows of chunks 0 to 2 */
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 301 - 192, out), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 301 - 191, out), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "back to token 191"));
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 301, 19), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 320, NULL), 0); /* and of chunk 3 */
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 65, out), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 64, out), 0);
    free(q);
    free(out);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_ways_to_append),
    TEST(test_flag_matters),
    TEST(test_windows),
    TEST(test_rotated_keys),
    TEST(test_batch),
    TEST(test_truncate),
    TEST(test_fork_after_a_cut_step),
    TEST(test_queries_without_rows),
    TEST_END,
};
const char test_suite[] = "repeatable";
