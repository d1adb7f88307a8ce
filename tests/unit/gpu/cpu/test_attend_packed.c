/* Packed attention against decode-then-attend in binary64 (attend_oracle.h), on every variant that this
 * machine runs. Each case is a scene (attend_scene.h); test_attend_packed_grid.c draws shapes at random. */
#include "gpu/attend.h"

#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/cpu/attend_decode.h"
#include "gpu/cpu.h"
#include "gpu/cpu/ops.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_oracle.h"
#include "tests/unit/gpu/attend_scene.h"

static const uint32_t dims[] = {32, 64, 80, 128, 256};
enum { N_DIMS = sizeof(dims) / sizeof(dims[0]) };

/* Every d with every kind of RoPE, V predicted from K or not, 1, 3 and 64 queries, with and without sinks. */
static void test_shapes(void)
{
    static const size_t n_qs[] = {1, 3, 64};
    unsigned n = 0;

    for (size_t i = 0; i < N_DIMS; i++)
        for (uint32_t rot = 0; rot <= 2; rot++)
            for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++, n++)
                attend_scene_check(&(struct attend_shape){
                    .d = dims[i],
                    .n_rot = rot * dims[i] / 2,
                    .group = 1 + n % 4,
                    .bits = -1,
                    .n_sink = (n & 1) ^ (n >> 1 & 1) ? 4 : 0,
                    .v_from = (enum prediction) v_from,
                    .n_pages = n % 3 + (n_qs[n % 3] == 1),
                    .n_exact = 64 + test_rand_below(64),
                    .n_q = n_qs[n % 3],
                    .q_first = SIZE_MAX,
                });
}

static void test_groups(void)
{
    for (uint32_t group = 1; group <= 8; group++)
        attend_scene_check(&(struct attend_shape){
            .d = 64,
            .n_rot = 64,
            .group = group,
            .bits = -1,
            .n_sink = 4,
            .v_from = PREDICT_HEAD,
            .n_pages = 2,
            .n_exact = 70,
            .n_q = 1 + group % 3,
            .q_first = SIZE_MAX,
        });
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++)
        for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
            attend_scene_check(&(struct attend_shape){
                .d = 64,
                .n_rot = 64,
                .group = 3,
                .bits = bits,
                .n_sink = 4,
                .v_from = (enum prediction) v_from,
                .n_pages = 2,
                .n_exact = 1,
                .n_q = 1,
                .q_first = SIZE_MAX,
            });
}

static void test_every_tail(void)
{
    for (size_t tail = 0; tail < 128; tail++)
        attend_scene_check(&(struct attend_shape){
            .d = 32,
            .n_rot = 32,
            .group = 2,
            .bits = -1,
            .n_sink = tail % 2 ? 4 : 0,
            .v_from = (enum prediction)(tail % 3),
            .n_pages = 1,
            .n_exact = tail,
            .n_q = 1,
            .q_first = SIZE_MAX,
        });
}

static void test_without_pages(void)
{
    for (size_t n = 1; n <= 130; n += 43)
        attend_scene_check(&(struct attend_shape){
            .d = 80,
            .n_rot = 80,
            .group = 3,
            .bits = -1,
            .n_sink = 4,
            .n_pages = 0,
            .n_exact = n,
            .n_q = n,
            .q_first = SIZE_MAX,
        });
}

/* Queries inside packed pages see only earlier positions, sinks included. */
static void test_queries_inside_pages(void)
{
    static const size_t firsts[] = {0, 2, 4, 62, 63, 64, 100, 127, 128};

    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
        attend_scene_check(&(struct attend_shape){
            .d = 64,
            .n_rot = 32,
            .group = 3,
            .bits = -1,
            .n_sink = 4,
            .v_from = PREDICT_HEAD,
            .n_pages = 3,
            .n_exact = 20,
            .n_q = 70,
            .q_first = firsts[i],
        });
}

/* Windows that end inside, between and before pages, for one query and for rows that see different pages. */
static void test_windows(void)
{
    static const size_t windows[] = {1, 2, 63, 64, 65, 100, 128, 190, 259, 260, 1000};

    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        for (size_t n_q = 1; n_q <= 201; n_q += 100)
            attend_scene_check(&(struct attend_shape){
                .d = 64,
                .n_rot = 64,
                .group = 3,
                .bits = -1,
                .n_sink = 4,
                .v_from = PREDICT_HEAD,
                .n_pages = 3,
                .n_exact = 68,
                .n_q = n_q,
                .q_first = SIZE_MAX,
                .window = windows[i],
            });
}

/* Keys divided among shares in any way give the result of one call. Shares that see no key of a
 * row, or no key at all, add nothing. Merging sums the same number of terms in another order:
 * the tolerance is that of the oracle. */
