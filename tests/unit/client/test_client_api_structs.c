/*
 * The rule for callers of another version: structs and arrays whose items are smaller than, as large as and
 * larger than those of this library, first for options.h itself and then for every struct of kvcobra.h. Every
 * struct lies in a buffer of its own size, so that the sanitizers see an access outside.
 */
#include "client/kvcobra-gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "base/options.h"
#include "client/kvcobra-eval.h"
#include "client/kvcobra-call.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

const char test_suite[] = "structs";

/* The same struct in three versions; "now" is this library's. */
struct old {
    size_t struct_bytes;
    uint64_t a;
};
struct now {
    size_t struct_bytes;
    uint64_t a, b;
};
struct newer {
    size_t struct_bytes;
    uint64_t a, b, c;
};

static const char name[] = "struct_of_test";

/* ---- one struct ---- */

static void test_check(void)
{
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(options_check(sizeof(struct old), sizeof(struct old), name, &e), 0);
    CU_ASSERT_EQUAL(options_check(65536, sizeof(struct old), name, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    CU_ASSERT_EQUAL(options_check(sizeof(struct old) - 1, sizeof(struct old), name, &e), -EINVAL);
    CU_ASSERT_STRING_EQUAL(
        e.text, "the size of a struct_of_test is given as 15: set it to sizeof(struct_of_test), at least 16");
    CU_ASSERT_EQUAL(options_check(65537, sizeof(struct old), name, &e), -EINVAL);
    CU_ASSERT_EQUAL(options_check(0, sizeof(struct old), name, NULL), -EINVAL);
}

static int read_now(const void *from, struct now *ret, struct errmsg *e)
{
    return options_read(ret, sizeof(*ret), from, sizeof(struct old), name, e);
}

static void test_read(void)
{
    const struct old older = {sizeof(older), 1}, short_one = {sizeof(older) - 1, 1};
    const struct now same = {sizeof(same), 1, 2};
    struct newer newer = {sizeof(newer), 1, 2, 0};
    struct now got = {7, 7, 7};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(read_now(&short_one, &got, &e), -EINVAL);
    newer.c = (uint64_t) 1 << 63;
    CU_ASSERT_EQUAL(read_now(&newer, &got, &e), -EINVAL);
    CU_ASSERT_STRING_EQUAL(e.text,
                           "struct_of_test has a member that this library does not know: update the library");
    CU_ASSERT(got.struct_bytes == 7 && got.a == 7 && got.b == 7); /* untouched */

    CU_ASSERT_EQUAL(read_now(&older, &got, &e), 0);
    CU_ASSERT(got.a == 1 && got.b == 0);
    CU_ASSERT_EQUAL(read_now(&same, &got, &e), 0);
    CU_ASSERT(got.a == 1 && got.b == 2);
    newer.c = 0;
    got = (struct now){7, 7, 7};
    CU_ASSERT_EQUAL(read_now(&newer, &got, &e), 0);
    CU_ASSERT(got.a == 1 && got.b == 2);
}

static void test_write(void)
{
    const struct now from = {sizeof(from), 1, 2};
    struct old older = {sizeof(older), 7}, short_one = {sizeof(older) - 1, 7};
    struct now same = {sizeof(same), 7, 7};
    struct newer newer = {sizeof(newer), 7, 7, 7};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(options_write(&short_one, &from, sizeof(from), sizeof(struct old), name, &e), -EINVAL);
    CU_ASSERT_EQUAL(short_one.a, 7);
    CU_ASSERT_EQUAL(options_write(&older, &from, sizeof(from), sizeof(struct old), name, &e), 0);
    CU_ASSERT(older.struct_bytes == sizeof(older) && older.a == 1);
    CU_ASSERT_EQUAL(options_write(&same, &from, sizeof(from), sizeof(struct old), name, &e), 0);
    CU_ASSERT(same.struct_bytes == sizeof(same) && same.a == 1 && same.b == 2);
    CU_ASSERT_EQUAL(options_write(&newer, &from, sizeof(from), sizeof(struct old), name, &e), 0);
    CU_ASSERT(newer.struct_bytes == sizeof(newer) && newer.a == 1 && newer.b == 2 && newer.c == 0);
}

/* ---- arrays ---- */

static int read_items(const void *items, size_t n, struct now **ret, struct errmsg *e)
{
    void *copy = NULL;
    int r = options_read_items(items, n, sizeof(struct now), sizeof(struct old), name, &copy, e);

    *ret = copy;
    return r;
}

static void test_read_items(void)
{
    const struct old older[2] = {{sizeof(older[0]), 1}, {sizeof(older[0]), 3}};
    const struct now same[2] = {{sizeof(same[0]), 1, 2}, {sizeof(same[0]), 3, 4}};
    struct newer newer[2] = {{sizeof(newer[0]), 1, 2, 0}, {sizeof(newer[0]), 3, 4, 0}};
    struct now *copy;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(read_items(older, 2, &copy, &e), 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    CU_ASSERT(copy[0].a == 1 && copy[0].b == 0 && copy[1].a == 3 && copy[1].b == 0);
    free(copy);
    CU_ASSERT_EQUAL(read_items(same, 2, &copy, &e), 0);
    CU_ASSERT_PTR_NULL(copy); /* the caller's array has the right distance */
    CU_ASSERT_EQUAL(read_items(newer, 2, &copy, &e), 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    CU_ASSERT(copy[0].a == 1 && copy[0].b == 2 && copy[1].a == 3 && copy[1].b == 4);
    free(copy);

    newer[1].c = 1;
    CU_ASSERT_EQUAL(read_items(newer, 2, &copy, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(copy);
    CU_ASSERT_EQUAL(read_items(newer, 1, &copy, &e), 0);
    free(copy);
}

static void test_items_of_different_sizes(void)
{
    const struct now items[2] = {{sizeof(items[0]), 1, 2}, {sizeof(items[0]) - 8, 3, 4}};
    struct now *copy;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(read_items(items, 2, &copy, &e), -EINVAL);
    CU_ASSERT_STRING_EQUAL(e.text, "item 1: struct_of_test.struct_bytes is 16, but 24 in the first item");
    CU_ASSERT_EQUAL(read_items(&(struct now){0}, 1, &copy, &e), -EINVAL);
}

/* ---- every struct of kvcobra.h ---- */

enum { NEWER_BYTES = 16 }; /* members that this library does not know */

/* A copy of @s in @struct_bytes, of which the last are @fill where @s does not reach. */
static void *resized(const void *s, size_t bytes, size_t struct_bytes, int fill)
{
    uint8_t *copy = malloc(struct_bytes);

    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memset(copy, fill, struct_bytes);
    memcpy(copy, s, bytes < struct_bytes ? bytes : struct_bytes);
    memcpy(copy, &struct_bytes, sizeof(struct_bytes));
    return copy;
}

typedef int (*use_fn)(const struct embedded *m, void *s);

static int call_resized(const struct embedded *m, use_fn use, const void *s, size_t bytes,
                        size_t struct_bytes, int fill)
{
    void *copy = resized(s, bytes, struct_bytes, fill);
    int r = use(m, copy);

    free(copy);
    return r;
}

/* An input: a newer one is accepted if its unknown members are 0. @want is what the call returns then. */
static void check_input(const struct embedded *m, use_fn use, const void *s, size_t bytes, size_t oldest,
                        int want)
{
    CU_ASSERT_EQUAL(call_resized(m, use, s, bytes, oldest - 8, 0), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), "set it to sizeof(kvc_"));
    CU_ASSERT_EQUAL(call_resized(m, use, s, bytes, oldest, 0), want);
    CU_ASSERT_EQUAL(call_resized(m, use, s, bytes, bytes, 0), want);
    CU_ASSERT_EQUAL(call_resized(m, use, s, bytes, bytes + NEWER_BYTES, 0), want);
    CU_ASSERT_EQUAL(call_resized(m, use, s, bytes, bytes + NEWER_BYTES, 1), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), "update the library"));
}

/* An output: unknown members of a newer one become 0, and the others are those
 * of a struct of this version. */
static void check_output(const struct embedded *m, use_fn use, size_t bytes, size_t oldest)
{
    uint8_t *same = resized("\0\0\0\0\0\0\0", 8, bytes, 0x5a);
    uint8_t *newer = resized("\0\0\0\0\0\0\0", 8, bytes + NEWER_BYTES, 0x5a);
    uint8_t *shorter = resized("\0\0\0\0\0\0\0", 8, oldest - 8, 0x5a);
    static const uint8_t zeros[NEWER_BYTES];

    CU_ASSERT_EQUAL(use(m, shorter), -EINVAL);
    CU_ASSERT_EQUAL(shorter[8], 0x5a);
    CU_ASSERT_EQUAL(use(m, same), 0);
    CU_ASSERT_EQUAL(use(m, newer), 0);
    CU_ASSERT_EQUAL(*(size_t *) same, bytes);
    CU_ASSERT_EQUAL(*(size_t *) newer, bytes + NEWER_BYTES);
    CU_ASSERT_EQUAL(memcmp(same + 8, newer + 8, bytes - 8), 0);
    CU_ASSERT_EQUAL(memcmp(newer + bytes, zeros, sizeof(zeros)), 0);
    free(same);
    free(newer);
    free(shorter);
}

static int use_model_id(const struct embedded *m, void *s)
{
    kvc_model *model = NULL;
    int r = kvc_model_open_table(m->client, s, m->bytes, m->n_bytes, &model);

    kvc_model_free(model);
    return r;
}

static int use_report_options(const struct embedded *m, void *s)
{
    return kvc_model_report(m->model, s);
}

static int use_executor(const struct embedded *m, void *s)
{
    return kvc_client_set_executor(m->client, s);
}

static int use_gpu_options(const struct embedded *m, void *s)
{
    return kvc_client_set_gpu(m->client, s);
}

static int use_eval_options(const struct embedded *m, void *s)
{
    kvc_seq *seq = NULL;
    int r = kvc_seq_new_eval(m->model, s, &seq);

    kvc_seq_free(seq);
    return r;
}

static int use_client_info(const struct embedded *m, void *s)
{
    return kvc_client_get_info(m->client, s);
}

static int use_model_info(const struct embedded *m, void *s)
{
    return kvc_model_get_info(m->model, s);
}

static int use_model_fit(const struct embedded *m, void *s)
{
    return kvc_model_get_fit(m->model, s);
}

static int use_usage(const struct embedded *m, void *s)
{
    kvc_seq *seq = NULL;
    int r = kvc_seq_new(m->model, NULL, 0, &seq);

    if (r == 0)
        r = kvc_seq_get_usage(seq, s);
    kvc_seq_free(seq);
    return r;
}

/* Without a daemon: what is wrong with the options is found first. */
static int use_connect_options(const struct embedded *m, void *s)
{
    return kvc_client_connect_with(m->client, s);
}

static int use_attend_options(const struct embedded *m, void *s)
{
    float q[2 * 32] = {0}, out[2 * 32];
    kvc_attend_item item = {.struct_bytes = sizeof(item), .q = q, .n_q = 1, .out = out};
    int r = kvc_seq_new(m->model, NULL, 0, &item.seq);

    if (r == 0)
        r = embedded_append(m, item.seq, 0, 0, 1);
    if (r == 0)
        r = kvc_seq_attend_batch(&item, 1, 0, s);
    kvc_seq_free(item.seq);
    return r;
}

static void run_nothing(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n)
{
    (void) ctx;
    for (size_t i = 0; i < n; i++)
        task(arg, i, 0);
}

static void test_inputs(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    const kvc_model_id id = embedded_id(&m);
    const kvc_report_options report = {.share_ppm = 1};
    const kvc_attend_options attend = {.window = 64};
    const kvc_executor executor = {.run = run_nothing, .n_workers = 1};
    const kvc_gpu_options gpu = {.uuid = NULL};
    const kvc_eval_options eval = {.n_sink = 4};
    const kvc_connect_options connect = {.path = "/nonexistent/kvcobra.sock", .timeout_ms = 3600000};
    const kvc_connect_options wrong[] = {{sizeof(wrong[0]), "/", 3600001, 0}, {sizeof(wrong[0]), "/", 0, 1}};

    check_input(&m, use_model_id, &id, sizeof(id), offsetof(kvc_model_id, n_positions), 0);
    check_input(&m, use_report_options, &report, sizeof(report), sizeof(report), 0);
    check_input(&m, use_attend_options, &attend, sizeof(attend), sizeof(attend), 0);
    check_input(&m, use_executor, &executor, sizeof(executor), sizeof(executor), 0);
    check_input(&m, use_gpu_options, &gpu, sizeof(gpu), offsetof(kvc_gpu_options, pages),
                -EBUSY); /* it has a model */
    check_input(&m, use_eval_options, &eval, sizeof(eval), 16, 0);
    check_input(&m, use_connect_options, &connect, sizeof(connect), sizeof(connect), -ENOENT);
    for (size_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(kvc_client_connect_with(m.client, &wrong[i]), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "timeout_ms is "));
    }
    embedded_free(&m);
}

static void test_outputs(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);

    check_output(&m, use_client_info, sizeof(kvc_client_info), sizeof(kvc_client_info));
    check_output(&m, use_model_info, sizeof(kvc_model_info), sizeof(kvc_model_info));
    check_output(&m, use_model_fit, sizeof(kvc_model_fit), offsetof(kvc_model_fit, expected_saturated));
    check_output(&m, use_usage, sizeof(kvc_usage), offsetof(kvc_usage, coded));
    embedded_free(&m);
}

