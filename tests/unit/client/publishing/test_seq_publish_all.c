/* KVC_SEQ_PUBLISH_ALL: which tokens are in codes after appends, commits, cuts and forks, without a daemon. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/sequence/seq.h"
#include "client/sequence/seq_tail.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { TEXT = 330 };

struct trial {
    struct embedded m;
    kvc_seq *s;
    float *exact[2], *coded[2]; /* [TEXT, heads, d] of layer 1, by side */
};

static kvc_seq *sequence(const struct embedded *m, uint32_t flags)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = flags};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

static void trial_begin(struct trial *t)
{
    uint32_t tokens[TEXT + 128] = {0};
    kvc_seq *s;

    *t = (struct trial){.m = embedded_new(2, 4, 2, 32, 3, 0, 0)};
    s = sequence(&t->m, 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t->m, s, 0, 0, TEXT + 128), 0);
    for (unsigned side = 0; side < 2; side++)
        t->exact[side] = embedded_read(&t->m, s, 1, side, TEXT);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, TEXT + 128, NULL), 0); /* packs */
    for (unsigned side = 0; side < 2; side++)
        t->coded[side] = embedded_read(&t->m, s, 1, side, TEXT);
    kvc_seq_free(s);
    t->s = sequence(&t->m, KVC_SEQ_PUBLISH_ALL);
}

static void trial_end(struct trial *t)
{
    for (unsigned side = 0; side < 2; side++) {
        free(t->exact[side]);
        free(t->coded[side]);
    }
    embedded_free(&t->m);
}

/* Whether @s has @length tokens, the first @n_coded of them in codes and the others exact. */
static bool holds(const struct trial *t, kvc_seq *s, size_t length, size_t n_coded)
{
    size_t width = (size_t) t->m.n_heads * t->m.g.d, n = n_coded * width, all = length * width;
    kvc_usage u = {.struct_bytes = sizeof(u)};
    bool same = kvc_seq_length(s) == length;

    for (unsigned side = 0; same && side < 2; side++) {
        float *got = embedded_read(&t->m, s, 1, side, length);

        same = memcmp(got, t->coded[side], n * sizeof(*got)) == 0 &&
               memcmp(got + n, t->exact[side] + n, (all - n) * sizeof(*got)) == 0;
        free(got);
    }
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    return same && u.tail_bytes == (length - n_coded) * 2 * width * 2 * sizeof(uint16_t) &&
           u.header_bytes == n_coded / 64 * 128;
}

/* Every full chunk is packed at the next append, not before: its queries read it exactly. */
static void test_appends_pack_every_full_chunk(void)
{
    struct trial t;

    trial_begin(&t);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 128), 0);
    CU_ASSERT(holds(&t, t.s, 128, 0));
    for (size_t at = 128; at < TEXT; at++) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, at, 1), 0);
        CU_ASSERT(holds(&t, t.s, at + 1, at / 64 * 64));
    }
    trial_end(&t);
}

static void test_commit_packs_every_full_chunk(void)
{
    uint32_t tokens[TEXT] = {0};
    size_t published = 7;
    struct trial t;

    trial_begin(&t);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 192), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 192, &published), 0);
    CU_ASSERT_EQUAL(published, 0); /* there is no daemon */
    CU_ASSERT(holds(&t, t.s, 192, 192));
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 192, &published), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 192, 63), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 255, &published), 0);
    CU_ASSERT(holds(&t, t.s, 255, 192));
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 255, 1), 0);
    CU_ASSERT(holds(&t, t.s, 256, 192));
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 256, &published), 0);
    CU_ASSERT(holds(&t, t.s, 256, 256));
    trial_end(&t);
}

/* A long append makes the tail long, a commit makes it short again, and what is left in it stays. */
static void test_commit_shortens_the_tail(void)
{
    uint32_t tokens[TEXT] = {0};
    struct trial t;

    trial_begin(&t);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 300), 0);
    CU_ASSERT_EQUAL(t.s->tail_rows, 320); /* whole chunks */
    seq_trim_tail(t.s);
    CU_ASSERT_EQUAL(t.s->tail_rows, 320); /* its rows are in use */
    CU_ASSERT(holds(&t, t.s, 300, 0));
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 300, NULL), 0);
    CU_ASSERT_EQUAL(t.s->tail_rows, TAIL_ROWS_MIN);
    CU_ASSERT(holds(&t, t.s, 300, 256));
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 300, 30), 0);
    CU_ASSERT(holds(&t, t.s, 330, 256));
    trial_end(&t);
}

