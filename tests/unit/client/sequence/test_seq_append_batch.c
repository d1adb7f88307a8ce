/* Appending to several sequences in one call: the same result as one call each, and all or nothing. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-eval.h"
#include "client/sequence/seq.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { N = 6, LAYERS = 2, OTHER_TABLE = 3, EVALUATION = 5 };

static const kvc_eval_options eval = {.struct_bytes = sizeof(eval), .n_sink = 4, .n_recent = 40};

/* Sequences of a client: one of them of a model with another table, one for evaluation. */
struct several {
    struct embedded m;
    kvc_model *other;
    kvc_seq *s[N];
};

static struct several several_new(void)
{
    struct several x = {.m = embedded_new_predicting(LAYERS, 4, 2, 32, 3, 0, 0, PREDICT_LAYER)};
    kvc_model_id id = embedded_id(&x.m);
    size_t n_bytes;
    void *bytes;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&x.m.g, 2, 4, PREDICT_NONE, &bytes, &n_bytes), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_model_open_table(x.m.client, &id, bytes, n_bytes, &x.other), 0);
    free(bytes);
    for (uint32_t i = 0; i < N; i++)
        if (i == EVALUATION) {
            CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(x.m.model, &eval, &x.s[i]), 0);
        } else {
            CU_ASSERT_EQUAL_FATAL(kvc_seq_new(i == OTHER_TABLE ? x.other : x.m.model, NULL, 0, &x.s[i]), 0);
        }
    return x;
}

static void several_free(struct several *x)
{
    embedded_free(&x->m); /* models and sequences too */
}

static void make_items(const struct several *x, uint32_t layer, const size_t n_new[N], kvc_append_item ret[N])
{
    for (uint32_t i = 0; i < N; i++) {
        size_t first = x->s[i]->layers[layer].length;

        ret[i] = (kvc_append_item){.struct_bytes = sizeof(kvc_append_item),
                                   .seq = x->s[i],
                                   .k = embedded_input(&x->m, i, layer, KVC_K, first, n_new[i]),
                                   .v = embedded_input(&x->m, i, layer, KVC_V, first, n_new[i]),
                                   .n_new = n_new[i]};
    }
}

static void free_items(kvc_append_item items[N])
{
    for (uint32_t i = 0; i < N; i++) {
        free((void *) items[i].k);
        free((void *) items[i].v);
    }
}

/* One call for all, or one for each. */
static void append_all(struct several *x, uint32_t layer, const size_t n_new[N], bool together)
{
    kvc_append_item items[N];

    make_items(x, layer, n_new, items);
    if (together) {
        CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, layer, KVC_F32), 0);
    }
    for (uint32_t i = 0; i < N && !together; i++)
        CU_ASSERT_EQUAL(kvc_seq_append(items[i].seq, layer, KVC_F32, items[i].k, items[i].v, items[i].n_new),
                        0);
    free_items(items);
}

/* Compares all that a sequence returns, to the bit. */
static bool same(const struct several *x, kvc_seq *a, kvc_seq *b)
{
    bool alike = a->n_pages == b->n_pages && kvc_seq_length(a) == kvc_seq_length(b);

    for (uint32_t i = 0; i < 2 * LAYERS && alike; i++) {
        size_t n = kvc_seq_length(a);
        float *p = embedded_read(&x->m, a, i / 2, (enum kvc_side)(i % 2), n);
        float *q = embedded_read(&x->m, b, i / 2, (enum kvc_side)(i % 2), n);

        alike = a->layers[i / 2].length == b->layers[i / 2].length &&
                a->layers[i / 2].n_packed == b->layers[i / 2].n_packed &&
                memcmp(p, q, n * x->m.n_heads * x->m.g.d * sizeof(*p)) == 0;
        free(p);
        free(q);
    }
    return alike;
}

static bool all_same(const struct several *x, const struct several *y)
{
    bool all = true;

    for (uint32_t i = 0; i < N; i++)
        if (!same(x, x->s[i], y->s[i])) {
            printf("    sequence %u differs: %zu and %zu tokens\n", i, kvc_seq_length(x->s[i]),
                   kvc_seq_length(y->s[i]));
            all = false;
        }
    return all;
}

static const size_t rounds[][N] = {
    {5, 130, 63, 70, 0, 100}, {1, 1, 1, 1, 1, 1},   {0, 1, 62, 57, 300, 1}, {1, 1, 1, 1, 1, 0},
    {120, 0, 1, 1, 200, 64},  {1, 64, 1, 90, 1, 1}, {0, 0, 0, 0, 0, 0},     {1, 1, 1, 1, 1, 30},
};