/* ---- arrays of kvcobra.h ---- */

struct newer_append_item {
    kvc_append_item item;
    uint64_t newer[2];
};

struct newer_attend_item {
    kvc_attend_item item;
    uint64_t newer[2];
};

/* Two sequences of one token each, appended and attended to by items of this version or of a newer one. */
struct batch {
    struct embedded m;
    kvc_seq *s[2];
    float *k[2], *v[2], *q[2], out[2][2 * 32];
};

static struct batch batch_new(void)
{
    struct batch b = {.m = embedded_new(1, 2, 1, 32, 3, 0, 0)};

    for (uint32_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(b.m.model, NULL, 0, &b.s[i]), 0);
        b.k[i] = embedded_input(&b.m, i, 0, KVC_K, 0, 1);
        b.v[i] = embedded_input(&b.m, i, 0, KVC_V, 0, 1);
        b.q[i] = embedded_queries(&b.m, i, 0, 0, 1);
    }
    return b;
}

static void batch_free(struct batch *b)
{
    for (unsigned i = 0; i < 2; i++) {
        free(b->k[i]);
        free(b->v[i]);
        free(b->q[i]);
    }
    embedded_free(&b->m);
}

static void test_append_items(void)
{
    struct batch b = batch_new();
    struct newer_append_item items[2];
    kvc_append_item same[2];

    for (unsigned i = 0; i < 2; i++) {
        same[i] = (kvc_append_item){
            .struct_bytes = sizeof(same[0]), .seq = b.s[i], .k = b.k[i], .v = b.v[i], .n_new = 1};
        items[i] = (struct newer_append_item){.item = same[i]};
        items[i].item.struct_bytes = sizeof(items[i]);
    }
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&items[0].item, 2, 0, KVC_F32), 0);
    CU_ASSERT(kvc_seq_length(b.s[0]) == 1 && kvc_seq_length(b.s[1]) == 1);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(same, 2, 0, KVC_F32), 0);
    CU_ASSERT(kvc_seq_length(b.s[0]) == 2 && kvc_seq_length(b.s[1]) == 2);

    items[1].newer[1] = 1;
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&items[0].item, 2, 0, KVC_F32), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(b.m.client), "update the library"));
    items[1] = items[0];
    items[1].item.struct_bytes = sizeof(same[0]);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&items[0].item, 2, 0, KVC_F32), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(b.m.client), "item 1: kvc_append_item.struct_bytes is"));
    same[0].struct_bytes = sizeof(same[0]) - 8;
    CU_ASSERT_EQUAL(kvc_seq_append_batch(same, 2, 0, KVC_F32), -EINVAL);
    CU_ASSERT(kvc_seq_length(b.s[0]) == 2 && kvc_seq_length(b.s[1]) == 2);
    batch_free(&b);
}

