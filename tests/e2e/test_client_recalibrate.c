/*
 * kvcobra recalibrate from end to end. Clients encode other vectors than the table was made for: a better
 * table is active afterwards. Without drift none is made.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/moments/moments.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_moments.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/alloc/shapes.h"

static const char *const args[] = {"--pool-bytes=64M", "--arena-bytes=8M", "--moments-bytes=16M", NULL};

enum { N = 2048 };

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 32);
}

/* Number i of a stream, about normal: the sum of twelve uniform numbers of variance 1/12. */
static double noise(uint64_t stream, uint64_t i)
{
    double sum = -6;

    for (uint64_t k = 0; k < 12; k++) {
        uint64_t x = splitmix64_mix((stream * 1000003 + i) * 12 + k);

        sum += (double) (x >> 11) * 0x1p-53;
    }
    return sum;
}

/* Variances fall by 4 from coordinate to coordinate over half of them; @drifted: in the reverse order. */
static void draw(const struct geometry *g, bool drifted, uint64_t stream, size_t n, float *ret)
{
    for (size_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < g->n_kv_heads; h++)
            for (uint32_t i = 0; i < g->d; i++) {
                uint32_t at = drifted ? g->d - 1 - i : i;
                size_t index = (t * g->n_kv_heads + h) * g->d + i;

                ret[index] = (float) (noise(stream, index) * pow(0.5, at < 8 ? at : 8));
            }
}

static float *vectors(const struct geometry *g, bool drifted, uint64_t stream, size_t n)
{
    float *x = malloc(n * g->n_kv_heads * g->d * sizeof(*x));

    assert(x);
    draw(g, drifted, stream, n, x);
    return x;
}

/* Calibration statistics of the model, with queries or with squared error as the only metric. */
static struct stats *statistics(const struct geometry *g, bool with_queries)
{
    struct stats *s = NULL;
    struct stats_options o;
    struct shape_data x;
    struct errmsg e = {""};

    stats_options_default(&o, g);
    memcpy(o.model_digest, random_table_model_digest, sizeof(o.model_digest));
    o.n_samples = 64;
    o.want_attention = with_queries;
    o.want_output = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, g, 256);
    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        shape_data_draw(&x, g);
        if (with_queries)
            CU_ASSERT_EQUAL(stats_set_output_projection(s, layer, x.wo, x.n_embd, &e), 0);
        CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, layer, 256, with_queries ? x.q : NULL, x.k, x.v, NULL, &e),
                        0);
    }
    shape_data_deinit(&x);
    return s;
}

/*
 * Makes a table for vectors of one kind, as recalibration would make it, in sc->bytes.
 * @metric: NULL: squared error.
 */
static void make_table_from(struct scene *sc, bool drifted, const struct stats *metric,
                            enum prediction v_from)
{
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(stats_freep) struct stats *s = NULL;
    struct moments_options o = {.geometry = sc->g, .n_sink = 4};
    struct solve_options so;
    struct solve_report report;
    struct errmsg e = {""};

    memcpy(o.model_digest, random_table_model_digest, sizeof(o.model_digest));
    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
    for (uint32_t layer = 0; layer < sc->g.n_layers; layer++) {
        float *k = vectors(&sc->g, drifted, 2 * layer, N), *v = vectors(&sc->g, drifted, 2 * layer + 1, N);

        CU_ASSERT_EQUAL(moments_add(m, layer, 0, sc->g.n_kv_heads, N, k, v, &e), 0);
        free(k);
        free(v);
    }
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, metric, &s, &e), 0);
    solve_options_default(&so, 2);
    so.metric = metric ? METRIC_ATTENTION : METRIC_MSE;
    so.curve = CURVE_GAUSSIAN;
    so.fit_levels = so.depth_weights = false;
    free(sc->bytes);
    sc->bytes = NULL;
    so.v_from = v_from;
    so.decoder = DECODER_INVERSE;
    if (solve_table(s, &so, &sc->bytes, &sc->n_bytes, &report, &e) < 0)
        printf("    %s\n", e.text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(sc->bytes);
}

static void activate_table_from(struct scene *sc, bool drifted, const struct stats *metric,
                                enum prediction v_from)
{
    uint8_t digest[KVC_DIGEST_BYTES];

    make_table_from(sc, drifted, metric, v_from);
    CU_ASSERT(operator_stage_table(sc->control, sc->bytes, sc->n_bytes, digest, NULL) >= 0);
    CU_ASSERT_EQUAL_FATAL(operator_activate_table(sc->control, digest, 0, NULL, NULL), 0);
}

