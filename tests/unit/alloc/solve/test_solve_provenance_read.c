/* The options of a solve, read back from the provenance of its table. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/table/table.h"
#include "tests/unit/alloc/shapes.h"

enum { WINDOW = 100, WINDOWS = 6 };

/* Solving again with the options in a table's provenance gives the same table,
 * for every method and some odd options. */
/* The options of a table of an earlier version, which had one loading for all widths. */
static void check_without_narrow(const char *provenance)
{
    static const char key[] = "\"loading_narrow\":[";
    const char *at = strstr(provenance, key);
    uint8_t of[DIGEST_BYTES];
    char text[8192] = "";
    struct solve_options o;
    struct errmsg e = {""};

    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    (void) snprintf(text, sizeof(text), "%.*s%s", (int) (at - provenance), provenance, strchr(at, ']') + 2);
    CU_ASSERT_EQUAL(solve_options_read(text, &o, of, &e), 0);
    CU_ASSERT(o.loading[SIDE_V] == 1.75 && o.loading_narrow[SIDE_V] == 1.75);
    CU_ASSERT_EQUAL(o.loading_narrow[SIDE_K], o.loading[SIDE_K]);
}

static void test_options_read_back(void)
{
    struct geometry g = shape(1, 4, 2, 32, 32);
    struct stats *s = shape_statistics(&g, WINDOW, WINDOWS);

    for (int i = 0; i < 6; i++) {
        uint8_t of[DIGEST_BYTES], digest[DIGEST_BYTES], first[DIGEST_BYTES];
        struct solve_options o, again;
        struct solve_report report;
        struct table *t = NULL;
        struct errmsg e = {""};
        void *bytes = NULL;
        size_t n;

        solve_options_for(&o, (enum method)(i % 4), 1.7);
        o.seed = i * 0x123456789abcdefu;
        if (i == 4) {
            o.floor_bpd = 0.5, o.ceil_bpd = 6, o.v_from = PREDICT_NONE, o.quantiser = QUANT_UNIFORM,
            o.fit_levels = false;
            o.trellis_states = 0;
            o.k_bpd = 2.1, o.v_bpd = 3.3;
            o.loading[SIDE_V] = 1.75, o.loading_narrow[SIDE_K] = 1.5, o.contrast[SIDE_K] = 0.25;
        }
        if (i == 5) {
            o.paper.rank_step = 4, o.paper.b_min = 1, o.paper.b_max = 5, o.paper.eta = 0.1,
            o.paper.rounds = 3;
            o.paper.B_min = 12.5;
        }
        for (int pass = 0; pass < 2; pass++) {
            CU_ASSERT_EQUAL_FATAL(solve_table(s, pass ? &again : &o, &bytes, &n, &report, &e), 0);
            CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
            CU_ASSERT_EQUAL(solve_options_read(t->provenance, &again, of, &e), 0);
            if (i == 4)
                check_without_narrow(t->provenance);
            if (pass == 0)
                memcpy(first, t->digest, sizeof(first));
            else
                CU_ASSERT_EQUAL(memcmp(first, t->digest, sizeof(first)), 0);
            (void) table_unref(t);
            free(bytes);
        }
        CU_ASSERT_EQUAL(stats_digest(s, digest, &e), 0);
        CU_ASSERT_EQUAL(memcmp(of, digest, sizeof(of)), 0);
    }
    (void) stats_free(s);
}

static void test_unreadable_options(void)
{
#define STATISTICS                                                                                           \
    "\"statistics\":{\"sha256\":\"00000000000000000000000000000000"                                          \
    "00000000000000000000000000000000\"}"
    static const struct {
        const char *provenance, *words;
    } cases[] = {
        {"", "does not name its statistics"},
        {"not JSON", "does not name its statistics"},
        {"{\"made_by\":\"hand\"}", "does not name its statistics"},
        {"{\"options\":{},\"statistics\":{\"sha256\":\"00\"}}", "does not name its statistics"},
        {"{\"options\":{},\"statistics\":{\"sha256\":\"xyz\"}}", "does not name its statistics"},
        {"{\"options\":{}," STATISTICS "}", "method is missing"},
        {"{\"options\":[]," STATISTICS "}", "method is missing"},
        {"{\"options\":{\"method\":\"magic\"}," STATISTICS "}", "method is missing or has an unknown"},
        {"{\"options\":{\"method\":3}," STATISTICS "}", "method is missing or has an unknown"},
        {"{\"options\":{\"method\":\"bands\",\"metric\":\"mse\"}," STATISTICS "}", "curve is missing"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct solve_options o = {.bpd = 77};
        uint8_t of[DIGEST_BYTES] = {99};
        struct errmsg e = {""};

        CU_ASSERT_EQUAL(solve_options_read(cases[i].provenance, &o, of, &e), -ENODATA);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].words));
        CU_ASSERT(o.bpd == 77 && of[0] == 99);
    }
}

const struct test_case test_cases[] = {TEST(test_options_read_back), TEST(test_unreadable_options), TEST_END};
const char test_suite[] = "solve_provenance_read";