static void test_truncate(void)
{
    uint32_t tokens[TEXT] = {0};
    struct trial t;
    size_t kept = 0;

    trial_begin(&t);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(t.s, 150, &kept), 0); /* nothing is packed yet */
    CU_ASSERT(kept == 150 && holds(&t, t.s, 150, 0) && t.s->n_pages == 2);
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 150, NULL), 0);
    CU_ASSERT(holds(&t, t.s, 150, 128));
    CU_ASSERT_EQUAL(kvc_seq_truncate(t.s, 129, &kept), 0);
    CU_ASSERT(kept == 129 && holds(&t, t.s, 129, 128));
    CU_ASSERT_EQUAL(kvc_seq_truncate(t.s, 100, &kept), 0); /* in codes: the chunk boundary below */
    CU_ASSERT(kept == 64 && holds(&t, t.s, 64, 64) && t.s->n_pages == 1);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 64, TEXT - 64), 0);
    CU_ASSERT(holds(&t, t.s, TEXT, 64));
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, TEXT, NULL), 0);
    CU_ASSERT(holds(&t, t.s, TEXT, 320));
    trial_end(&t);
}

/* A step that fails after its first layer: the layers pack different chunks. A cut brings them together. */
static void test_truncate_inside_a_step(void)
{
    struct trial t;
    float *k, *v;
    size_t kept = 0;

    trial_begin(&t);
    k = embedded_input(&t.m, 1, 0, KVC_K, 128, 70);
    v = embedded_input(&t.m, 1, 0, KVC_V, 128, 70);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 128), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(t.s, 0, KVC_F32, k, v, 70), 0);
    CU_ASSERT(t.s->layers[0].n_packed == 2 && t.s->layers[1].n_packed == 0 && t.s->n_pages == 3);
    CU_ASSERT_EQUAL(kvc_seq_truncate(t.s, 128, &kept), 0);
    CU_ASSERT(kept == 128 && holds(&t, t.s, 128, 0) && t.s->n_pages == 2);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 128, 64), 0);
    CU_ASSERT(holds(&t, t.s, 192, 128));
    free(k);
    free(v);
    trial_end(&t);
}

/* A fork has the flag too; it claims its own pages for chunks that were not packed when it was made. */
static void test_fork(void)
{
    uint32_t tokens[TEXT] = {0};
    kvc_seq *other = NULL;
    struct trial t;

    trial_begin(&t);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 64), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 64, 136), 0);
    CU_ASSERT(holds(&t, t.s, 200, 64));
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(t.s, &other), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 200, 1), 0);
    CU_ASSERT(holds(&t, t.s, 201, 192));
    CU_ASSERT(holds(&t, other, 200, 64));
    CU_ASSERT_EQUAL(kvc_seq_commit(other, tokens, 200, NULL), 0);
    CU_ASSERT(holds(&t, other, 200, 192));
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, other, 0, 200, TEXT - 200), 0);
    CU_ASSERT(holds(&t, other, TEXT, 192));
    trial_end(&t);
}

/* Attention right after a commit of whole chunks: the newest query reads its own token from codes. */
static void test_attend_without_a_tail(void)
{
    uint32_t tokens[TEXT] = {0};
    float *q, *k, *v, out[4 * 32];
    struct trial t;
    double *want;

    trial_begin(&t);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&t.m, t.s, 0, 0, 192), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(t.s, tokens, 192, NULL), 0);
    k = embedded_read(&t.m, t.s, 1, KVC_K, 192);
    v = embedded_read(&t.m, t.s, 1, KVC_V, 192);
    q = embedded_queries(&t.m, 0, 1, 191, 1);
    want = embedded_attention(&t.m, k, v, q, 191, 1);
    CU_ASSERT_EQUAL(kvc_seq_attend(t.s, 1, q, 1, out), 0);
    CU_ASSERT(nmse(out, want, 4 * 32) <= embedded_nmse_max(&t.m));
    free(q);
    free(k);
    free(v);
    free(want);
    trial_end(&t);
}

const struct test_case test_cases[] = {
    TEST(test_appends_pack_every_full_chunk), TEST(test_commit_packs_every_full_chunk),
    TEST(test_commit_shortens_the_tail),      TEST(test_truncate),
    TEST(test_truncate_inside_a_step),        TEST(test_fork),
    TEST(test_attend_without_a_tail),         TEST_END,
};
const char test_suite[] = "publish_all";