static void test_attend_items(void)
{
    struct batch b = batch_new();
    struct newer_attend_item items[2];
    kvc_attend_item same[2];
    float newer_out[2][2 * 32];

    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_append(b.s[i], 0, KVC_F32, b.k[i], b.v[i], 1), 0);
        same[i] = (kvc_attend_item){
            .struct_bytes = sizeof(same[0]), .seq = b.s[i], .q = b.q[i], .n_q = 1, .out = b.out[i]};
        items[i] = (struct newer_attend_item){.item = same[i]};
        items[i].item.struct_bytes = sizeof(items[i]);
        items[i].item.out = newer_out[i];
    }
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(same, 2, 0, NULL), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(&items[0].item, 2, 0, NULL), 0);
    CU_ASSERT_EQUAL(memcmp(b.out, newer_out, sizeof(newer_out)), 0);

    items[1].newer[0] = 1;
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(&items[0].item, 2, 0, NULL), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(b.m.client), "update the library"));
    same[1].struct_bytes = sizeof(items[0]);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(same, 2, 0, NULL), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(b.m.client), "item 1: kvc_attend_item.struct_bytes is"));
    same[0].struct_bytes = 0;
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(same, 2, 0, NULL), -EINVAL);
    batch_free(&b);
}

const struct test_case test_cases[] = {TEST(test_check),
                                       TEST(test_read),
                                       TEST(test_write),
                                       TEST(test_read_items),
                                       TEST(test_items_of_different_sizes),
                                       TEST(test_inputs),
                                       TEST(test_outputs),
                                       TEST(test_append_items),
                                       TEST(test_attend_items),
                                       TEST_END};