static void test_shares(void)
{
    static const size_t cuts[][4] = {{0, 1, 2, 5}, {0, 0, 5, 5}, {0, 4, 4, 5}, {0, 2, 3, 5}};
    static const size_t windows[] = {0, 70, 200};
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n_ops = attend_scene_variants(ops);

    for (size_t i = 0; i < 4 * n_ops; i++)
        for (size_t n_q = 1; n_q <= 41; n_q += 40) {
            struct attend_shape shape = {
                .d = 64,
                .n_rot = 64,
                .group = 3,
                .bits = -1,
                .n_sink = 4,
                .v_from = (enum prediction)(i % 3),
                .n_pages = 5,
                .n_exact = 10,
                .n_q = n_q,
                .q_first = SIZE_MAX,
                .window = windows[i % 3],
                .q_size = 3,
            };
            const struct ops *variant = ops[i / 4];
            const size_t *cut = cuts[i % 4];
            struct oracle_report r;
            struct attend_scene s;
            struct fenced partials;
            size_t n;

            attend_scene_init(&s, &shape);
            n = attend_partial_floats(&s.layout, n_q);
            partials = fenced_new(4 * n * sizeof(float), sizeof(float));
            for (size_t x = 3; x-- > 0;) { /* in any order */
                memset(s.scratch.data, 0xff, attend_scratch_bytes(&s.layout, n_q));
                attend_share_with(&s.args, variant, cut[x], cut[x + 1], x == 1,
                                  (float *) partials.data + x * n);
            }
            memset(s.out.data, 0xff, sizeof(float));
            attend_merge_with(&s.args, variant, (const float *) partials.data, 3);
            r = oracle_packed(&s.args, variant->decode);
            CU_ASSERT_TRUE(r.error <= r.tolerance);
            fenced_free(partials);
            attend_scene_deinit(&s);
        }
}

/* A table may have sixteen sinks; a sequence may use fewer than the table has. */
static void test_many_sinks(void)
{
    attend_scene_check(&(struct attend_shape){
        .d = 64,
        .n_rot = 64,
        .group = 3,
        .bits = -1,
        .n_sink = TABLE_SINKS_MAX,
        .v_from = PREDICT_HEAD,
        .n_pages = 2,
        .n_exact = 3,
        .n_q = 2,
        .q_first = SIZE_MAX,
    });
}

/* Scores of about +-1000: exp of anything except the difference to the maximum would overflow. */
static void test_huge_scores(void)
{
    attend_scene_check(&(struct attend_shape){
        .d = 64,
        .n_rot = 64,
        .group = 3,
        .bits = -1,
        .n_sink = 4,
        .v_from = PREDICT_HEAD,
        .q_size = 1000,
        .n_pages = 4,
        .n_exact = 100,
        .n_q = 64,
        .q_first = SIZE_MAX,
    });
}

/* A key bias of norm 900 (DESIGN 3.2): the scores of the mean are a hundred times
 * the scores that differ between keys. */
static void test_large_key_mean(void)
{
    for (uint32_t rot = 0; rot <= 64; rot += 32)
        attend_scene_check(&(struct attend_shape){
            .d = 64,
            .n_rot = rot,
            .group = 3,
            .bits = -1,
            .n_sink = 4,
            .v_from = PREDICT_HEAD,
            .mean_norm = 900,
            .n_pages = 3,
            .n_exact = 100,
            .n_q = 3,
            .q_first = SIZE_MAX,
        });
}

/* A million positions: one page, listed 15625 times. Angles of a million radians must be right to the last
 * digit of a binary32 cosine. Computed in binary32 they would be off by 0.03 and more, and the result by a
 * tenth of its size. */
static void test_position_of_a_million(void)
{
    struct attend_shape shape = {
        .d = 32,
        .n_rot = 32,
        .group = 1,
        .bits = 2,
        .n_sink = 0,
        .n_pages = 1,
        .n_exact = 7,
        .n_q = 1,
        .q_first = SIZE_MAX,
        .q_size = 4,
    };
    enum { N_PAGES = 15625 };
    const uint8_t **payloads = calloc(N_PAGES, sizeof(*payloads));
    struct oracle_report r;
    struct attend_scene s;
    struct attend_args a;

    assert(payloads);
    attend_scene_init(&s, &shape);
    for (size_t i = 0; i < N_PAGES; i++)
        payloads[i] = s.args.payloads[0];
    a = s.args;
    a.payloads = payloads;
    a.n_pages = N_PAGES;
    a.exact_first = (size_t) N_PAGES * CHUNK_TOKENS;
    a.q_first = a.exact_first + a.n_exact - 1;
    attend(&a);
    r = oracle_packed(&a, ops_best()->decode);
    CU_ASSERT_TRUE(r.error <= r.tolerance);
    free(payloads);
    attend_scene_deinit(&s);
}

