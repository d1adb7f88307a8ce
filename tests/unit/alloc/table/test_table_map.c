/* Tables in shared memory: the view is that of a file; what may change, and what is hostile, is refused. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/table/table_format.h"
#include "base/cleanup.h"
#include "base/fd_io.h"
#include "tests/unit/alloc/table_fixture.h"

enum { ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

static int make_object(const void *bytes, size_t n, int seals)
{
    int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(fd_write_all(fd, bytes, n), 0);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* Maps a copy of the bytes. */
static int map_copy(const void *bytes, size_t n, int seals, const uint8_t *digest, struct table **ret)
{
    _cleanup_(closep) int fd = make_object(bytes, n, seals);

    return table_map(fd, n, digest, ret, NULL);
}

/* Sums everything that the view points to, so that a sanitizer sees a pointer that leaves the object. */
static double sum_of(const struct table *t)
{
    double sum = (double) strlen(t->provenance);

    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++) {
        const struct codec *c = &t->codecs[i];

        for (uint32_t j = 0; j < t->geometry.d; j++)
            sum += (double) c->mean[j] + (double) c->enc_mean[j];
        for (uint32_t j = 0; j < c->r * t->geometry.d; j++)
            sum += (double) c->enc[j];
        for (uint32_t j = 0; j < c->r_in * t->geometry.d; j++)
            sum += (double) c->dec[j];
    }
    return sum;
}

static void test_same_view(void)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *mapped = NULL;
    struct fixture f;
    size_t n;

    t = build_usual(&f, PREDICT_HEAD, &bytes, &n);
    CU_ASSERT_EQUAL_FATAL(map_copy(bytes, n, ALL_SEALS, t->digest, &mapped), 0);
    CU_ASSERT_EQUAL(mapped->n_bytes, n);
    CU_ASSERT_EQUAL(memcmp(mapped->digest, t->digest, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(memcmp(mapped->geometry_digest, t->geometry_digest, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(memcmp(&mapped->geometry, &t->geometry, sizeof(t->geometry)), 0);
    CU_ASSERT_EQUAL(memcmp(mapped->levels, t->levels, sizeof(t->levels)), 0);
    CU_ASSERT_STRING_EQUAL(mapped->provenance, t->provenance);
    CU_ASSERT_EQUAL(mapped->bpd_code, t->bpd_code);
    CU_ASSERT_EQUAL(sum_of(mapped), sum_of(t));
    (void) table_unref(table_ref(mapped));
    CU_ASSERT_EQUAL(sum_of(mapped), sum_of(t));
}

static void test_refused(void)
{
    static const int missing[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE};
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct table *none = NULL;
    char path[] = "/tmp/kvc-test-XXXXXX";
    uint8_t other[DIGEST_BYTES];
    struct fixture f;
    size_t n;
    int fd;

    t = build_usual(&f, PREDICT_NONE, &bytes, &n);
    memcpy(other, t->digest, DIGEST_BYTES);
    other[31] ^= 1;
    CU_ASSERT_EQUAL(map_copy(bytes, n, ALL_SEALS, other, &none), -EBADMSG);
    CU_ASSERT_EQUAL(map_copy(bytes, n - 1, ALL_SEALS, t->digest, &none), -EBADMSG);
    CU_ASSERT_EQUAL(map_copy(bytes, 100, ALL_SEALS, t->digest, &none), -EBADMSG);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(map_copy(bytes, n, ALL_SEALS & ~missing[i], t->digest, &none), -EPERM);

    fd = make_object(bytes, n, ALL_SEALS);
    CU_ASSERT_EQUAL(table_map(fd, n + 1, t->digest, &none, NULL), -EBADMSG);
    CU_ASSERT_EQUAL(table_map(fd, n - 1, t->digest, &none, NULL), -EBADMSG);
    (void) close(fd);
    CU_ASSERT_EQUAL(table_map(-1, n, t->digest, &none, NULL), -EBADF);

    fd = mkstemp(path); /* a file has no seals */
    CU_ASSERT_FATAL(fd >= 0);
    (void) unlink(path);
    CU_ASSERT_EQUAL_FATAL(fd_write_all(fd, bytes, n), 0);
    CU_ASSERT_EQUAL(table_map(fd, n, t->digest, &none, NULL), -EPERM);
    (void) close(fd);
    CU_ASSERT_PTR_NULL(none);
}

/* One byte of header or directory is wrong: the table is refused, or its view stays inside the object. */
static void test_damaged_structure(void)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    const struct table_header *h;
    struct fixture f;
    size_t n, end, n_refused = 0;

    t = build_usual(&f, PREDICT_HEAD, &bytes, &n);
    h = table_header(t);
    end = (size_t) (h->sections[SECTION_CODECS].off + h->sections[SECTION_CODECS].bytes);
    for (size_t i = 0; i < end; i++) {
        struct table *damaged = NULL;

        ((uint8_t *) bytes)[i] ^= 0x41;
        if (map_copy(bytes, n, ALL_SEALS, t->digest, &damaged) < 0)
            n_refused++;
        else
            (void) sum_of(damaged);
        (void) table_unref(damaged);
        ((uint8_t *) bytes)[i] ^= 0x41;
    }
    CU_ASSERT(n_refused > 200);
}

const struct test_case test_cases[] = {TEST(test_same_view), TEST(test_refused), TEST(test_damaged_structure),
                                       TEST_END};
const char test_suite[] = "table_map";
