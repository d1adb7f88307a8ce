/* Statistics through the public header: what is refused, merging, files, incomplete windows, gradients. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/api/handles.h"
#include "alloc/moments/moments.h"
#include "alloc/stats/stats_internal.h"
#include "tests/unit/alloc/api/api_fixture.h"

const char test_suite[] = "stats_api";

static const uint32_t both = KVC_WITH_OUTPUT | KVC_WITH_ATTENTION;

static void test_options(void)
{
    struct api f;
    kvc_stats_options o;
    kvc_stats *s = NULL;
    char long_name[129];

    api_init(&f);
    CU_ASSERT_EQUAL(kvc_alloc_new(NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_stats_new(NULL, NULL, &s), -EINVAL);
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, NULL, &s), -EINVAL, "o or ret_stats is NULL");
    o = api_options(&f, 0);
    o.struct_bytes = 8;
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, &o, &s), -EINVAL, "sizeof(kvc_stats_options)");
    o = api_options(&f, 4);
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, &o, &s), -EINVAL, "metrics is 0x4");
    o = api_options(&f, 0);
    o.geometry.head_dim = 33;
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, &o, &s), -EINVAL, "head dimension");
    o = api_options(&f, 0);
    o.geometry.rope_freq = NULL;
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, &o, &s), -EINVAL, "rope_freq is NULL");
    o = api_options(&f, 0);
    o.n_sink = 17;
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, &o, &s), -EINVAL, "17 sinks");
    o = api_options(&f, 0);
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[128] = '\0';
    o.model_name = long_name;
    EXPECT_REFUSED(&f, kvc_stats_new(f.a, &o, &s), -EINVAL, "model_name has 128 bytes");
    long_name[127] = '\0';
    CU_ASSERT_EQUAL(kvc_stats_new(f.a, &o, &s), 0);
    CU_ASSERT_PTR_NOT_NULL(s);
    api_deinit(&f);
}

/* The estimate is of the right size, and names the default of n_samples. */
static void test_estimate(void)
{
    struct api f;
    kvc_stats_options o;
    kvc_stats_estimate small = {.struct_bytes = sizeof(small)}, large = small;

    api_init(&f);
    o = api_options(&f, both);
    EXPECT_REFUSED(&f, kvc_stats_get_estimate(f.a, &o, 0, &small), -EINVAL, "a window of 0 tokens");
    EXPECT_REFUSED(&f, kvc_stats_get_estimate(f.a, &o, KVC_WINDOW_TOKENS_MAX + 1, &small), -EINVAL,
                   "a window of");
    EXPECT_REFUSED(&f, kvc_stats_get_estimate(f.a, NULL, 10, &small), -EINVAL, "is NULL");
    EXPECT_REFUSED(&f, kvc_stats_get_estimate(f.a, &o, 10, NULL), -EINVAL, "is NULL");
    CU_ASSERT_EQUAL(kvc_stats_get_estimate(f.a, &o, KVC_WINDOW_TOKENS_MAX, &small), 0);
    CU_ASSERT_EQUAL(kvc_stats_get_estimate(f.a, &o, 100, &small), 0);
    CU_ASSERT_EQUAL(small.n_samples, 4 * API_WINDOW);
    o.n_samples = 0;
    CU_ASSERT_EQUAL(kvc_stats_get_estimate(f.a, &o, 1000, &large), 0);
    CU_ASSERT_EQUAL(large.n_samples, KVC_SAMPLES_DEFAULT);
    CU_ASSERT_EQUAL(large.stats_bytes - small.stats_bytes,
                    (KVC_SAMPLES_DEFAULT - 4 * API_WINDOW) * (8 * API_DIM * sizeof(uint16_t) + 25ull));
    CU_ASSERT_EQUAL(large.gradients_bytes, 8 * API_DIM * API_DIM * sizeof(double));
    CU_ASSERT(large.window_bytes > small.window_bytes);
    api_deinit(&f);
}

/* The last position of a key after RoPE is 2^31 - 1. */
static void test_largest_position(void)
{
    struct api f;
    kvc_stats *s;
    kvc_stats_layer x;

    api_init(&f);
    s = api_stats(&f, both);
    x = api_layer(&f, 0, 0);
    x.keys = KVC_KEYS_AFTER_ROPE;
    x.position = (UINT64_C(1) << 31) - x.n + 1;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "positions up to 2147483648");
    x.position--;
    CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
    kvc_stats_free(s);
    api_deinit(&f);
}

