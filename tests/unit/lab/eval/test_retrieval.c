/* Keys hidden in long text: lengths and depths, and found keys. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "lab/eval/retrieval.h"
#include "tools/eval/subject.h"

static void test_the_plan(void)
{
    const struct retrieval_options
        o = {.n_keys = 6, .n_together = 1, .lengths = {768, 1536, 2304, 3072}, .n_lengths = 4, .seed = 7},
        other = {.n_keys = 6, .n_together = 1, .seed = 8},
        ten = {.n_keys = 30, .n_together = 10, .lengths = {1024, 4096}, .n_lengths = 2};
    char a[6], b[6];

    CU_ASSERT_DOUBLE_EQUAL(retrieval_depth(0), 0.1, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(retrieval_depth(4), 0.9, 1e-12);
    CU_ASSERT_EQUAL(retrieval_tokens(&o), 768 + 1536 + 2304 + 3072 + 768 + 1536);
    CU_ASSERT_EQUAL(retrieval_tokens(&ten), 1024 + 4096 + 1024);
    CU_ASSERT_DOUBLE_EQUAL(retrieval_place(&o, 3), 0.1,
                           1e-12); /* each of four lengths, then the next depth */
    CU_ASSERT_DOUBLE_EQUAL(retrieval_place(&o, 4), 0.3, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(retrieval_place(&ten, 10), 0.05, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(retrieval_place(&ten, 19), 0.95, 1e-12);
    for (size_t i = 0; i < 6; i++) {
        retrieval_key(&o, i, a);
        CU_ASSERT(strlen(a) == 5 && strspn(a, "0123456789") == 5 && a[0] != '0');
        retrieval_key(&o, i, b);
        CU_ASSERT_STRING_EQUAL(a, b);
        retrieval_key(&other, i, b);
        CU_ASSERT(strcmp(a, b) != 0);
    }
}

/* ---- a model ---- */

static char path[] = "/tmp/kvc-retrieval-XXXXXX";

static struct engine *tiny_engine(void)
{
    struct tiny_gguf_options o = {0};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    const struct engine_options eo = {.n_threads = 1};
    struct engine *en = NULL;
    struct errmsg e = {""};
    int fd;

    (void) memcpy(path + sizeof(path) - 7, "XXXXXX", 6);
    fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    CU_ASSERT_EQUAL_FATAL(engine_open(path, &eo, &en, &e), 0);
    (void) unlink(path);
    return en;
}

/* A random model finds no key; both subjects are asked for every key once, at its length and depth. */
static void test_counts(void)
{
    _cleanup_(engine_freep) struct engine *en = tiny_engine();
    _cleanup_(subject_freep) struct subject *a = NULL;
    _cleanup_(subject_freep) struct subject *b = NULL;
    _cleanup_(progress_end) struct progress p = {0};
    struct retrieval_options o = {
        .n_keys = 9, .n_together = 1, .lengths = {300, 600, 900, 1200}, .n_lengths = 4};
    struct retrieval got[2];
    struct errmsg e = {""};
    static uint32_t filler[1200];

    for (size_t i = 0; i < 1200; i++)
        filler[i] = (uint32_t) ('a' + test_rand_below(26));
    progress_start(&p, "test", "tokens", 0, true);
    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &a, &e), 0);
    CU_ASSERT_EQUAL_FATAL(subject_exact_new(en, &b, &e), 0);
    CU_ASSERT_EQUAL_FATAL(retrieval_run(en, (struct subject *[]){a, b}, 2, filler, 1200, &o, &p, got, &e), 0);
    for (size_t i = 0; i < 2; i++) {
        CU_ASSERT(got[i].all.asked == 9 && got[i].all.found == 0 && got[i].pairs.lost == 0 &&
                  got[i].pairs.won == 0 && got[i].pairs.neither == 9);
        CU_ASSERT_EQUAL(got[i].pairs_by_length[0].neither, 3);
        CU_ASSERT(got[i].by_length[0].asked == 3 && got[i].by_length[1].asked == 2 &&
                  got[i].by_length[3].asked == 2);
        CU_ASSERT(got[i].by_depth[0].asked == 4 && got[i].by_depth[1].asked == 4 &&
                  got[i].by_depth[2].asked == 1);
    }

    CU_ASSERT_EQUAL(retrieval_run(en, &a, 1, filler, 200, &o, &p, got, &e),
                    -EINVAL); /* 1200 tokens do not fit into 200 */
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "200 tokens"));
    o.n_keys = 8;
    o.n_together = 4;
    o.n_lengths = 2;
    o.lengths[0] = 1300;
    o.lengths[1] = 1400;
    CU_ASSERT_EQUAL_FATAL(retrieval_run(en, (struct subject *[]){a, b}, 2, filler, 1200, &o, &p, got, &e), 0);
    CU_ASSERT(got[1].all.asked == 8 && got[1].by_length[0].asked == 4 && got[1].by_length[1].asked == 4);
    CU_ASSERT(got[1].by_depth[0].asked == 2 && got[1].by_depth[1].asked == 2 &&
              got[1].by_depth[2].asked == 0 && got[1].by_depth[3].asked == 2 &&
              got[1].by_depth[4].asked == 2);

    o.lengths[0] = 100; /* a token is a byte here: sentence and question need more than half of 100 */
    CU_ASSERT_EQUAL(retrieval_run(en, &a, 1, filler, 1200, &o, &p, got, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "too short"));
}

const struct test_case test_cases[] = {
    TEST(test_the_plan),
    TEST(test_counts),
    TEST_END,
};
const char test_suite[] = "retrieval";