/* In strict mode of seccomp any call except read, write and exit kills the
 * process: attention makes no system call. */
static void test_no_system_call(void)
{
    struct attend_shape shape = {
        .d = 64,
        .n_rot = 64,
        .group = 3,
        .bits = -1,
        .n_sink = 4,
        .v_from = PREDICT_HEAD,
        .n_pages = 3,
        .n_exact = 70,
        .n_q = 2,
        .q_first = SIZE_MAX,
    };
    struct attend_scene s;
    int status;
    pid_t pid;

    attend_scene_init(&s, &shape);
    attend(&s.args); /* selects the variant */
    pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0)
            _exit(1);
        attend(&s.args);
        (void) syscall(SYS_exit, 0); /* _exit() would be exit_group, which is not allowed */
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    attend_scene_deinit(&s);
}

static void test_selection(void)
{
    CU_ASSERT_PTR_EQUAL(ops_select(0), &ops_ref);
    CU_ASSERT_PTR_EQUAL(ops_best(), ops_select(cpu_capabilities()));
    CU_ASSERT_STRING_EQUAL(attend_kernel_name(), ops_best()->name);
}

const char test_suite[] = "attend_packed";
/* ---- repeatable results ---- */

/* Queries @first .. @first + @n - 1 of the scene alone, and the exact rows that they see. */
static void attend_part(struct attend_scene *s, const struct ops *ops, size_t first, size_t n)
{
    struct attend_args a = s->args;

    a.q += first * a.q_stride;
    a.out += first * a.out_stride;
    a.q_first += first;
    a.n_q = n;
    a.n_exact = a.q_first + n - a.exact_first;
    memset(s->scratch.data, 0xff, attend_scratch_bytes(&s->layout, n)); /* NaN everywhere */
    attend_with(&a, ops);
}

static void check_repeatable(const struct attend_shape *shape)
{
    size_t row = (size_t) shape->group * shape->d;
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n_ops = attend_scene_variants(ops);
    struct attend_scene s;
    float *all;

    attend_scene_init(&s, shape);
    s.args.repeatable = true;
    all = malloc(shape->n_q * row * sizeof(*all));
    CU_ASSERT_PTR_NOT_NULL_FATAL(all);
    for (size_t i = 0; i < n_ops; i++) {
        struct oracle_report r;

        attend_part(&s, ops[i], 0, shape->n_q);
        r = oracle_packed(&s.args, NULL); /* as exact as binary32, also where other loops take few rows */
        CU_ASSERT(r.error <= r.tolerance);
        for (size_t t = 0; t < shape->n_q; t++)
            memcpy(all + t * row, s.args.out + t * s.args.out_stride, row * sizeof(*all));
        for (size_t t = 0, n; t < shape->n_q; t += n) {
            n = 1 + t % 4;
            n = n < shape->n_q - t ? n : shape->n_q - t;
            attend_part(&s, ops[i], t, n);
        }
        for (size_t t = 0; t < shape->n_q; t++)
            CU_ASSERT_EQUAL(memcmp(all + t * row, s.args.out + t * s.args.out_stride, row * sizeof(*all)), 0);
    }
    free(all);
    attend_scene_deinit(&s);
}

/* A query's bits do not depend on which other queries the call has. */
static void test_repeatable(void)
{
    for (unsigned i = 0; i < 4 * N_DIMS; i++)
        check_repeatable(&(struct attend_shape){
            .d = dims[i % N_DIMS],
            .n_rot = dims[i % N_DIMS] / (1 + i / N_DIMS % 2),
            .group = 1 + i % 4,
            .bits = -1,
            .n_sink = 4,
            .v_from = (enum prediction)(i % 3),
            .n_pages = i / N_DIMS,
            .n_exact = 40,
            .n_q = 23,
            .q_first = SIZE_MAX,
            .window = i % 2 ? 50 : 0,
        });
}

const struct test_case test_cases[] = {
    TEST(test_shapes),         TEST(test_groups),
    TEST(test_every_width),    TEST(test_every_tail),
    TEST(test_without_pages),  TEST(test_queries_inside_pages),
    TEST(test_windows),        TEST(test_shares),
    TEST(test_many_sinks),     TEST(test_huge_scores),
    TEST(test_large_key_mean), TEST(test_position_of_a_million),
    TEST(test_no_system_call), TEST(test_selection),
    TEST(test_repeatable),     TEST_END,
};
