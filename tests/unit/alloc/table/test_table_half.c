/* Tables whose matrices are binary16 with a scale for each row: what a reader makes of them, and refuses. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/table/table_format.h"
#include "alloc/table/table_half.h"
#include "base/cleanup.h"
#include "base/fd_io.h"
#include "tests/lib/random_book.h"
#include "tests/unit/alloc/table_fixture.h"

/* A table of binary32 and its twin of binary16. */
struct pair {
    struct table *single, *half;
    void *bytes;
    size_t n;
};

static void pair_init(struct pair *p, enum prediction v_from, bool trellis)
{
    _cleanup_(freep) void *bytes = NULL;
    struct fixture f;
    struct errmsg e = {""};
    size_t n;

    *p = (struct pair){.n = 0};
    fixture_init(&f, usual_bits, v_from);
    for (unsigned i = 0; i < 8 && trellis; i++)
        random_book(6 + i % 3, &f.levels[i / 4][i % 4 + 1]);
    memset(f.enc[0], 0, D * sizeof(f.enc[0][0])); /* a literal row, whose scale is 8 */
    f.enc[0][3] = -12;
    f.enc[0][4] = 0x1.002p3;
    fixture_separate_encoders(&f);
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &bytes, &n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &p->single, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_half_convert(bytes, n, &p->bytes, &p->n, &e), 0);
    CU_ASSERT(!table_has_half_matrices(p->single));
    if (table_parse(p->bytes, p->n, &p->half, &e) < 0) {
        printf("    %s\n", e.text);
        CU_FAIL_FATAL("the table is refused");
    }
    CU_ASSERT(table_header(p->half)->sections[SECTION_MATRICES].bytes <
              0.65 * (double) table_header(p->single)->sections[SECTION_MATRICES].bytes);
}

static void pair_deinit(struct pair *p)
{
    (void) table_unref(p->single);
    (void) table_unref(p->half);
    free(p->bytes);
}

/* Each number within half a unit of the last of 11 bits, or, far below the largest of its row, of the last of
 * binary16. */
static void check_matrix(const float *x, const float *y, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++) {
        double largest = 0;

        for (size_t i = 0; i < columns; i++)
            largest = fmax(largest, fabs((double) x[row * columns + i]));
        for (size_t i = row * columns; i < (row + 1) * columns; i++)
            CU_ASSERT(fabs((double) x[i] - y[i]) <= fmax(0x1p-11 * fabs((double) x[i]), 0x1p-25 * largest));
    }
}

static void check_pair(enum prediction v_from, bool trellis)
{
    _cleanup_(pair_deinit) struct pair p;
    const struct codec *k;

    pair_init(&p, v_from, trellis);
    CU_ASSERT_EQUAL(table_header(p.half)->version, 3);
    CU_ASSERT_EQUAL(memcmp(p.half->levels, p.single->levels, sizeof(p.half->levels)), 0);
    CU_ASSERT_EQUAL(p.half->bpd_code, p.single->bpd_code);
    for (uint32_t hs = 0; hs < head_side_count(&p.half->geometry); hs++) {
        const struct codec *a = &p.single->codecs[hs], *b = &p.half->codecs[hs];

        CU_ASSERT_EQUAL(memcmp(a->mean, b->mean, D * sizeof(float)), 0);
        CU_ASSERT_EQUAL(memcmp(a->enc_mean, b->enc_mean, D * sizeof(float)), 0);
        check_matrix(a->enc, b->enc, a->r, D);
        check_matrix(a->dec, b->dec, D, a->r_in);
        CU_ASSERT_EQUAL(a->enc_k == NULL, b->enc_k == NULL);
        if (a->enc_k)
            check_matrix(a->enc_k, b->enc_k, a->r, a->n_pred);
        CU_ASSERT_EQUAL((uintptr_t) b->enc % TABLE_ALIGN, 0); /* as kernels find those of a file */
        CU_ASSERT_EQUAL((uintptr_t) b->dec % TABLE_ALIGN, 0);
    }
    /* bands are stored by width: the first band of the fixture has two bits, the third of four stored ones */
    k = table_codec(p.half, 0, 0, SIDE_K);
    CU_ASSERT_EQUAL(k->bits[2], 2);
    CU_ASSERT_EQUAL(k->enc[16 * D + 3], -12.0f);
    CU_ASSERT_EQUAL(k->enc[16 * D + 4], 8.0f); /* halfway between two numbers: the even one */
    CU_ASSERT_EQUAL(k->enc[16 * D + 5], 0.0f);
}