static void activate_table_for(struct scene *sc, bool drifted, const struct stats *metric)
{
    activate_table_from(sc, drifted, metric, PREDICT_HEAD);
}

/* A client with reports switched on encodes N tokens of one kind. */
static void encode_live(struct scene *sc, bool drifted, uint32_t text)
{
    const kvc_report_options all = {sizeof(all), 1000000, 1};
    struct embedded m = scene_client(sc);
    uint32_t *tokens = scene_tokens(text, N);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_model_report(m.model, &all), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    for (uint32_t layer = 0; layer < sc->g.n_layers; layer++) {
        float *k = vectors(&sc->g, drifted, 100 + 2 * layer + 10 * text, N);
        float *v = vectors(&sc->g, drifted, 101 + 2 * layer + 10 * text, N);

        CU_ASSERT_EQUAL_FATAL(kvc_seq_append(s, layer, KVC_F32, k, v, N), 0);
        free(k);
        free(v);
    }
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, N, &n), 0);
    CU_ASSERT(n > 0);
    free(tokens);
    embedded_free(&m);
}

/* Starts "kvcobra recalibrate --socket ... ARGS". */
static pid_t recalibrate_start(const struct scene *sc, const char *const *more)
{
    const char *argv[16] = {getenv("KVC_KVCOBRA"), "recalibrate", "--socket", sc->daemon.operator_socket,
                            "--yes"};
    size_t n = 5;
    pid_t pid;

    assert(argv[0]);
    if (!more || strcmp(more[0], "--table") != 0) { /* a given table needs no moments */
        argv[n++] = "--min-tokens";
        argv[n++] = "1000";
    }
    for (; more && *more; more++)
        argv[n++] = *more;
    (void) fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void) execv(argv[0], (char *const *) argv);
        _exit(127);
    }
    assert(pid > 0);
    return pid;
}

