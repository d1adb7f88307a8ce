/*
 * Tables tried on live traffic: shadows that clients encode with too, canaries that some sequences use, and
 * what clients report of the fit; over a restart too.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/e2e/client_lib.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const args[] = {"--pool-bytes=64M", "--arena-bytes=8M", "--moments-bytes=16M", NULL};

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

static kvc_table_info info_of(struct scene *sc, const uint8_t *digest)
{
    kvc_table_info *tables = NULL, found = {.bpd_code = -1};
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_table_list(sc->operator, sizeof(*tables), &tables, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (memcmp(tables[i].digest, digest, KVC_DIGEST_BYTES) == 0)
            found = tables[i];
    CU_ASSERT(found.bpd_code >= 0);
    free(tables);
    return found;
}

/* A second table, verified and not in use. */
static void stage_other(struct scene *sc, double bpd, uint64_t seed, uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&sc->g, seed, bpd, true, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_table_stage(sc->operator, bytes, n, ret_digest), 0);
}

static void active_digest(const struct embedded *m, uint8_t ret[KVC_DIGEST_BYTES])
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(m->model, &info), 0);
    memcpy(ret, info.table_digest, KVC_DIGEST_BYTES);
}

/*
 * sum |x - x^|^2 of one side over chunks [1, n / 64) of text 0, from what a private sequence reads back, by
 * layer; the numerator of what clients report. Positions and inputs are those of embedded.h.
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

/* The ratio of the shadow's to the active table's reported error is that of what the two tables decode to. */
static void test_shadow(void)
{
    enum { N = 1000, PACKED = 896 }; /* 1000 / 64 = 15, the newest 64 stay: 14 chunks */
    struct scene sc;
    struct embedded m, alone[2];
    kvc_seq *s = NULL, *want[2] = {NULL};
    uint8_t active[KVC_DIGEST_BYTES], other[KVC_DIGEST_BYTES];
    uint32_t *tokens = scene_tokens(0, N);
    _cleanup_(freep) void *bytes = NULL;
    kvc_layer_fit *layers = NULL;
    kvc_table_info info;
    kvc_fit fit = {.struct_bytes = sizeof(fit)};
    uint64_t revision = 0, again = 0;
    size_t n = 0, n_bytes;

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    active_digest(&m, active);
    stage_other(&sc, 2, 2, other);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, active, 1000000, 0, &revision), -EBUSY);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 1000001, 0, &revision), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 0, 0, &revision), 1); /* it is none */
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 1000000, 0, &revision), 0);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 1000000, 0, &again), 1);
    CU_ASSERT_EQUAL(again, revision);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 500000, revision, &again), -EEXIST);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 500000, revision - 1, &again), -ESTALE);
    info = info_of(&sc, other);
    CU_ASSERT(info.state == KVC_TABLE_SHADOW && info.shadow_ppm == 1000000 && info.fit.shadow_tokens == 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, N), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, N, &n), 0);
    CU_ASSERT_EQUAL(n, PACKED);
    CU_ASSERT_EQUAL_FATAL(kvc_table_get_fit(sc.operator, other, &fit, sizeof(*layers), &layers, &n), 0);
    CU_ASSERT_EQUAL(fit.shadow_tokens, PACKED - 64);
    CU_ASSERT_EQUAL_FATAL(n, sc.g.n_layers);

    alone[0] = scene_private(&sc);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&sc.g, 2, 2, true, &bytes, &n_bytes), 0);
    free(sc.bytes);
    sc.bytes = take_ptr(bytes);
    sc.n_bytes = n_bytes;
    alone[1] = scene_private(&sc);
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone[i].model, NULL, 0, &want[i]), 0);
        CU_ASSERT_EQUAL(embedded_append(&alone[i], want[i], 0, 0, N), 0);
        CU_ASSERT_EQUAL(kvc_seq_commit(want[i], tokens, N, NULL), 0);
    }
    for (uint32_t layer = 0; layer < sc.g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            double ratio = layers[layer].shadow_error[side] / layers[layer].active_error[side];
            double expected = error_sum(&alone[1], want[1], layer, (enum kvc_side) side, PACKED) /
                              error_sum(&alone[0], want[0], layer, (enum kvc_side) side, PACKED);

            /* the client measures what the tail kept, in binary16: 2^-11 of a vector, against errors of about
             * 2^-2 */
            CU_ASSERT(fabs(ratio / expected - 1) < 0.01);
        }
    CU_ASSERT(fit.shadow_error[0] > fit.active_error[0]); /* 2 bits against 3 */

    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 0, 0, &again), 0);
    CU_ASSERT_EQUAL(info_of(&sc, other).state, KVC_TABLE_VERIFIED);
    CU_ASSERT(again > revision);
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, other, 1000, 0, NULL), 0);
    CU_ASSERT_EQUAL(kvc_table_activate(sc.operator, other, 0, NULL), 0); /* ends the trial */
    CU_ASSERT(info_of(&sc, other).state == KVC_TABLE_ACTIVE && info_of(&sc, other).shadow_ppm == 0);
    free(layers);
    free(tokens);
    for (unsigned i = 0; i < 2; i++)
        embedded_free(&alone[i]);
    embedded_free(&m);
    scene_end(&sc);
}