static void test_numbers(void)
{
    check_pair(PREDICT_NONE, true);
    check_pair(PREDICT_HEAD, true);
    check_pair(PREDICT_LAYER, true);
    check_pair(PREDICT_HEAD, false);
}

/* A solver rounds rows before it fits decoders to their codes: they must not change again in the table. */
static void test_rounding(void)
{
    for (int exponent = -140; exponent < 128; exponent++) {
        double row[D], again[D];
        float largest = 0;

        for (size_t i = 0; i < D; i++)
            row[i] = (double) (float) ldexp(test_rand_normal(), exponent - 3);
        row[0] = (double) (float) ldexp(0x1.fff8p0, exponent - 3); /* may become the next power of two */
        table_half_round(row, D);
        memcpy(again, row, sizeof(row));
        table_half_round(again, D);
        for (size_t i = 0; i < D; i++)
            largest = fmaxf(largest, fabsf((float) row[i]));
        for (size_t i = 0; i < D; i++) /* numbers far below the largest may lose their last bit */
            CU_ASSERT(fabs(again[i] - row[i]) <= 0x1p-24 * (double) largest);
        CU_ASSERT(isfinite(row[0]) && (exponent < -120 || fabs(row[0] / ldexp(1, exponent - 3) - 2) < 0.01));
    }
}

static void test_converted_twice(void)
{
    _cleanup_(pair_deinit) struct pair p;
    struct errmsg e = {""};
    void *bytes = NULL;
    size_t n;

    pair_init(&p, PREDICT_HEAD, true);
    CU_ASSERT_EQUAL(table_half_convert(p.bytes, p.n, &bytes, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "binary16 already"));
    CU_ASSERT_PTR_NULL(bytes);
}

/* In shared memory, as clients read tables. */
static void test_mapped(void)
{
    _cleanup_(pair_deinit) struct pair p;
    _cleanup_(closep) int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    _cleanup_(table_unrefp) struct table *t = NULL;

    pair_init(&p, PREDICT_HEAD, true);
    CU_ASSERT_EQUAL_FATAL(fd_write_all(fd, p.bytes, p.n), 0);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    CU_ASSERT_EQUAL_FATAL(table_map(fd, p.n, p.half->digest, &t, NULL), 0);
    for (uint32_t hs = 0; hs < 2; hs++) {
        const struct codec *a = &p.half->codecs[hs], *b = &t->codecs[hs];

        CU_ASSERT_EQUAL(memcmp(a->enc, b->enc, (size_t) a->r * D * sizeof(float)), 0);
        CU_ASSERT_EQUAL(memcmp(a->dec, b->dec, (size_t) a->r_in * D * sizeof(float)), 0);
    }
}

/* ---- bad input ---- */

static void refused(const struct pair *p, size_t at, const void *bad, size_t n_bad, const char *words)
{
    _cleanup_(freep) uint8_t *copy = malloc(p->n);
    struct table *t = NULL;
    struct errmsg e = {""};

    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memcpy(copy, p->bytes, p->n);
    memcpy(copy + at, bad, n_bad);
    (void) crypto_hash_sha256(copy + p->n - DIGEST_BYTES, copy, p->n - DIGEST_BYTES);
    CU_ASSERT_EQUAL(table_parse(copy, p->n, &t, &e), -EBADMSG);
    CU_ASSERT_PTR_NULL(t);
    if (!strstr(e.text, words)) {
        CU_FAIL("wrong sentence");
        printf("    expected \"%s\", got \"%s\"\n", words, e.text);
    }
}

