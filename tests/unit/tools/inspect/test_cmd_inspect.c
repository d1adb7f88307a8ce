/* kvcobra inspect through commands_main(): text, JSON, a page of a hostile table, and failures. */
#include "base/digest.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/moments/moments.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/random_table.h"
#include "tests/unit/tools/capture.h"
#include "tools/command/command.h"
#include "tools/inspect/inspect.h"

static char dir[] = "/tmp/kvc-inspect-XXXXXX";
static char file[64];

static void make_dir(void)
{
    (void) memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    (void) snprintf(file, sizeof(file), "%s/file", dir);
}

static void remove_dir(void)
{
    (void) unlink(file);
    (void) rmdir(dir);
}

static json_int_t get_int(const json_t *j, const char *key)
{
    return json_integer_value(json_object_get(j, key));
}

static void failed(const char *path, const char *word)
{
    _cleanup_(freep) char *text = NULL;

    CU_ASSERT_EQUAL(captured(STDERR_FILENO, (const char *[]){"kvcobra", "inspect", path, NULL}, &text),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, path));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, word));
    CU_ASSERT_PTR_EQUAL(strchr(text, '\n'), text + strlen(text) - 1); /* one sentence */
}

/* 2 layers, 2 KV heads, d = 64 at 2 bpd. Pages: 128 bytes of header; 64 tokens of codes; sinks in
 * binary16. */
static void test_table(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 64);
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(freep) char *text = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    char hex[DIGEST_HEX_BYTES];
    struct errmsg e = {""};
    json_int_t bits = 0;
    json_t *j;
    size_t n;

    make_dir();
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&g, 1, 2, true, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(file, bytes, n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_load(file, &t, &e), 0);
    j = captured_json((const char *[]){"kvcobra", "inspect", file, "--json", NULL});
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "kind")), "table");
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "digest")), digest_hex(t->digest, hex));
    CU_ASSERT_DOUBLE_EQUAL(json_real_value(json_object_get(j, "bpd_code")), 2, 1e-12);
    CU_ASSERT_EQUAL(get_int(j, "code_bytes_per_token"), 2 * 2 * 2 * 64 * 2 / 8);
    CU_ASSERT_DOUBLE_EQUAL(json_real_value(json_object_get(json_object_get(j, "charged"), "bpd_nominal")), 2,
                           1e-12);
    CU_ASSERT(get_int(json_object_get(j, "charged"), "fixed_bytes") > 0);
    CU_ASSERT_EQUAL(get_int(j, "page_bytes"), 128 + 64 * 128);
    CU_ASSERT_EQUAL(get_int(j, "first_page_bytes"), 128 + 64 * 128 + RANDOM_TABLE_SINKS * 8 * 64 * 2);
    CU_ASSERT_EQUAL(json_array_size(json_object_get(j, "codecs")), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *c = json_array_get(json_object_get(j, "codecs"), i);

        bits += get_int(c, "code_bits");
        CU_ASSERT_EQUAL(get_int(c, "layer"), (json_int_t) i / 4);
    }

    CU_ASSERT_EQUAL(bits, 8 * 128);
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(json_object_get(j, "provenance"), "made_by")),
                           "random_table");
    json_decref(j);

    CU_ASSERT_EQUAL(captured(STDOUT_FILENO, (const char *[]){"kvcobra", "inspect", file, NULL}, &text),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, hex));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "2 layers, 4 query heads on 2 KV heads of dimension 64"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "8320 bytes for 64 tokens"));
    remove_dir();
}

static void test_bad_files(void)
{
    struct geometry g = random_table_geometry(1, 1, 1, 32);
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg e = {""};
    size_t n;

    make_dir();
    failed(file, "No such file");
    failed(dir, "not a regular file");
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(file, "GGUF", 4, &e), 0);
    failed(file, "neither");
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&g, 1, 2, false, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(file, bytes, n - 1, &e), 0);
    failed(file, "truncated");
    ((uint8_t *) bytes)[n / 2] ^= 1;
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(file, bytes, n, &e), 0);
    failed(file, "damaged");
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(file, "KVCSTATS", 8, &e), 0);
    failed(file, "");
    remove_dir();
}

static void test_stats(void)
{
    enum { TOKENS = 40, D = 32 };
    _cleanup_(stats_freep) struct stats *s = NULL;
    struct geometry g = random_table_geometry(1, 1, 1, D);
    struct stats_options o;
    struct errmsg e = {""};
    float k[TOKENS * D], v[TOKENS * D];
    json_t *j;

    make_dir();
    for (size_t i = 0; i < TOKENS * D; i++) {
        k[i] = (float) test_rand_normal();
        v[i] = (float) test_rand_normal();
    }

    stats_options_default(&o, &g);
    o.want_attention = false;
    (void) snprintf(o.model_name, sizeof(o.model_name), "tiny");
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_add_layer(s, 1, 0, 0, TOKENS, NULL, k, v, NULL, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_save(s, file, &e), 0);
    j = captured_json((const char *[]){"kvcobra", "inspect", file, "--json", NULL});
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "kind")), "statistics");
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "model_name")), "tiny");
    CU_ASSERT_EQUAL(get_int(j, "tokens"), TOKENS - (json_int_t) o.n_sink);
    CU_ASSERT_FALSE(json_is_true(json_object_get(j, "attention")));
    json_decref(j);
    remove_dir();
}