/* Different numbers of tokens: some tails grow, some chunks are packed, some sequences get no token. */
static void test_as_one_by_one(void)
{
    struct several x = several_new(), y = several_new();

    for (size_t round = 0; round < sizeof(rounds) / sizeof(rounds[0]); round++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            append_all(&x, layer, rounds[round], true);
            append_all(&y, layer, rounds[round], false);
        }
        CU_ASSERT_TRUE(all_same(&x, &y));
    }
    CU_ASSERT(x.s[1]->layers[0].n_packed == 2 &&
              x.s[4]->layers[0].n_packed > 2); /* 198 tokens: 64 * 3 <= 198 < 64 * 4 */
    several_free(&x);
    several_free(&y);
}

/* ---- all or nothing ---- */

enum mistake { NO_KEYS, NO_VALUES, TOO_MANY, NOT_FINITE, TOO_LARGE, TWICE, FOREIGN, NO_SEQUENCE, MISTAKES };

/* Makes @item wrong. */
static void spoil(kvc_append_item *item, enum mistake mistake, kvc_seq *foreign, kvc_seq *twice)
{
    size_t last = item->n_new * 2 * 32 - 1;

    switch (mistake) {
    case NO_KEYS:
        item->k = NULL;
        break;
    case NO_VALUES:
        item->v = NULL;
        break;
    case TOO_MANY:
        item->n_new = KVC_APPEND_TOKENS_MAX + 1;
        break;
    case NOT_FINITE:
        ((float *) item->v)[last] = NAN;
        break;
    case TOO_LARGE:
        ((float *) item->k)[last] =
            item->seq->eval ? INFINITY : 1e9f; /* which an evaluation sequence keeps */
        break;
    case TWICE:
        item->seq = twice;
        break;
    case FOREIGN:
        item->seq = foreign;
        break;
    default:
        item->seq = NULL;
    }
}

/* A wrong item of any sequence: the error names it, and no sequence changes; without it the call succeeds. */
static void test_mistakes(void)
{
    static const size_t pieces[N] = {70, 300, 64, 129, 1, 90};
    struct several x = several_new(), y = several_new(), z = several_new();

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        append_all(&x, layer, rounds[0], true);
        append_all(&y, layer, rounds[0], true);
    }
    for (unsigned mistake = 0; mistake < MISTAKES; mistake++)
        for (uint32_t i = 0; i < N; i++) {
            kvc_append_item items[N], had;
            char which[40];

            if (i == 0 && mistake >= FOREIGN) /* the first item decides which client it is */
                continue;
            make_items(&x, 0, pieces, items);
            had = items[i];
            spoil(&items[i], (enum mistake) mistake, z.s[0], x.s[i == 0 ? 1 : 0]);
            CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, 0, KVC_F32), -EINVAL);
            (void) snprintf(which, sizeof(which),
                            "sequence %u of the batch: ", i == 0 && mistake == TWICE ? 1 : i);
            if (!strstr(kvc_last_error(x.m.client), which)) {
                printf("    mistake %u: \"%s\" does not say \"%s\"\n", mistake, kvc_last_error(x.m.client),
                       which);
                CU_FAIL("no place");
            }
            CU_ASSERT_TRUE(all_same(&x, &y));
            items[i] = had;
            free_items(items);
        }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        append_all(&x, layer, pieces, true);
        append_all(&y, layer, pieces, false);
    }
    CU_ASSERT_TRUE(all_same(&x, &y));
    several_free(&x);
    several_free(&y);
    several_free(&z);
}

/* Arguments that are wrong for all items, and empty calls. */
static void test_arguments(void)
{
    static const size_t pieces[N] = {3, 3, 3, 3, 3, 3};
    struct several x = several_new(), y = several_new();
    kvc_append_item items[N], none = {.struct_bytes = sizeof(none)};

    make_items(&x, 0, pieces, items);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, LAYERS, KVC_F32), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, 0, (enum kvc_dtype) 3), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(NULL, 1, 0, KVC_F32), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&none, 1, 0, KVC_F32), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(NULL, 0, 0, KVC_F32), 0);
    CU_ASSERT_TRUE(all_same(&x, &y));
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&items[2], 1, 1, (enum kvc_dtype) 3), -EINVAL);
    CU_ASSERT_PTR_NULL(strstr(kvc_last_error(x.m.client), "of the batch")); /* there is only one */
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&items[2], 1, 0, KVC_F32), 0);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&items[2], 1, 0, KVC_F32), 0); /* once in each call */
    CU_ASSERT_EQUAL(x.s[2]->layers[0].length, 6);
    free_items(items);
    several_free(&x);
    several_free(&y);
}

const struct test_case test_cases[] = {TEST(test_as_one_by_one), TEST(test_mistakes), TEST(test_arguments),
                                       TEST_END};
const char test_suite[] = "append batch";
