/*
 * Tables on trial with live traffic: shadows, with which clients encode too, canaries, which some sequences
 * use, and the clients' reports of the fit; also over a restart.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const args[] = {"--pool-bytes=64M", "--arena-bytes=8M", "--moments-bytes=16M", NULL};

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* Only its numbers are valid, and its fit until the next call. */
static Kvcobra__TableInfo info_of(struct scene *sc, const uint8_t *digest)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    Kvcobra__TableInfo found = {.bpd_code = -1};
    static Kvcobra__Fit fit;

    CU_ASSERT_EQUAL_FATAL(operator_list_tables(sc->control, &list, NULL), 0);
    for (size_t i = 0; i < list->n_tables; i++)
        if (memcmp(list->tables[i]->digest.data, digest, KVC_DIGEST_BYTES) == 0)
            found = *list->tables[i];
    CU_ASSERT_FATAL(found.bpd_code >= 0);
    fit = *found.fit;
    found.fit = &fit;
    return found;
}

/* Stages a second table, which is verified and not active. */
static void stage_other(struct scene *sc, double bpd, uint64_t seed, uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&sc->g, seed, bpd, true, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(operator_stage_table(sc->control, bytes, n, ret_digest, NULL), 0);
}

static void active_digest(const struct embedded *m, uint8_t ret[KVC_DIGEST_BYTES])
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(m->model, &info), 0);
    memcpy(ret, info.table_digest, KVC_DIGEST_BYTES);
}

/*
 * sum |x - x^|^2 of one side and layer over chunks [1, n / 64) of text 0, from the values that a private
 * sequence reads back: the numerator of the reported error. Positions and inputs are those of embedded.h.
 */
static double error_sum(const struct embedded *alone, kvc_seq *s, uint32_t layer, enum kvc_side side,
                        size_t n)
{
    size_t width = (size_t) alone->n_heads * alone->g.d;
    float *x = embedded_input(alone, 0, layer, side, 0, n), *y = embedded_read(alone, s, layer, side, n);
    double sum = 0;

    for (size_t i = 64 * width; i < n * width; i++)
        sum += ((double) x[i] - y[i]) * ((double) x[i] - y[i]);
    free(x);
    free(y);
    return sum;
}

enum { N = 1000, PACKED = 896 }; /* tokens; 1000 / 64 = 15, the newest 64 stay: 14 chunks */

struct trial {
    struct scene sc;
    struct embedded m;
    uint8_t active[KVC_DIGEST_BYTES], other[KVC_DIGEST_BYTES]; /* digests of the two tables */
};

/* The daemon serves a table of 3 bpd; another one of @bpd is staged. */
static void trial_start(struct trial *t, double bpd)
{
    scene_start(&t->sc, small(), 3, 1, args);
    t->m = scene_client(&t->sc);
    active_digest(&t->m, t->active);
    stage_other(&t->sc, bpd, 2, t->other);
}

static void trial_end(struct trial *t)
{
    embedded_free(&t->m);
    scene_end(&t->sc);
}

/* ---- shadows ---- */

static void test_shadow_requests(void)
{
    struct trial t;
    kvc_client *op;
    Kvcobra__TableInfo info;
    uint64_t revision = 0, again = 0;

    trial_start(&t, 2);
    op = t.sc.control;
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.active, 1000000, 0, &revision, NULL), -EBUSY);
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 1000001, 0, &revision, NULL), -EINVAL);
    /* no change: the table is not a shadow */
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 0, 0, &revision, NULL), 1);
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 1000000, 0, &revision, NULL), 0);
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 1000000, 0, &again, NULL), 1);
    CU_ASSERT_EQUAL(again, revision);
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 500000, revision, &again, NULL), -EEXIST);
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 500000, revision - 1, &again, NULL), -ESTALE);
    info = info_of(&t.sc, t.other);
    CU_ASSERT(info.state == KVCOBRA__TABLE_STATE__TABLE_SHADOW && info.shadow_ppm == 1000000 &&
              info.fit->shadow_tokens == 0);

    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 0, 0, &again, NULL), 0);
    CU_ASSERT_EQUAL(info_of(&t.sc, t.other).state, KVCOBRA__TABLE_STATE__TABLE_VERIFIED);
    CU_ASSERT(again > revision);
    CU_ASSERT_EQUAL(operator_shadow_table(op, t.other, 1000, 0, NULL, NULL), 0);
    CU_ASSERT_EQUAL(operator_activate_table(op, t.other, 0, NULL, NULL), 0); /* ends the trial */
    info = info_of(&t.sc, t.other);
    CU_ASSERT(info.state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE && info.shadow_ppm == 0);
    trial_end(&t);
}

