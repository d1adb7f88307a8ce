/* Exact tables: one encoding per geometry and form, and which bytes a reader refuses. */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_account.h"
#include "alloc/table/table_exact.h"
#include "alloc/table/table_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/page_layout.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "table_exact";

static const struct exact_form usual = {.type = EXACT_BF16, .after_rope = 1};

static void *build(const struct geometry *g, struct exact_form form, size_t *ret_n)
{
    void *bytes = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(table_exact_build(g, random_table_model_digest, &form, &bytes, ret_n, &e), 0);
    return bytes;
}

/* A table of each form parses, has its own digest, and pages of exactly the vectors. */
static void test_forms(void)
{
    struct geometry g = random_table_geometry(3, 8, 4, 64);
    uint8_t digests[12][DIGEST_BYTES];
    unsigned n_forms = 0;

    for (uint32_t packed = 0; packed < 20; packed++) {
        _cleanup_(freep) void *bytes = NULL;
        _cleanup_(table_unrefp) struct table *t = NULL;
        struct exact_form form;
        struct page_layout l;
        size_t n, page;

        CU_ASSERT_EQUAL(exact_form_unpack(packed, &form), packed < 16 && (packed & 3) != 0);
        if (packed >= 16 || (packed & 3) == 0)
            continue;

        CU_ASSERT_EQUAL(exact_form_pack(&form), packed);
        bytes = build(&g, form, &n);
        CU_ASSERT(n < 800);
        CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, NULL), 0);
        CU_ASSERT_EQUAL(memcmp(&t->exact, &form, sizeof(form)), 0);
        CU_ASSERT(table_is_exact(t) && !table_has_trellis(t) && t->n_sink == 0);
        CU_ASSERT_EQUAL(t->bpd_code, form.type == EXACT_F32 ? 32 : 16);
        CU_ASSERT_EQUAL(memcmp(&t->geometry, &g, sizeof(g)), 0);
        memcpy(digests[n_forms], t->digest, DIGEST_BYTES);
        for (unsigned i = 0; i < n_forms; i++)
            CU_ASSERT(memcmp(digests[i], t->digest, DIGEST_BYTES) != 0);
        n_forms++;

        CU_ASSERT_EQUAL_FATAL(page_layout_init(&l, t, (struct shard){1, 2}), 0);
        page = (size_t) 3 * 2 * 2 * CHUNK_TOKENS * 64 * exact_number_bytes(form.type);
        CU_ASSERT(l.payload_bytes[PAGE_FIRST] == page && l.payload_bytes[PAGE_REST] == page);
        CU_ASSERT_EQUAL(page_side_off(&l, 2, 1, SIDE_V),
                        page - (size_t) CHUNK_TOKENS * 64 * exact_number_bytes(form.type));
        page_layout_deinit(&l);
    }
    CU_ASSERT_EQUAL(n_forms, 12);
}

static void test_text_and_account(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    char text[EXACT_FORM_TEXT_BYTES];
    struct table_account a;
    size_t n;

    bytes = build(&g, usual, &n);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, NULL), 0);
    CU_ASSERT_STRING_EQUAL(exact_form_print(&usual, text), "bf16, keys after RoPE, half-split pairs");
    CU_ASSERT(strstr(t->provenance, text) != NULL);
    table_account(t, &a);
    CU_ASSERT(a.code == 16 && a.nominal == 16);
}

/* Return: what table_parse() says of the bytes, with a right digest. */
static int parse_changed(uint8_t *bytes, size_t n, struct errmsg *e)
{
    struct table *t = NULL;
    int r;

    (void) crypto_hash_sha256(bytes + n - DIGEST_BYTES, bytes, n - DIGEST_BYTES);
    r = table_parse(bytes, n, &t, e);
    (void) table_unref(t);
    return r;
}

static void test_refused(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    size_t n;
    _cleanup_(freep) uint8_t *bytes = build(&g, usual, &n);
    struct table_header *h = (void *) bytes, good = *h;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(parse_changed(bytes, n, &e), 0);
#define REFUSED(change)                                                                                      \
    do {                                                                                                     \
        *h = good;                                                                                           \
        change;                                                                                              \
        CU_ASSERT_EQUAL(parse_changed(bytes, n, &e), -EBADMSG);                                              \
    } while (0)
    REFUSED(h->exact.type = 4);
    CU_ASSERT(strstr(e.text, "newer version") != NULL);
    REFUSED(h->exact.type = EXACT_NONE);
    REFUSED(h->exact = (struct exact_form){EXACT_NONE});
    REFUSED(h->exact.after_rope = 2);
    REFUSED(h->exact.interleaved = 2);
    REFUSED(h->reserved1[0] = 1);
    REFUSED(h->version = TABLE_VERSION_SCALAR);
    REFUSED(h->n_sink = 4);
    REFUSED(h->n_golden = TABLE_GOLDEN_TOKENS);
    REFUSED(h->v_from = PREDICT_HEAD);
    REFUSED(h->matrix_form = MATRICES_HALF);
    REFUSED(h->sections[SECTION_LEVELS].bytes = 4);
    REFUSED(h->n_layers = 0);
    REFUSED(h->n_layers = h->n_heads = h->n_kv_heads = 1024);
    CU_ASSERT(strstr(e.text, "65536 heads and sides") != NULL);
#undef REFUSED
    *h = good;
    bytes[n / 2] ^= 1; /* damage, which the digest tells */
    {
        struct table *t = NULL;

        CU_ASSERT_EQUAL(table_parse(bytes, n, &t, &e), -EBADMSG);
    }
}

static void test_build_refused(void)
{
    struct geometry g = random_table_geometry(1024, 64, 64, 32);
    struct errmsg e = {""};
    void *bytes = NULL;
    size_t n = 7;

    CU_ASSERT_EQUAL(table_exact_build(&g, random_table_model_digest, &usual, &bytes, &n, &e), -EINVAL);
    g = random_table_geometry(2, 4, 2, 32);
    g.d = 31;
    CU_ASSERT_EQUAL(table_exact_build(&g, random_table_model_digest, &usual, &bytes, &n, &e), -EINVAL);
    CU_ASSERT(!bytes && n == 7);
}

const struct test_case test_cases[] = {
    TEST(test_forms), TEST(test_text_and_account), TEST(test_refused), TEST(test_build_refused), TEST_END,
};