/* Return: its exit status. */
static int recalibrate_end(pid_t pid)
{
    int status = 0;
    pid_t ended = waitpid(pid, &status, 0);

    assert(ended == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int recalibrate(const struct scene *sc, const char *const *more)
{
    return recalibrate_end(recalibrate_start(sc, more));
}

static void active_digest(struct scene *sc, uint8_t ret[KVC_DIGEST_BYTES])
{
    Kvcobra__ListTablesReply *tables = NULL;

    CU_ASSERT_EQUAL_FATAL(operator_list_tables(sc->control, &tables, NULL), 0);
    for (size_t i = 0; i < tables->n_tables; i++)
        if (tables->tables[i]->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE)
            memcpy(ret, tables->tables[i]->digest.data, KVC_DIGEST_BYTES);
    operator_message_freep(&tables);
}

static bool same_active(struct scene *sc, const uint8_t digest[KVC_DIGEST_BYTES])
{
    uint8_t now[KVC_DIGEST_BYTES] = {0};

    active_digest(sc, now);
    return memcmp(now, digest, sizeof(now)) == 0;
}

static void begin(struct scene *sc)
{
    scene_start(sc, small(), 3, 1, args);
    activate_table_for(sc, false, NULL);
}

static void test_drift(void)
{
    struct scene sc;
    uint8_t before[KVC_DIGEST_BYTES], after[KVC_DIGEST_BYTES];

    begin(&sc);
    active_digest(&sc, before);
    CU_ASSERT_EQUAL(recalibrate(&sc, NULL), 1); /* no client has reported */
    encode_live(&sc, true, 1);
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--dry-run", NULL}), 0);
    CU_ASSERT(same_active(&sc, before));
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--tenant", "stranger", NULL}), 1);
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--min-tokens", "1000000", NULL}), 1);
    CU_ASSERT(same_active(&sc, before));
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--json", NULL}), 0);
    CU_ASSERT_FALSE(same_active(&sc, before));
    active_digest(&sc, after);
    CU_ASSERT_EQUAL(recalibrate(&sc, NULL), 0); /* the same moments do not move it again */
    CU_ASSERT(same_active(&sc, after));
    scene_end(&sc);
}

static void test_no_drift(void)
{
    struct scene sc;
    uint8_t before[KVC_DIGEST_BYTES];

    begin(&sc);
    active_digest(&sc, before);
    encode_live(&sc, false, 1);
    CU_ASSERT_EQUAL(recalibrate(&sc, NULL), 3);
    CU_ASSERT(same_active(&sc, before));
    scene_end(&sc);
}

/* Recalibration with the metric of a calibration, and without one. */
static void test_metric(void)
{
    _cleanup_(stats_freep) struct stats *with = NULL, *without = NULL;
    char with_path[160], without_path[160];
    struct scene sc;
    uint8_t before[KVC_DIGEST_BYTES];
    struct errmsg e = {""};

    scene_start(&sc, small(), 3, 1, args);
    with = statistics(&sc.g, true);
    without = statistics(&sc.g, false);
    (void) snprintf(with_path, sizeof(with_path), "%s/with.stats", sc.daemon.folder);
    (void) snprintf(without_path, sizeof(without_path), "%s/without.stats", sc.daemon.folder);
    CU_ASSERT_EQUAL_FATAL(stats_save(with, with_path, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_save(without, without_path, &e), 0);
    activate_table_for(&sc, false, with);
    active_digest(&sc, before);
    encode_live(&sc, true, 1);
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--stats", without_path, NULL}), 1);
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--stats", "/nowhere", NULL}), 1);
    CU_ASSERT(same_active(&sc, before));
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--stats", with_path, NULL}), 0);
    CU_ASSERT_FALSE(same_active(&sc, before));
    scene_end(&sc);
}

/* New clients connect while the new table is a shadow. */
static bool clients(const struct scene *sc, int from_parent, int to_parent)
{
    struct scene mine = *sc;

    (void) from_parent;
    (void) to_parent;
    for (uint32_t text = 10;; text++) /* until it is killed */
        encode_live(&mine, true, text);
    return true;
}

static void test_shadow_first(void)
{
    struct scene sc;
    struct child c;
    uint8_t before[KVC_DIGEST_BYTES];

    begin(&sc);
    active_digest(&sc, before);
    encode_live(&sc, true, 1);
    CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--shadow-tokens", "1000", "--wait", "1", NULL}),
                    1);
    CU_ASSERT(same_active(&sc, before)); /* no client reported before the time was over */
    c = child_start(clients, &sc);
    CU_ASSERT_EQUAL(
        recalibrate(&sc, (const char *const[]){"--shadow-tokens", "1000", "--share", "100", NULL}), 0);
    CU_ASSERT_FALSE(same_active(&sc, before));
    child_kill(&c);
    scene_end(&sc);
}

/* The stages, alone, on a table without prediction. A solve needs more tokens than a refit. */
static void test_stages(void)
{
    static const char *const stages[] = {"refit", "solve"};

    for (size_t i = 0; i < 2; i++) {
        struct scene sc;
        uint8_t before[KVC_DIGEST_BYTES];

        scene_start(&sc, small(), 3, 1, args);
        activate_table_from(&sc, false, NULL, PREDICT_NONE);
        active_digest(&sc, before);
        encode_live(&sc, true, 1);
        if (i == 1) {
            CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--stage", "solve", NULL}), 1);
            CU_ASSERT(same_active(&sc, before));
            for (uint32_t text = 2; (text - 1) * (N - 128) < 50000; text++) /* the newest stay exact */
                encode_live(&sc, true, text);
        }
        CU_ASSERT_EQUAL(recalibrate(&sc, (const char *const[]){"--stage", stages[i], NULL}), 0);
        CU_ASSERT_FALSE(same_active(&sc, before));
        scene_end(&sc);
    }
}

/* As clients(), but the traffic is again that of the first table. */
static bool returned_clients(const struct scene *sc, int from_parent, int to_parent)
{
    struct scene mine = *sc;

    (void) from_parent;
    (void) to_parent;
    for (uint32_t text = 10;; text++) /* until it is killed */
        encode_live(&mine, false, text);
    return true;
}

static const char *const canary_args[] = {"--canary-tokens", "500", "--canary-share", "50", NULL};

/* Moments of drift, but the drift is over when the new table is a canary: it ends, the first table stays. */
static void test_worse_canary(void)
{
    struct scene sc;
    struct child c;
    uint8_t before[KVC_DIGEST_BYTES];
    Kvcobra__ListTablesReply *tables = NULL;
    bool measured = false;

    begin(&sc);
    active_digest(&sc, before);
    encode_live(&sc, true, 1);
    c = child_start(returned_clients, &sc);
    CU_ASSERT_EQUAL(recalibrate(&sc, canary_args), 3);
    CU_ASSERT(same_active(&sc, before));
    CU_ASSERT_EQUAL_FATAL(operator_list_tables(sc.control, &tables, NULL), 0);
    for (size_t i = 0; i < tables->n_tables;
         i++) { /* it was really used and measured, and no sequence gets it now */
        measured =
            measured || (tables->tables[i]->state != KVCOBRA__TABLE_STATE__TABLE_ACTIVE &&
                         tables->tables[i]->fit->tokens >= 500 && tables->tables[i]->fit->error_k > 0.5);
        CU_ASSERT_EQUAL(tables->tables[i]->canary_share, 0);
    }
    CU_ASSERT(measured);
    operator_message_freep(&tables);
    child_kill(&c);
    scene_end(&sc);
}

/* A table for drifted vectors is tried, without moments; @drifted: the traffic. */
static void check_given_table(bool drifted)
{
    char path[160];
    const char *with_table[] = {"--table", path, "--canary-tokens", "500", "--canary-share", "50", NULL};
    struct scene sc;
    struct child c;
    uint8_t before[KVC_DIGEST_BYTES];
    struct errmsg e = {""};

    begin(&sc);
    active_digest(&sc, before);
    (void) snprintf(path, sizeof(path), "%s/given.table", sc.daemon.folder);
    CU_ASSERT_EQUAL(recalibrate(&sc, with_table), 1); /* there is no such file */
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(path, sc.bytes, sc.n_bytes, &e), 0);
    CU_ASSERT_EQUAL(recalibrate(&sc, with_table), 0); /* it is active already */
    make_table_from(&sc, true, NULL, PREDICT_HEAD);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(path, sc.bytes, sc.n_bytes, &e), 0);
    c = child_start(drifted ? clients : returned_clients, &sc);
    CU_ASSERT_EQUAL(recalibrate(&sc, with_table), drifted ? 0 : 3);
    CU_ASSERT_EQUAL(same_active(&sc, before), !drifted);
    child_kill(&c);
    scene_end(&sc);
}

