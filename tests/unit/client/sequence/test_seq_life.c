/* Truncate and fork: rows that stay exact, pages that are shared, changes that stay independent. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

static struct embedded small(void)
{
    return embedded_new(2, 4, 2, 32, 3, 0, 0);
}

static bool same_contents(const struct embedded *m, kvc_seq *a, kvc_seq *b)
{
    size_t n = kvc_seq_length(a);
    bool same = n == kvc_seq_length(b);

    for (uint32_t layer = 0; same && layer < m->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *x = embedded_read(m, a, layer, side, n), *y = embedded_read(m, b, layer, side, n);

            same &= memcmp(x, y, n * m->n_heads * m->g.d * sizeof(*x)) == 0;
            free(x);
            free(y);
        }
    return same;
}

/* Positions [0, n) of two sequences of any length. */
static bool same_prefix(const struct embedded *m, kvc_seq *a, kvc_seq *b, size_t n)
{
    bool same = true;

    for (unsigned side = 0; side < 2; side++) {
        float *x = embedded_read(m, a, 1, side, n), *y = embedded_read(m, b, 1, side, n);

        same &= memcmp(x, y, n * m->n_heads * m->g.d * sizeof(*x)) == 0;
        free(x);
        free(y);
    }
    return same;
}

static kvc_seq *sequence(const struct embedded *m, uint32_t text, size_t n)
{
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    for (size_t at = 0; at < n; at++)
        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, text, at, 1), 0);
    return s;
}

static void test_truncate_in_tail_is_exact(void)
{
    struct embedded m = small();
    kvc_seq *s = sequence(&m, 0, 250), *want = sequence(&m, 0, 200);
    size_t kept = 0;

    /* 250 tokens: chunks 0 and 1 are packed (64 * 3 <= 250 < 64 * 4), the tail starts at 128 */
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 200, &kept), 0);
    CU_ASSERT_EQUAL(kept, 200);
    CU_ASSERT(same_contents(&m, s, want));
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 200, 1), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, want, 0, 200, 1), 0);
    CU_ASSERT(same_contents(&m, s, want));
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 128, &kept), 0);
    CU_ASSERT_EQUAL(kept, 128);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 1000, &kept), 0); /* longer than the sequence: no change */
    CU_ASSERT_EQUAL(kept, 128);
    embedded_free(&m);
}

static void test_truncate_below_the_tail(void)
{
    struct embedded m = small();
    kvc_seq *whole = sequence(&m, 0, 330);
    static const size_t cuts[][2] = {{255, 192}, {192, 192}, {191, 128}, {70, 64}, {63, 0}, {0, 0}};

    for (unsigned i = 0; i < 6; i++) {
        kvc_seq *s = NULL;
        size_t kept = 77;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(whole, &s), 0);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s, cuts[i][0], &kept), 0);
        CU_ASSERT_EQUAL(kept, cuts[i][1]);
        CU_ASSERT_EQUAL(kvc_seq_length(s), kept);
        if (kept > 0)
            CU_ASSERT(same_prefix(&m, s, whole, kept)); /* codes stay codes */
        /* another ending */
        for (size_t at = kept; at < 330; at++)
            CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 1, at, 1), 0);
        if (kept > 0)
            CU_ASSERT(same_prefix(&m, s, whole, kept));
        kvc_seq_free(s);
    }
    embedded_free(&m);
}

/* A step that fails half-way: truncate brings the layers to one length again. */
static void test_truncate_inside_a_step(void)
{
    struct embedded m = small();
    kvc_seq *s = sequence(&m, 0, 191), *want = sequence(&m, 0, 191), *t = NULL;
    float *k = embedded_input(&m, 1, 0, KVC_K, 191, 3);
    size_t kept = 0;

    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, k, k, 3), 0); /* packs chunk 1 in layer 0 only */
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &t), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, 191, &kept), 0);
    CU_ASSERT_EQUAL(kept, 191);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &t), 0); /* packs the same chunks in all layers */
    for (size_t at = 191; at < 260; at++) {
        CU_ASSERT_EQUAL(embedded_append(&m, s, 0, at, 1), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, t, 0, at, 1), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, want, 0, at, 1), 0);
    }
    CU_ASSERT(same_contents(&m, s, want));
    CU_ASSERT(same_contents(&m, t, want));
    free(k);
    embedded_free(&m);
}

static void test_forks_are_independent(void)
{
    struct embedded m = small();
    kvc_seq *a = sequence(&m, 0, 300), *b = NULL, *want_a = sequence(&m, 0, 300),
            *want_b = sequence(&m, 0, 300);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(a, &b), 0);
    CU_ASSERT(same_contents(&m, a, b));
    for (size_t at = 300; at < 460; at++) {
        CU_ASSERT_EQUAL(embedded_append(&m, a, 0, at, 1), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, want_a, 0, at, 1), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, b, 1, at, 1), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, want_b, 1, at, 1), 0);
    }
    CU_ASSERT(same_contents(&m, a, want_a));
    CU_ASSERT(same_contents(&m, b, want_b));
    kvc_seq_free(a);
    CU_ASSERT(same_contents(&m, b, want_b)); /* shared pages outlive the sequence that packed them */
    embedded_free(&m);
}

/* A fork after a long append, whose pages are claimed but not written. */
static void test_fork_after_a_piece(void)
{
    struct embedded m = small();
    kvc_seq *a = NULL, *b = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &a), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, a, 0, 0, 500), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(a, &b), 0);
    for (size_t at = 500; at < 520; at++) {
        CU_ASSERT_EQUAL(embedded_append(&m, a, 0, at, 1), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, b, 0, at, 1), 0);
    }
    CU_ASSERT(same_contents(&m, a, b));
    embedded_free(&m);
}

/* A commit without a daemon publishes nothing, but packs due chunks. */
static void test_commit_embedded(void)
{
    struct embedded m = small();
    kvc_seq *s = NULL;
    uint32_t tokens[500] = {0};
    kvc_usage u = {.struct_bytes = sizeof(u)};
    size_t published = 7;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 500), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 500, &published), 0);
    CU_ASSERT_EQUAL(published, 0);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT_EQUAL(u.header_bytes, 6 * 128); /* 64 (c + 2) <= 500 */
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, 500, &published), -EINVAL);
    kvc_seq_free(s);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, 500, &published), 0);
    CU_ASSERT_EQUAL(published, 0);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_truncate_in_tail_is_exact),
    TEST(test_truncate_below_the_tail),
    TEST(test_truncate_inside_a_step),
    TEST(test_forks_are_independent),
    TEST(test_fork_after_a_piece),
    TEST(test_commit_embedded),
    TEST_END,
};
const char test_suite[] = "branch";