/* A private model with the tokens of text 0 packed by the scene's table. */
static struct embedded packed_alone(const struct scene *sc, const uint32_t *tokens, kvc_seq **ret)
{
    struct embedded alone = scene_private(sc);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, ret), 0);
    CU_ASSERT_EQUAL(embedded_append(&alone, *ret, 0, 0, N), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(*ret, tokens, N, NULL), 0);
    return alone;
}

/*
 * The ratio of the reported errors of the shadow and the active table is that of the errors
 * of their decoded values.
 */
static void check_reported_errors(struct scene *sc, const uint32_t *tokens, const Kvcobra__GetFitReply *fit)
{
    kvc_seq *active, *shadow;
    struct embedded alone_active = packed_alone(sc, tokens, &active), alone_shadow;

    free(sc->bytes);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&sc->g, 2, 2, true, &sc->bytes, &sc->n_bytes), 0);
    alone_shadow = packed_alone(sc, tokens, &shadow);
    for (uint32_t layer = 0; layer < sc->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            const Kvcobra__LayerSums *x = fit->shadow[layer];
            double ratio = side == KVC_K ? x->shadow_k / x->error_k : x->shadow_v / x->error_v;
            double expected = error_sum(&alone_shadow, shadow, layer, (enum kvc_side) side, PACKED) /
                              error_sum(&alone_active, active, layer, (enum kvc_side) side, PACKED);

            /*
             * the client measures the values of its tail, in binary16: 2^-11 of a vector, against
             * errors of about 2^-2
             */
            CU_ASSERT(fabs(ratio / expected - 1) < 0.01);
        }
    embedded_free(&alone_active);
    embedded_free(&alone_shadow);
}

static void test_shadow_errors(void)
{
    struct trial t;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, N);
    _cleanup_(operator_message_freep) Kvcobra__GetFitReply *got = NULL;
    size_t n = 0;

    trial_start(&t, 2);
    CU_ASSERT_EQUAL(operator_shadow_table(t.sc.control, t.other, 1000000, 0, NULL, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t.m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&t.m, s, 0, 0, N), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, N, &n), 0);
    CU_ASSERT_EQUAL(n, PACKED);
    CU_ASSERT_EQUAL_FATAL(operator_get_fit(t.sc.control, t.other, &got, NULL), 0);
    CU_ASSERT_EQUAL(got->fit->shadow_tokens, PACKED - 64);
    CU_ASSERT_EQUAL_FATAL(got->n_shadow, t.sc.g.n_layers);
    check_reported_errors(&t.sc, tokens, got);
    CU_ASSERT(got->fit->shadow_error_k > got->fit->active_error_k); /* 2 bits against 3 */
    free(tokens);
    trial_end(&t);
}

/* ---- canaries ---- */

/* About the given share of new sequences uses the canary. */
static void test_canary_share(void)
{
    enum { SEQUENCES = 40 };
    struct trial t;
    kvc_seq *seqs[SEQUENCES];

    trial_start(&t, 3);
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.other, 256, NULL, 0, 0, NULL, NULL), -EINVAL);
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.active, 10, NULL, 0, 0, NULL, NULL), -EBUSY);
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.other, 64, NULL, 0, 0, NULL, NULL), 0);
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.other, 64, NULL, 0, 0, NULL, NULL), 1);
    for (size_t i = 0; i < SEQUENCES; i++) {
        size_t published = 0;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t.m.model, "salt", 4, &seqs[i]), 0);
        CU_ASSERT_EQUAL(scene_publish(&t.m, seqs[i], (uint32_t) i, 0, 200, 200, &published), 0);
        CU_ASSERT_EQUAL(published, 128);
    }
    CU_ASSERT_EQUAL(info_of(&t.sc, t.other).references, 1);
    /*
     * 40 sequences have 2 pages each and use the canary with a chance of a quarter: none or all do with a
     * chance below 2 in 10^5
     */
    CU_ASSERT(info_of(&t.sc, t.other).pages > 0 && info_of(&t.sc, t.other).pages < 2 * SEQUENCES);
    CU_ASSERT_EQUAL(info_of(&t.sc, t.other).pages + info_of(&t.sc, t.active).pages, 2 * SEQUENCES);
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.other, 0, NULL, 0, 0, NULL, NULL), 0);
    CU_ASSERT_EQUAL(info_of(&t.sc, t.other).state, KVCOBRA__TABLE_STATE__TABLE_DRAINING); /* it was used */
    for (size_t i = 0; i < SEQUENCES; i++)
        kvc_seq_free(seqs[i]);
    trial_end(&t);
}