/* A refused layer of a window. The statistics stay usable if nothing of the window was added. */
static void test_refused_layers(void)
{
    struct api f;
    kvc_stats *s;
    kvc_stats_layer x;
    float kept;

    api_init(&f);
    s = api_stats(&f, both);
    x = api_layer(&f, 0, 0);
    x.k = NULL;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "keys or the values of layer 0 are NULL");
    x = api_layer(&f, 0, 0);
    x.q = NULL;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "need the queries of layer 0");
    x = api_layer(&f, 0, 0);
    x.residual = NULL;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "needs the residual stream of layer 0");
    x = api_layer(&f, 0, 0);
    x.n_embd = 0;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "n_embd is 0");
    x = api_layer(&f, 0, 1);
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "layer 0 of the window comes next");
    x = api_layer(&f, 0, 0);
    x.n = 0;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "a window of 0 tokens");
    x.n = KVC_WINDOW_TOKENS_MAX + 1;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "is not in 1..1048576");
    x = api_layer(&f, 0, 0);
    x.dtype = 3;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "dtype is 3");
    x = api_layer(&f, 0, 0);
    x.keys = 2;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "keys is 2");
    x = api_layer(&f, 0, 0);
    x.pairs = 2;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "pairs is 2");
    x = api_layer(&f, 0, 0);
    x.k_head_stride = API_DIM - 1;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "overlap");
    x = api_layer(&f, 0, 0);
    x.v_token_stride = SIZE_MAX / 2;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "exceed the memory of a process");
    x = api_layer(&f, 0, 0);
    x.keys = KVC_KEYS_AFTER_ROPE;
    x.position = UINT64_MAX - 3;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "keys after RoPE have positions up to");

    x = api_layer(&f, 0, 0);
    kept = f.x.k[5 * 64 + 40];
    f.x.k[5 * 64 + 40] = NAN;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL,
                   "a key of layer 0 head 1 is not finite at token 5");
    f.x.k[5 * 64 + 40] = kept;
    CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
    x = api_layer(&f, 1, 1);
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "layer 1 is of another window");
    x = api_layer(&f, 0, 1);
    CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
    x = api_layer(&f, 0, 0);
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "added before");
    api_deinit(&f);
}

/* A window that fails after its first layer: an argument that was refused can be corrected, numbers that are
 * not finite end these statistics, and sentences say so. */
static void test_half_failed_window(void)
{
    struct api f;
    kvc_solve_options so = {.struct_bytes = sizeof(so), .bpd = 3};
    kvc_stats *s, *other;
    kvc_stats_layer x;
    void *bytes = NULL;
    size_t n = 0;

    api_init(&f);
    s = api_stats(&f, KVC_WITH_OUTPUT);
    x = api_layer(&f, 0, 0);
    CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
    EXPECT_REFUSED(&f, kvc_stats_save(s, "never-written"), -EINVAL, "are missing");
    x = api_layer(&f, 0, 1);
    x.dtype = 9;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "dtype is 9");
    x.dtype = KVC_F32;
    CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);

    x = api_layer(&f, 1, 0);
    CU_ASSERT_EQUAL(kvc_stats_add_layer(s, &x), 0);
    x = api_layer(&f, 1, 1);
    f.hidden[7] = INFINITY;
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "residual stream of layer 1");
    x = api_layer(&f, 2, 0);
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "start these statistics again");
    CU_ASSERT_EQUAL(kvc_solve(s, &so, &bytes, &n, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_stats_save(s, "never-written"), -EINVAL);
    other = api_stats(&f, KVC_WITH_OUTPUT);
    api_add_windows(&f, other, 5, 1);
    CU_ASSERT_EQUAL(kvc_stats_merge(other, s), -EINVAL);
    CU_ASSERT_NOT_EQUAL(access("never-written", F_OK), 0);
    CU_ASSERT_PTR_NULL(bytes);
    api_deinit(&f);
}