/* About the share of new sequences; all of a tenant's; none after the end. */
static void test_canary(void)
{
    struct scene sc;
    struct embedded m;
    uint8_t active[KVC_DIGEST_BYTES], other[KVC_DIGEST_BYTES];
    const char *tenant = "nobody";
    kvc_status *status;
    kvc_seq *seqs[40];

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    active_digest(&m, active);
    stage_other(&sc, 3, 2, other);
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, other, 256, NULL, 0, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, active, 10, NULL, 0, 0, NULL), -EBUSY);
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, other, 64, NULL, 0, 0, NULL), 0);
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, other, 64, NULL, 0, 0, NULL), 1);
    for (size_t i = 0; i < 40; i++) {
        size_t published = 0;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, "salt", 4, &seqs[i]), 0);
        CU_ASSERT_EQUAL(scene_publish(&m, seqs[i], (uint32_t) i, 0, 200, 200, &published), 0);
        CU_ASSERT_EQUAL(published, 128);
    }
    CU_ASSERT_EQUAL(info_of(&sc, other).references, 1);
    /* 40 sequences with a chance of a quarter each have 2 pages: none, or all, with a chance below 2 in 10^5
     */
    CU_ASSERT(info_of(&sc, other).pages > 0 && info_of(&sc, other).pages < 80);
    CU_ASSERT_EQUAL(info_of(&sc, other).pages + info_of(&sc, active).pages, 80);

    status = scene_status(&sc);
    tenant = status->tenants[0].name;
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, other, 0, &tenant, 1, 0, NULL), 0);
    status = kvc_status_free(status);
    CU_ASSERT_EQUAL(info_of(&sc, other).canary_tenants, 1);
    {
        uint8_t now[KVC_DIGEST_BYTES];

        active_digest(&m, now); /* what the next sequence of this tenant uses */
        CU_ASSERT_EQUAL(memcmp(now, other, sizeof(now)), 0);
        CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, other, 0, NULL, 0, 0, NULL), 0);
        active_digest(&m, now);
        CU_ASSERT_EQUAL(memcmp(now, active, sizeof(now)), 0);
    }
    CU_ASSERT_EQUAL(info_of(&sc, other).state, KVC_TABLE_DRAINING); /* it was used */
    for (size_t i = 0; i < 40; i++)
        kvc_seq_free(seqs[i]);
    embedded_free(&m);
    scene_end(&sc);
}