/* All new sequences of a tenant use the canary, and none after its end. */
static void test_canary_tenant(void)
{
    struct trial t;
    uint8_t now[KVC_DIGEST_BYTES];
    const char *tenant;
    Kvcobra__StatusReply *status;

    trial_start(&t, 3);
    status = scene_status(&t.sc);
    tenant = status->tenants[0]->name;
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.other, 0, &tenant, 1, 0, NULL, NULL), 0);
    status = scene_status_free(status);
    CU_ASSERT_EQUAL(info_of(&t.sc, t.other).canary_tenants, 1);
    active_digest(&t.m, now); /* the table of this tenant's next sequence */
    CU_ASSERT_EQUAL(memcmp(now, t.other, sizeof(now)), 0);
    CU_ASSERT_EQUAL(operator_canary_table(t.sc.control, t.other, 0, NULL, 0, 0, NULL, NULL), 0);
    active_digest(&t.m, now);
    CU_ASSERT_EQUAL(memcmp(now, t.active, sizeof(now)), 0);
    trial_end(&t);
}

/* ---- reports ---- */

/* Without the program's consent nothing is reported. */
static void test_no_report(void)
{
    struct trial t;
    _cleanup_(freep) void *bytes = NULL;
    kvc_seq *s = NULL;
    size_t n = 0, n_bytes = 0;
    uint64_t n_tokens = 0;

    trial_start(&t, 3);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t.m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&t.m, s, 1, 0, N, N, &n), 0);
    CU_ASSERT_EQUAL(info_of(&t.sc, t.active).fit->reports, 0);
    CU_ASSERT_EQUAL(operator_fetch_moments(t.sc.control, random_table_model_digest, NULL, 0, &bytes, &n_bytes,
                                           &n_tokens, NULL),
                    -ENODATA);
    trial_end(&t);
}

/* Publishes text 0 and reports every chunk. */
static void publish_reported(struct trial *t)
{
    const kvc_report_options all = {sizeof(all), 1000000, 1};
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_model_report(t->m.model, &all), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t->m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&t->m, s, 0, 0, N, N, &n), 0);
}

static void test_reported_errors(void)
{
    kvc_model_fit fit = {.struct_bytes = sizeof(fit)};
    struct trial t;
    Kvcobra__TableInfo info;

    trial_start(&t, 3);
    publish_reported(&t);
    CU_ASSERT_EQUAL(kvc_model_get_fit(t.m.model, &fit), 0);
    CU_ASSERT_EQUAL(fit.tokens, PACKED - 64); /* they stay after the report */
    info = info_of(&t.sc, t.active);
    CU_ASSERT_EQUAL(info.fit->reports, 1);
    CU_ASSERT_EQUAL(info.fit->tokens, PACKED - 64);
    for (unsigned side = 0; side < 2; side++) {
        double error = side == KVC_K ? info.fit->error_k : info.fit->error_v;
        uint64_t coded = side == KVC_K ? info.fit->coded_k : info.fit->coded_v;
        uint64_t saturated = side == KVC_K ? info.fit->saturated_k : info.fit->saturated_v;

        CU_ASSERT(error > 0 && error < 1);
        CU_ASSERT_DOUBLE_EQUAL(fit.error[side], error, 1e-12);
        /* reports count from the first measured chunk on */
        CU_ASSERT(fit.coded[side] >= coded && fit.coded[side] < 2 * coded);
        CU_ASSERT(fit.saturated[side] >= saturated);
    }
    CU_ASSERT(info.fit->coded_k > 0 && info.fit->saturated_k < info.fit->coded_k);
    trial_end(&t);
}