/* Statistics of two allocators, and those that do not belong together. */
static void test_merge(void)
{
    struct api f, h;
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    kvc_stats *a, *b;
    kvc_stats_options o;

    api_init(&f);
    api_init(&h);
    a = api_stats(&f, both);
    api_add_windows(&f, a, 0, 2);
    b = api_stats(&h, both);
    api_add_windows(&h, b, 2, 2);
    CU_ASSERT_EQUAL(kvc_stats_merge(a, b), 0);
    CU_ASSERT_EQUAL(kvc_stats_get_info(a, &info), 0);
    CU_ASSERT_EQUAL(info.tokens, 4 * (API_WINDOW - 4));
    CU_ASSERT_EQUAL(info.samples, 4 * (API_WINDOW - 4));
    CU_ASSERT_EQUAL(info.metrics, both);
    CU_ASSERT_STRING_EQUAL(info.model_name, "made up");
    EXPECT_REFUSED(&f, kvc_stats_merge(a, b), -EINVAL, "was added before");
    EXPECT_REFUSED(&f, kvc_stats_merge(a, a), -EINVAL, "themselves");
    EXPECT_REFUSED(&f, kvc_stats_merge(a, NULL), -EINVAL, "other is NULL");

    o = api_options(&h, both);
    o.geometry.n_heads = 2;
    CU_ASSERT_EQUAL_FATAL(kvc_stats_new(h.a, &o, &b), 0);
    EXPECT_REFUSED(&f, kvc_stats_merge(a, b), -EINVAL, "different geometries");
    o = api_options(&h, both);
    o.model_digest[0]++;
    CU_ASSERT_EQUAL_FATAL(kvc_stats_new(h.a, &o, &b), 0);
    EXPECT_REFUSED(&f, kvc_stats_merge(a, b), -EINVAL, "different models");
    o = api_options(&h, KVC_WITH_OUTPUT);
    CU_ASSERT_EQUAL_FATAL(kvc_stats_new(h.a, &o, &b), 0);
    EXPECT_REFUSED(&f, kvc_stats_merge(a, b), -EINVAL, "attention metric");
    api_deinit(&f);
    api_deinit(&h);
}

/* The bytes of a file that was saved, loaded and saved again. A full disk leaves the old file. */
static void test_files(void)
{
    char folder[] = "/tmp/kvc-test-stats-api-XXXXXX", path[64], again[64];
    struct rlimit limit, small = {.rlim_cur = 4096};
    void (*handler)(int);
    struct stat st, st_again;
    struct api f;
    kvc_stats *s, *t;

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/a", folder);
    (void) snprintf(again, sizeof(again), "%s/b", folder);
    api_init(&f);
    s = api_stats(&f, both);
    api_add_windows(&f, s, 0, 2);
    CU_ASSERT_EQUAL_FATAL(kvc_stats_save(s, path), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_stats_load(f.a, path, NULL, &t), 0);
    EXPECT_REFUSED(&f, kvc_stats_load(f.a, path, s, &t), -EINVAL, "metrics of their own");
    CU_ASSERT_EQUAL_FATAL(kvc_stats_save(t, again), 0);
    CU_ASSERT_EQUAL(stat(path, &st) | stat(again, &st_again), 0);
    CU_ASSERT_EQUAL(st.st_size, st_again.st_size);

    handler = signal(SIGXFSZ, SIG_IGN); /* write() then fails: this stands for a full disk */
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small.rlim_max = limit.rlim_max;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    api_add_windows(&f, s, 2, 1);
    EXPECT_REFUSED(&f, kvc_stats_save(s, path), -EFBIG, path);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
    (void) signal(SIGXFSZ, handler);
    CU_ASSERT_EQUAL(stat(path, &st), 0);
    CU_ASSERT_EQUAL(st.st_size, st_again.st_size);
    (void) unlink(again);
    CU_ASSERT_EQUAL(rmdir(folder), -1);
    CU_ASSERT_EQUAL(errno, ENOTEMPTY); /* because of @path alone */
    (void) unlink(path);
    CU_ASSERT_EQUAL(rmdir(folder), 0);

    EXPECT_REFUSED(&f, kvc_stats_load(f.a, path, NULL, &t), -ENOENT, path);
    EXPECT_REFUSED(&f, kvc_stats_load(f.a, "/dev/null", NULL, &t), -EINVAL, "/dev/null");
    api_deinit(&f);
}