/* Moments that no arena can hold are refused with the size that is needed, and errors alone are measured. */
static void test_moments_beyond_the_arena(void)
{
    static const char *const small_arenas[] = {"--pool-bytes=64M", "--arena-bytes=1M", "--moments-bytes=16M",
                                               NULL};
    const kvc_report_options all = {sizeof(all), 1000000, 1}, errors = {sizeof(errors), 1000000, 0};
    struct scene sc;
    struct embedded m;

    scene_start(&sc, random_table_geometry(4, 8, 4, 64), 3, 1, small_arenas);
    activate_table_for(&sc, false, NULL);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL(kvc_model_report(m.model, &all), -ENOSPC);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "arena-bytes of at least 1049K"));
    CU_ASSERT_EQUAL(kvc_model_report(m.model, &errors), 0);
    embedded_free(&m);
    scene_end(&sc);
}

/* Rolled back where it is worse, activated where it is better. */
static void test_given_table(void)
{
    check_given_table(false);
    check_given_table(true);
}

/* The share of new sequences that use a canary, of 256. */
static uint32_t canary_share(struct scene *sc)
{
    Kvcobra__ListTablesReply *tables = NULL;
    uint32_t share = 0;

    CU_ASSERT_EQUAL_FATAL(operator_list_tables(sc->control, &tables, NULL), 0);
    for (size_t i = 0; i < tables->n_tables; i++)
        share += tables->tables[i]->canary_share;
    operator_message_freep(&tables);
    return share;
}

/* A service manager stops the command while the canary waits for clients: the canary ends too. */
static void test_stopped_canary(void)
{
    struct scene sc;
    uint8_t before[KVC_DIGEST_BYTES];
    pid_t pid;

    begin(&sc);
    active_digest(&sc, before);
    encode_live(&sc, true, 1);
    pid = recalibrate_start(&sc, canary_args);
    for (struct wait w = wait_begin(); canary_share(&sc) == 0 && wait_again(&w);)
        ;
    CU_ASSERT(canary_share(&sc) > 0);
    CU_ASSERT_EQUAL(kill(pid, SIGTERM), 0);
    CU_ASSERT_EQUAL(recalibrate_end(pid), 1);
    CU_ASSERT_EQUAL(canary_share(&sc), 0);
    CU_ASSERT(same_active(&sc, before));
    scene_end(&sc);
}

static void test_good_canary(void)
{
    struct scene sc;
    struct child c;
    uint8_t before[KVC_DIGEST_BYTES];

    begin(&sc);
    active_digest(&sc, before);
    encode_live(&sc, true, 1);
    c = child_start(clients, &sc);
    CU_ASSERT_EQUAL(recalibrate(&sc, canary_args), 0);
    CU_ASSERT_FALSE(same_active(&sc, before));
    child_kill(&c);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_drift),
    TEST(test_no_drift),
    TEST(test_metric),
    TEST(test_shadow_first),
    TEST(test_worse_canary),
    TEST(test_stages),
    TEST(test_good_canary),
    TEST(test_stopped_canary),
    TEST(test_moments_beyond_the_arena),
    TEST(test_given_table),
    TEST_END,
};
const char test_suite[] = "client_recalibrate";