/* The page of @t with this provenance. */
static char *page_of(const struct table *t, const char *provenance)
{
    struct table table = *t;
    struct inspection x = {.request.table_path = "<a>&\"",
                           .unavailable = {[PART_SPECTRA] = "none"},
                           .table = &table,
                           .g = &t->geometry,
                           .info = {.page_bytes = 8320, .first_page_bytes = 9000}};
    _cleanup_(json_decrefp) json_t *document = NULL;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    table.provenance = provenance;
    document = inspect_document(&x);
    CU_ASSERT_PTR_NOT_NULL_FATAL(document);
    CU_ASSERT_EQUAL_FATAL(inspect_page(f, &x, document), 0);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    return text;
}

static size_t scripts_of(const char *page)
{
    size_t n = 0;

    for (const char *p = page; (p = strstr(p, "<script")); p++)
        n++;
    return n;
}

/* The author of a table writes its provenance, which may be hostile: it stays text of the numbers. */
static void test_hostile_provenance(void)
{
    static const char *const hostile[] = {
        "{\"model\":\"</title><script>alert(1)</script>\",\"options\":{\"<script>\":\"<script>\"}}",
        "{\"a\":{\"b\":{\"<script>\":[1e308,-0.0,null,true,{\"<script>\":[]}]}},\"\":\"\",\"model\":17}",
        "NaN<script>",
        "[\"<script>\"]",
        "\"<script>\"",
        "{\"model\":{\"model\":\"<script>\"}}",
        "",
    };
    struct geometry g = random_table_geometry(1, 1, 1, 32);
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(freep) char *plain = NULL;
    struct errmsg e = {""};
    size_t n;

    CU_ASSERT_FATAL(random_table_bytes(&g, 1, 2, false, &bytes, &n) == 0 &&
                    table_parse(bytes, n, &t, &e) == 0);
    plain = page_of(t, "{}");
    for (size_t i = 0; i < sizeof(hostile) / sizeof(*hostile); i++) {
        _cleanup_(freep) char *text = page_of(t, hostile[i]);

        CU_ASSERT_EQUAL(scripts_of(text), scripts_of(plain));
        CU_ASSERT_PTR_NULL(strstr(text, "<a>"));
        CU_ASSERT_PTR_NULL(strstr(text, "<script>alert"));
    }
}

/* 512 tokens: (512 - 64) / 64 = 7 pages of 8320 and 8320 + sinks; 64 tokens of 8 x 64 numbers in binary16 as
 * tail. */
static void test_sequence_bytes(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 64);
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg e = {""};
    struct sequence_bytes b;
    struct inspection x;
    size_t n;

    CU_ASSERT_FATAL(random_table_bytes(&g, 1, 2, true, &bytes, &n) == 0 &&
                    table_parse(bytes, n, &t, &e) == 0);
    x = (struct inspection){.table = t,
                            .g = &t->geometry,
                            .info = {.page_bytes = 8320, .first_page_bytes = 8320 + 4096, .n_sink = 4}};
    inspection_bytes(&x, 512, &b);
    CU_ASSERT_EQUAL(b.pages, 7);
    CU_ASSERT_EQUAL(b.codes, 7 * 64 * 128);
    CU_ASSERT_EQUAL(b.headers, 7 * 128);
    CU_ASSERT_EQUAL(b.sinks, 4 * 512 * 2);
    CU_ASSERT_EQUAL(b.padding, 0);
    CU_ASSERT_EQUAL(b.tail, 64 * 512 * 2);
    CU_ASSERT_EQUAL(b.total, 7 * 8320 + 4096 + 65536);
    CU_ASSERT_DOUBLE_EQUAL(b.bpd_true, (7 * 8320 + 4096 + 65536) * 8.0 / (512 * 512), 1e-12);
    inspection_bytes(&x, 127, &b); /* less than a full page and 64 newer tokens */
    CU_ASSERT_EQUAL(b.pages, 0);
    CU_ASSERT_EQUAL(b.total, b.binary16);
    CU_ASSERT_DOUBLE_EQUAL(b.bpd_true, 16, 1e-12);
}

/* Moments have spectra only, with the reason. Statistics of another model are refused. */
static void test_moments(void)
{
    enum { TOKENS = 300, D = 32 };
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(freep) float *x = malloc(2 * TOKENS * D * sizeof(*x));
    _cleanup_(freep) char *text = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct moments_options o = {.geometry = random_table_geometry(1, 1, 1, D), .n_sink = 4};
    char table[80];
    struct errmsg e = {""};
    json_t *j;
    size_t n;

    make_dir();
    for (size_t i = 0; i < 2 * TOKENS * D; i++)
        x[i] = (float) test_rand_normal();
    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
    CU_ASSERT_EQUAL_FATAL(moments_add(m, 0, 0, 1, TOKENS, x, x + TOKENS * D, &e), 0);
    CU_ASSERT_EQUAL_FATAL(moments_save(m, file, &e), 0);
    j = captured_json((const char *[]){"kvcobra", "inspect", file, "--json", NULL});
    CU_ASSERT_EQUAL(json_array_size(json_object_get(j, "spectra")), 2);
    CU_ASSERT_PTR_NULL(json_object_get(j, "curves"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(json_string_value(json_object_get(json_object_get(j, "unavailable"), "gaussianity")),
               "moments only"));
    json_decref(j);

    (void) snprintf(table, sizeof(table), "%s/table", dir);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&o.geometry, 1, 2, false, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(table, bytes, n, &e), 0);
    CU_ASSERT_EQUAL(
        captured(STDERR_FILENO, (const char *[]){"kvcobra", "inspect", table, "--stats", file, NULL}, &text),
        COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "belong to different models")); /* digests of zeros */
    (void) unlink(table);
    remove_dir();
}

const struct test_case test_cases[] = {
    TEST(test_table),          TEST(test_bad_files), TEST(test_stats), TEST(test_hostile_provenance),
    TEST(test_sequence_bytes), TEST(test_moments),   TEST_END,
};
const char test_suite[] = "inspect";