/* Gradients by keys after RoPE are rotated back and leave out sinks. */
static void test_gradients(void)
{
    enum { N = 8, FIRST = 3, ROW = API_KV_HEADS * API_DIM };
    struct api f;
    kvc_stats_gradients x = {.struct_bytes = sizeof(x), .keys = KVC_KEYS_AFTER_ROPE, .n = N};
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    float g[N * ROW] = {0};
    const double *sum;
    kvc_stats *s;

    api_init(&f);
    s = api_stats(&f, 0);
    EXPECT_REFUSED(&f, kvc_stats_add_gradients(s, &x), -EINVAL, "gradients of layer 0 are NULL");
    x.g = g;
    x.side = 2;
    EXPECT_REFUSED(&f, kvc_stats_add_gradients(s, &x), -EINVAL, "side 2 is none");
    x.side = KVC_K;
    x.layer = API_LAYERS;
    EXPECT_REFUSED(&f, kvc_stats_add_gradients(s, &x), -EINVAL, "the model has 2 layers");

    /* layer 0, head 1: the token at position 5 has gradient (1, 0, ...) by its rotated key; the angle of
     * plane 0 is the position. By the key before RoPE it is (cos 5, ..., -sin 5 at 16, ...) */
    x.layer = 0;
    g[2 * ROW] = 100; /* position 2 is a sink */
    g[5 * ROW + API_DIM] = 1;
    CU_ASSERT_EQUAL(kvc_stats_add_gradients(s, &x), 0);
    sum = s->sums->fisher + head_side_index(&f.g, 0, 1, SIDE_K) * API_DIM * API_DIM;
    CU_ASSERT_DOUBLE_EQUAL(sum[0], cos(5) * cos(5), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(sum[16], -sin(5) * cos(5), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(sum[16 * API_DIM + 16], sin(5) * sin(5), 1e-6);
    sum = s->sums->fisher + head_side_index(&f.g, 0, 0, SIDE_K) * API_DIM * API_DIM;
    CU_ASSERT_EQUAL(sum[0], 0);
    CU_ASSERT_EQUAL(s->sums->n_fisher, N - 4);

    x.position = FIRST; /* no sinks */
    CU_ASSERT_EQUAL(kvc_stats_add_gradients(s, &x), 0);
    CU_ASSERT_EQUAL(s->sums->n_fisher, 2 * N - 4);
    g[0] = NAN;
    EXPECT_REFUSED(&f, kvc_stats_add_gradients(s, &x), -EINVAL, "a gradient of layer 0 head 0 is not finite");
    CU_ASSERT_EQUAL(kvc_stats_get_info(s, &info), 0);
    CU_ASSERT_EQUAL(info.gradients, 1);
    api_deinit(&f);
}

/* A file of moments becomes statistics without vectors, with the metric of others or squared error. */
static void test_moments(void)
{
    char path[] = "/tmp/kvc-test-moments-XXXXXX";
    int fd = mkstemp(path);
    struct api f;
    struct moments_options mo = {.model_digest = {1, 2, 3}, .n_sink = 4};
    struct moments *m = NULL;
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    kvc_solve_options so = {.struct_bytes = sizeof(so), .bpd = 3};
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    kvc_stats_gradients g = {.struct_bytes = sizeof(g), .n = API_WINDOW};
    kvc_stats *metric, *s = NULL;
    kvc_stats_layer x;
    struct errmsg e = {""};
    void *bytes = NULL;
    size_t n = 0;

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    api_init(&f);
    metric = api_stats(&f, KVC_WITH_OUTPUT);
    api_add_windows(&f, metric, 0, 3);
    mo.geometry = f.g;
    CU_ASSERT_EQUAL_FATAL(moments_new(&mo, &m, &e), 0);
    for (uint32_t layer = 0; layer < API_LAYERS; layer++)
        for (unsigned i = 0; i < 3; i++) {
            x = api_layer(&f, i, layer);
            CU_ASSERT_EQUAL(moments_add(m, layer, 0, API_KV_HEADS, API_WINDOW, x.k, x.v, &e), 0);
        }
    CU_ASSERT_EQUAL_FATAL(moments_save(m, path, &e), 0);

    CU_ASSERT_EQUAL_FATAL(kvc_stats_load(f.a, path, metric, &s), 0);
    CU_ASSERT_EQUAL(kvc_stats_get_info(s, &info), 0);
    CU_ASSERT_EQUAL(info.moments, 1);
    CU_ASSERT_EQUAL(info.samples, 0);
    CU_ASSERT_EQUAL(info.file_bytes, 0);
    CU_ASSERT_EQUAL(kvc_solve(s, &so, &bytes, &n, &report), 0);
    CU_ASSERT_EQUAL(report.metric, KVC_METRIC_OUTPUT);
    CU_ASSERT_EQUAL(report.measured, 0);
    free(bytes);
    bytes = NULL;
    x = api_layer(&f, 9, 0);
    EXPECT_REFUSED(&f, kvc_stats_add_layer(s, &x), -EINVAL, "add tokens to the moments");
    g.g = f.x.k;
    EXPECT_REFUSED(&f, kvc_stats_add_gradients(s, &g), -EINVAL, "made of moments");
    EXPECT_REFUSED(&f, kvc_stats_merge(metric, s), -EINVAL, "merge the moments");
    EXPECT_REFUSED(&f, kvc_stats_save(s, "never-written"), -EINVAL, "moments");

    CU_ASSERT_EQUAL_FATAL(kvc_stats_load(f.a, path, NULL, &s), 0);
    CU_ASSERT_EQUAL(kvc_solve(s, &so, &bytes, &n, &report), 0);
    CU_ASSERT_EQUAL(report.metric, KVC_METRIC_MSE);
    free(bytes);
    (void) moments_free(m);
    (void) unlink(path);
    api_deinit(&f);
}

static void test_sources(void)
{
    struct api f;
    kvc_stats_source x = {.struct_bytes = sizeof(x), .bytes = 10, .tokens = 7, .windows = 1, .window = 8};
    kvc_stats_source got = {.struct_bytes = sizeof(got)};
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    kvc_stats *s;

    api_init(&f);
    s = api_stats(&f, 0);
    x.kind = 3;
    EXPECT_REFUSED(&f, kvc_stats_add_source(s, &x), -EINVAL, "unknown kind 3");
    x.kind = KVC_SOURCE_LINES;
    CU_ASSERT_EQUAL(kvc_stats_add_source(s, &x), 0);
    CU_ASSERT_EQUAL(kvc_stats_add_source(s, &x), 0);
    CU_ASSERT_EQUAL(kvc_stats_get_info(s, &info), 0);
    CU_ASSERT_EQUAL(info.sources, 1);
    CU_ASSERT_EQUAL(kvc_stats_get_source(s, 0, &got), 0);
    CU_ASSERT_EQUAL(got.tokens, 14);
    CU_ASSERT_EQUAL(got.kind, KVC_SOURCE_LINES);
    EXPECT_REFUSED(&f, kvc_stats_get_source(s, 1, &got), -EINVAL, "text 1 of 1");
    EXPECT_REFUSED(&f, kvc_stats_set_kl_per_distortion(s, -1), -EINVAL, "a KL of -1 per distortion");
    CU_ASSERT_EQUAL(kvc_stats_set_kl_per_distortion(s, 0.5), 0);
    CU_ASSERT_EQUAL(kvc_stats_set_kl_per_distortion(NULL, 0.5), -EINVAL);
    CU_ASSERT_EQUAL(kvc_stats_get_info(s, &info), 0);
    CU_ASSERT_EQUAL(info.kl_per_distortion, 0.5);
    api_deinit(&f);
}

/* Without an allocator there is no sentence, only the errno, and no output. */
static void test_without_allocator(void)
{
    struct api f;
    kvc_stats_options o;
    kvc_stats_estimate estimate = {.struct_bytes = sizeof(estimate)};
    kvc_stats *s = NULL;
    kvc_table_view *view = NULL;

    api_init(&f);
    o = api_options(&f, 0);
    CU_ASSERT_EQUAL(kvc_alloc_new(NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_stats_new(NULL, &o, &s), -EINVAL);
    CU_ASSERT_EQUAL(kvc_stats_get_estimate(NULL, &o, 10, &estimate), -EINVAL);
    CU_ASSERT_EQUAL(kvc_stats_load(NULL, "/nonexistent", NULL, &s), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_view_new(NULL, "x", 1, &view), -EINVAL);
    CU_ASSERT(!s && !view && estimate.stats_bytes == 0);
    api_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_without_allocator),
    TEST(test_options),
    TEST(test_estimate),
    TEST(test_largest_position),
    TEST(test_refused_layers),
    TEST(test_half_failed_window),
    TEST(test_merge),
    TEST(test_files),
    TEST(test_gradients),
    TEST(test_moments),
    TEST(test_sources),
    TEST_END,
};