/* Errors and moments of what a program opted in to; none before. */
static void test_report(void)
{
    enum { N = 1000, PACKED = 896 };
    const kvc_report_options all = {sizeof(all), 1000000, 1};
    struct scene sc;
    struct embedded m, alone;
    kvc_seq *s = NULL, *before = NULL;
    uint8_t active[KVC_DIGEST_BYTES];
    uint32_t *tokens = scene_tokens(0, N);
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(moments_freep) struct moments *got = NULL, *want = NULL;
    struct moments_options o = {0};
    struct errmsg e;
    kvc_table_info info;
    uint64_t n_tokens = 0;
    size_t n = 0, n_bytes = 0;

    scene_start(&sc, small(), 3, 1, args);
    m = scene_client(&sc);
    active_digest(&m, active);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &before), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, before, 1, 0, N, N, &n), 0);
    CU_ASSERT_EQUAL(info_of(&sc, active).fit.reports, 0);
    CU_ASSERT_EQUAL(
        kvc_moments_fetch(sc.operator, random_table_model_digest, NULL, 0, &bytes, &n_bytes, NULL), -ENODATA);

    CU_ASSERT_EQUAL(kvc_model_report(m.model, &all), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, N, N, &n), 0);
    info = info_of(&sc, active);
    CU_ASSERT_EQUAL(info.fit.reports, 1);
    CU_ASSERT_EQUAL(info.fit.tokens, PACKED - 64);
    CU_ASSERT(info.fit.error[0] > 0 && info.fit.error[0] < 1 && info.fit.error[1] > 0 &&
              info.fit.error[1] < 1);
    CU_ASSERT(info.fit.coded[0] > 0 && info.fit.saturated[0] < info.fit.coded[0]);

    /* the same tokens counted here: moments of every head, as far as binary16 tails allow */
    CU_ASSERT_EQUAL_FATAL(
        kvc_moments_fetch(sc.operator, random_table_model_digest, NULL, 0, &bytes, &n_bytes, &n_tokens), 0);
    CU_ASSERT_EQUAL(n_tokens, PACKED - 64);
    CU_ASSERT_EQUAL_FATAL(moments_parse(bytes, n_bytes, &got, &e), 0);
    o = *moments_get_options(got);
    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &want, &e), 0);
    alone = scene_private(&sc);
    for (uint32_t layer = 0; layer < sc.g.n_layers; layer++) {
        float *k = embedded_input(&alone, 0, layer, KVC_K, 64, PACKED - 64);
        float *v = embedded_input(&alone, 0, layer, KVC_V, 64, PACKED - 64);

        CU_ASSERT_EQUAL(moments_add(want, layer, 0, sc.g.n_kv_heads, PACKED - 64, k, v, &e), 0);
        free(k);
        free(v);
        for (uint32_t head = 0; head < sc.g.n_kv_heads; head++) {
            const double *a = moments_scatter(got, layer, head), *b = moments_scatter(want, layer, head);
            size_t entries = (size_t) sc.g.d * (2 * sc.g.d + 1);
            double apart = 0, norm = 0;

            CU_ASSERT_EQUAL(moments_count(got, layer, head), PACKED - 64);
            for (size_t i = 0; i < entries; i++) {
                apart += (a[i] - b[i]) * (a[i] - b[i]);
                norm += b[i] * b[i];
            }
            CU_ASSERT(apart <
                      1e-5 * norm); /* relative errors of 2^-11 = 5e-4 in every number, squared, and room */
        }
    }
    CU_ASSERT_EQUAL(kvc_moments_fetch(sc.operator, random_table_model_digest, &(const char *){"somebody"}, 1,
                                      &bytes, &n_bytes, NULL),
                    -ENODATA);
    embedded_free(&alone);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

/* Shadow, canary and revision are what they were. */
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
    CU_ASSERT_EQUAL(kvc_table_shadow(sc.operator, shadow, 25000, 0, NULL), 0);
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, canary, 3, tenants, 2, 0, &revision), 0);
    sc.operator= kvc_client_free(sc.operator);
    daemon_kill(&d);
    CU_ASSERT_FATAL(daemon_start_again(&d, args));
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&sc.operator), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(sc.operator, d.operator_socket), 0);
    CU_ASSERT_EQUAL(info_of(&sc, shadow).state, KVC_TABLE_SHADOW);
    CU_ASSERT_EQUAL(info_of(&sc, shadow).shadow_ppm, 25000);
    CU_ASSERT_EQUAL(info_of(&sc, canary).canary_share, 3);
    CU_ASSERT_EQUAL(info_of(&sc, canary).canary_tenants, 2);
    CU_ASSERT_EQUAL(kvc_table_canary(sc.operator, canary, 3, tenants, 2, revision, NULL),
                    1); /* the revision too */
    scene_detach(&sc);
    CU_ASSERT(daemon_stop(&d));
}

const struct test_case test_cases[] = {
    TEST(test_shadow), TEST(test_canary), TEST(test_report), TEST(test_survives_restart), TEST_END,
};
const char test_suite[] = "client_trial";