/* Numbers have relative errors of 2^-11 = 5e-4; the limit is that of their products, with a margin. */
static bool scatter_agrees(const struct moments *got, const struct moments *want, uint32_t layer,
                           uint32_t head, uint32_t d)
{
    const double *a = moments_scatter(got, layer, head), *b = moments_scatter(want, layer, head);
    size_t entries = (size_t) d * (2 * d + 1);
    double apart = 0, norm = 0;

    for (size_t i = 0; i < entries; i++) {
        apart += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return apart < 1e-5 * norm;
}

/*
 * Compares with moments of the same tokens, computed here for every head, within the
 * rounding of binary16 tails.
 */
static void check_moments(const struct scene *sc, const struct moments *got)
{
    _cleanup_(moments_freep) struct moments *want = NULL;
    struct moments_options o = *moments_get_options(got);
    struct embedded alone = scene_private(sc);
    struct errmsg e;

    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &want, &e), 0);
    for (uint32_t layer = 0; layer < sc->g.n_layers; layer++) {
        float *k = embedded_input(&alone, 0, layer, KVC_K, 64, PACKED - 64);
        float *v = embedded_input(&alone, 0, layer, KVC_V, 64, PACKED - 64);

        CU_ASSERT_EQUAL(moments_add(want, layer, 0, sc->g.n_kv_heads, PACKED - 64, k, v, &e), 0);
        free(k);
        free(v);
        for (uint32_t head = 0; head < sc->g.n_kv_heads; head++) {
            CU_ASSERT_EQUAL(moments_count(got, layer, head), PACKED - 64);
            CU_ASSERT(scatter_agrees(got, want, layer, head, sc->g.d));
        }
    }
    embedded_free(&alone);
}

static void test_reported_moments(void)
{
    struct trial t;
    _cleanup_(freep) void *bytes = NULL, *none = NULL;
    _cleanup_(moments_freep) struct moments *got = NULL;
    struct errmsg e;
    uint64_t n_tokens = 0;
    size_t n_bytes = 0;

    trial_start(&t, 3);
    publish_reported(&t);
    CU_ASSERT_EQUAL_FATAL(operator_fetch_moments(t.sc.control, random_table_model_digest, NULL, 0, &bytes,
                                                 &n_bytes, &n_tokens, NULL),
                          0);
    CU_ASSERT_EQUAL(n_tokens, PACKED - 64);
    CU_ASSERT_EQUAL_FATAL(moments_parse(bytes, n_bytes, &got, &e), 0);
    check_moments(&t.sc, got);
    CU_ASSERT_EQUAL(operator_fetch_moments(t.sc.control, random_table_model_digest,
                                           &(const char *){"stranger"}, 1, &none, &n_bytes, &n_tokens, NULL),
                    -ENODATA);
    trial_end(&t);
}

/* ---- restarts ---- */

/* Shadow, canary and revision are the same after a restart. */
static void test_survives_restart(void)
{
    struct scene sc = {.g = small()};
    struct daemon d;
    uint8_t shadow[KVC_DIGEST_BYTES], canary[KVC_DIGEST_BYTES];
    const char *tenants[] = {"uid-7", "uid-8"};
    uint64_t revision = 0;

    CU_ASSERT_FATAL(daemon_start(&d, DAEMON_BY_PATH | DAEMON_WITH_STATE, args));
    scene_attach(&sc, &d, small(), 3, 1);
    stage_other(&sc, 2, 2, shadow);
    stage_other(&sc, 2, 3, canary);
    CU_ASSERT_EQUAL(operator_shadow_table(sc.control, shadow, 25000, 0, NULL, NULL), 0);
    CU_ASSERT_EQUAL(operator_canary_table(sc.control, canary, 3, tenants, 2, 0, &revision, NULL), 0);
    sc.control = kvc_client_free(sc.control);
    daemon_kill(&d);
    CU_ASSERT_FATAL(daemon_start_again(&d, args));
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&sc.control), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(sc.control, d.operator_socket), 0);
    CU_ASSERT_EQUAL(info_of(&sc, shadow).state, KVCOBRA__TABLE_STATE__TABLE_SHADOW);
    CU_ASSERT_EQUAL(info_of(&sc, shadow).shadow_ppm, 25000);
    CU_ASSERT_EQUAL(info_of(&sc, canary).canary_share, 3);
    CU_ASSERT_EQUAL(info_of(&sc, canary).canary_tenants, 2);
    /* the revision is the same too */
    CU_ASSERT_EQUAL(operator_canary_table(sc.control, canary, 3, tenants, 2, revision, NULL, NULL), 1);
    scene_detach(&sc);
    CU_ASSERT(daemon_stop(&d));
}

const struct test_case test_cases[] = {
    TEST(test_shadow_requests),  TEST(test_shadow_errors),    TEST(test_canary_share),
    TEST(test_canary_tenant),    TEST(test_no_report),        TEST(test_reported_errors),
    TEST(test_reported_moments), TEST(test_survives_restart), TEST_END,
};
const char test_suite[] = "client_trial";