/* Offset of a matrix of a head-side in the file. */
static size_t matrix_at(const struct pair *p, uint32_t hs, unsigned matrix)
{
    const struct table_codec_entry *entry =
        (const struct table_codec_entry *) (const void *) table_section(p->half, SECTION_CODECS) + hs;
    struct table_matrix all[CODEC_MATRICES];
    size_t at = table_header(p->half)->sections[SECTION_MATRICES].off + entry->matrices_off;

    table_matrices(entry->r, entry->n_pred, D, MATRICES_HALF, all);
    for (unsigned m = 0; m < matrix; m++)
        at += (table_matrix_bytes(all[m]) + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    return at;
}

static void test_scales(void)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 0x1p-127f, 0x1p-149f, -1, 3, 0x1.000002p0f};
    _cleanup_(pair_deinit) struct pair p;
    size_t rows;

    pair_init(&p, PREDICT_HEAD, true);
    rows = p.half->codecs[1].r;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        refused(&p, matrix_at(&p, 0, 1), &bad[i], sizeof(bad[i]),
                "layer 0, head 0, side K: the scale of a row");
        refused(&p, matrix_at(&p, 1, 2) + 4 * (rows - 1), &bad[i], sizeof(bad[i]),
                "side V: the scale of a row");
        refused(&p, matrix_at(&p, 1, 4) + 4 * (D - 1), &bad[i], sizeof(bad[i]), "side V: the scale of a row");
    }
    /* legal, but another table than the golden vectors say */
    refused(&p, matrix_at(&p, 0, 4), &(float){0x1p-126f}, 4, "do not decode");
    /* a product beyond binary32: the first number of the matrix, and the scale of its row */
    memcpy((uint8_t *) p.bytes + matrix_at(&p, 0, 4) + 4 * D, &(uint16_t){0x7bff}, 2);
    refused(&p, matrix_at(&p, 0, 4), &(float){0x1p127f}, 4, "a matrix is not finite");
}

static void test_hostile(void)
{
    const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01};
    _cleanup_(pair_deinit) struct pair p;
    size_t form = offsetof(struct table_header, matrix_form);

    pair_init(&p, PREDICT_HEAD, true);
    for (size_t i = 0; i < 4; i++)
        refused(&p, matrix_at(&p, 1, 4) + 4 * D + 2, &bad[i], 2, "side V: a matrix is not finite");
    refused(&p, form, &(uint32_t){2}, 4, "matrices have form 2");
    refused(&p, form, &(uint32_t){UINT32_MAX}, 4, "matrices have form 4294967295");
    refused(&p, form, &(uint32_t){MATRICES_SINGLE}, 4, "not where they must be");
    refused(&p, offsetof(struct table_header, version), &(uint32_t){TABLE_VERSION_SCALAR}, 4,
            "unknown fields");
    refused(&p, matrix_at(&p, 0, 1) + 4 * p.half->codecs[0].r + 6, &(uint16_t){0x3c00}, 2, "do not encode");
}

/* A byte is missing anywhere, or there are some more: a sanitizer sees a read behind the end. */
static void test_truncated(void)
{
    _cleanup_(pair_deinit) struct pair p;

    pair_init(&p, PREDICT_HEAD, true);
    for (size_t i = 0; i < p.n; i += 127) {
        _cleanup_(freep) uint8_t *cut = malloc(i + 1);
        struct table *t = NULL;

        CU_ASSERT_PTR_NOT_NULL_FATAL(cut);
        memcpy(cut, p.bytes, i);
        if (i >= sizeof(struct table_header) + DIGEST_BYTES) {
            ((struct table_header *) (void *) cut)->n_bytes = i;
            (void) crypto_hash_sha256(cut + i - DIGEST_BYTES, cut, i - DIGEST_BYTES);
        }
        CU_ASSERT_EQUAL(table_parse(cut, i, &t, NULL), -EBADMSG);
    }
}

const struct test_case test_cases[] = {
    TEST(test_numbers), TEST(test_rounding), TEST(test_converted_twice), TEST(test_mapped),
    TEST(test_scales),  TEST(test_hostile),  TEST(test_truncated),       TEST_END,
};
const char test_suite[] = "table_half";
