/* Pages of a prompt in a file: to another daemon of the fleet, and files that are damaged or not for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd_io.h"
#include "client/kvcobra-tiers.h"
#include "proto/page_file.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_import";

enum { PROMPT = 5 * 64, SHARED = 4 * 64, N_PAGES = 4 };

static char key_file[64];
static const char *key_args[8]; /* and what a test adds */

/* A fleet: daemons with one key file. */
static void write_keys(char digit)
{
    char text[160];
    int n, fd;

    (void) snprintf(key_file, sizeof(key_file), "/tmp/kvc-import-%ld.keys", (long) getpid());
    n = snprintf(text, sizeof(text), "index ");
    memset(text + n, digit, 64);
    n += 64;
    n += snprintf(text + n, sizeof(text) - (size_t) n, "\nseal 1 ");
    memset(text + n, 'a', 64);
    n += 64;
    text[n++] = '\n';
    fd = open(key_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CU_ASSERT_EQUAL_FATAL(fd_write_all(fd, text, (size_t) n), 0);
    close(fd);
    key_args[0] = "--key-file";
    key_args[1] = key_file;
    for (size_t i = 2; i < sizeof(key_args) / sizeof(*key_args); i++)
        key_args[i] = NULL;
}

static struct geometry small(void)
{
    return random_table_geometry(1, 2, 1, 32);
}

static int memory_file(const void *bytes, size_t n)
{
    int fd = memfd_create("pages", MFD_CLOEXEC);

    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(fd_pwrite_all(fd, bytes, n, 0), 0);
    return fd;
}

/* Publishes @shared tokens of text 0, and exports what a match finds of them. */
static uint8_t *export_tokens(const struct embedded *m, size_t shared, size_t *ret_bytes)
{
    uint32_t *tokens = scene_tokens(0, shared);
    kvc_seq *s = NULL;
    kvc_fetch *f;
    size_t n = 0;
    struct stat st;
    uint8_t *bytes;
    int fd = memory_file("", 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_export(s, fd, &n), -ENODATA);
    CU_ASSERT_EQUAL(scene_publish(m, s, 0, 0, shared + 64, 64, &n), 0);
    s = kvc_seq_free(s);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(s, tokens, shared, 0, &f), 0); /* with its last chunk */
    while (kvc_fetch_result(f, &n) == -EINPROGRESS)
        ;
    kvc_fetch_free(f);
    n = 0;
    CU_ASSERT_EQUAL(kvc_seq_export(s, -1, &n), -EBADF);
    CU_ASSERT_EQUAL(kvc_seq_export(s, fd, &n), 0);
    CU_ASSERT_EQUAL(n, shared);
    kvc_seq_free(s);
    free(tokens);

    CU_ASSERT_EQUAL_FATAL(fstat(fd, &st), 0);
    bytes = malloc((size_t) st.st_size + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    CU_ASSERT_EQUAL_FATAL(fd_pread_all(fd, bytes, (size_t) st.st_size, 0), 0);
    close(fd);
    *ret_bytes = (size_t) st.st_size;
    return bytes;
}

static uint8_t *export_text(const struct embedded *m, size_t *ret_bytes)
{
    return export_tokens(m, SHARED, ret_bytes);
}

static int import(kvc_client *c, const uint8_t *bytes, size_t n, kvc_import *ret)
{
    int fd = memory_file(bytes, n), r;

    *ret = (kvc_import){.struct_bytes = sizeof(*ret)};
    r = kvc_client_import(c, fd, ret);
    CU_ASSERT_EQUAL(r < 0 || ret->end_err < 0, strcmp(kvc_last_error(c), "no error") != 0);
    close(fd);
    return r;
}

static size_t match(const struct embedded *m)
{
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    kvc_seq_free(s);
    free(tokens);
    return n;
}

static float *attend_matched(const struct embedded *m)
{
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;
    float *out;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, SHARED);
    out = scene_attend(m, s, 0);
    kvc_seq_free(s);
    free(tokens);
    return out;
}

/* ---- another host ---- */

static void test_another_host(void)
{
    struct scene a, b;
    struct embedded ma, mb;
    kvc_client *c = NULL;
    kvc_import i;
    uint8_t *bytes;
    float *there, *here;
    size_t n;

    write_keys('7');
    scene_start(&a, small(), 3, 1, key_args);
    scene_start(&b, small(), 3, 1, key_args);
    ma = scene_client(&a);
    mb = scene_client(&b);
    bytes = export_text(&ma, &n);
    CU_ASSERT_EQUAL(match(&mb), 0);

    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0); /* a program that only imports */
    CU_ASSERT_EQUAL(import(c, bytes, n, &i), -ENOTCONN);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(c, b.daemon.socket), 0);
    CU_ASSERT_EQUAL(import(c, bytes, n, &i), 0);
    CU_ASSERT(i.n_pages == N_PAGES && i.n_taken == N_PAGES && i.n_present == 0 && i.end_err == 0);
    CU_ASSERT_EQUAL(match(&mb), SHARED);
    CU_ASSERT_EQUAL(import(c, bytes, n, &i), 0);
    CU_ASSERT(i.n_taken == N_PAGES && i.n_present == N_PAGES);
    kvc_client_free(c);

    there = attend_matched(&ma);
    here = attend_matched(&mb);
    CU_ASSERT_EQUAL(memcmp(there, here, scene_attend_floats(&ma) * sizeof(*here)), 0);
    free(there);
    free(here);
    free(bytes);
    embedded_free(&ma);
    embedded_free(&mb);
    scene_end(&a);
    scene_end(&b);
    (void) unlink(key_file);
}

static void test_not_for_it(void)
{
    struct scene a, b;
    struct embedded ma, mb;
    kvc_import i;
    uint8_t *bytes, digest[KVC_DIGEST_BYTES];
    size_t n;

    write_keys('7');
    scene_start(&a, small(), 3, 1, key_args);
    ma = scene_client(&a);
    bytes = export_text(&ma, &n);

    write_keys('8'); /* another fleet */
    scene_start(&b, small(), 3, 1, key_args);
    mb = scene_client(&b);
    CU_ASSERT_EQUAL(import(mb.client, bytes, n, &i), -EACCES);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(mb.client), "another key file"));
    embedded_free(&mb);
    scene_end(&b);

    scene_activate(&a, 4, 2, digest); /* another table is active; the old one drains */
    scene_end(&a);
    write_keys('7');
    scene_start(&b, small(), 4, 2, key_args);
    mb = scene_client(&b);
    CU_ASSERT_EQUAL(import(mb.client, bytes, n, &i), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(mb.client), "which is not active here"));
    bytes[56] ^= 1; /* another model */
    uint32_t crc = crc32c(bytes, 124);
    memcpy(bytes + 124, &crc, sizeof(crc));
    CU_ASSERT_EQUAL(import(mb.client, bytes, n, &i), -ENODATA);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(mb.client), "no active table"));
    CU_ASSERT_EQUAL(kvc_client_import(NULL, 0, &i), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_import(mb.client, 0, NULL), -EINVAL);
    i.struct_bytes = 3;
    CU_ASSERT_EQUAL(kvc_client_import(mb.client, 0, &i), -EINVAL);
    i.struct_bytes = sizeof(i);
    CU_ASSERT_EQUAL(kvc_client_import(mb.client, -1, &i), -EBADF);
    embedded_free(&mb);
    scene_end(&b);
    embedded_free(&ma);
    free(bytes);
    (void) unlink(key_file);
}

/* A tenant without room: the beginning of the prompt is there afterwards, and its pages have not evicted each
 * other. */
static void test_no_quota(void)
{
    const struct geometry large = random_table_geometry(8, 4, 4, 128); /* a page has 256 KiB */
    const size_t n_tokens = 40 * 64;
    struct scene a, b;
    struct embedded ma, mb;
    kvc_import i;
    uint8_t *bytes;
    uint32_t *tokens = scene_tokens(0, n_tokens);
    size_t n, found = 0;

    write_keys('7');
    key_args[2] = "--arena-bytes=2M";
    key_args[3] = "--pool-bytes=64M";
    key_args[4] = "--quota-bytes=32M";
    scene_start(&a, large, 4, 1, key_args);
    key_args[4] = "--quota-bytes=8M";
    scene_start(&b, large, 4, 1, key_args);
    ma = scene_client(&a);
    mb = scene_client(&b);
    bytes = export_tokens(&ma, n_tokens, &n);

    CU_ASSERT_EQUAL(import(mb.client, bytes, n, &i), 0);
    CU_ASSERT(i.end_err == -EDQUOT && i.n_pages == 40 && i.n_taken > 0 && i.n_taken < 32);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(mb.client), "quota"));
    CU_ASSERT_EQUAL(kvc_model_peek(mb.model, NULL, tokens, n_tokens, &found), 0);
    CU_ASSERT_EQUAL(found, 64 * i.n_taken);
    free(tokens);
    free(bytes);
    embedded_free(&ma);
    embedded_free(&mb);
    scene_end(&a);
    scene_end(&b);
    (void) unlink(key_file);
}

/* ---- damage ---- */

/* Bytes of the first page in the file, and of each page behind it. */
static void record_sizes(const struct embedded *m, size_t *ret_first, size_t *ret_rest)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(m->model, &info), 0);
    *ret_first = page_file_record_bytes((size_t) info.first_page_bytes);
    *ret_rest = page_file_record_bytes((size_t) info.page_bytes);
}

/* A file with a mistake in page @page: those before it are taken. @page -1: the header. */
static void check_refused(const struct embedded *m, const uint8_t *bytes, size_t n, int page, int err,
                          const char *words)
{
    kvc_import i;
    int r = import(m->client, bytes, n, &i);

    CU_ASSERT_EQUAL_FATAL(r, page < 0 ? -EBADMSG : 0);
    if (page >= 0) {
        CU_ASSERT_EQUAL_FATAL(i.end_err, err);
        CU_ASSERT_EQUAL_FATAL(i.n_taken, (unsigned) page);
        CU_ASSERT_EQUAL(i.n_pages, N_PAGES);
    }
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), words));
}

/* Every byte changed, and the file cut at every byte: pages before the damage are taken, no other. */
static void test_damage(void)
{
    struct scene sc;
    struct embedded m;
    kvc_import i;
    uint8_t *bytes;
    size_t n, first, rest;

    write_keys('7');
    scene_start(&sc, small(), 3, 1, key_args);
    m = scene_client(&sc);
    bytes = export_text(&m, &n);
    record_sizes(&m, &first, &rest);
    CU_ASSERT_EQUAL_FATAL(n, PAGE_FILE_HEADER_BYTES + first + (N_PAGES - 1) * rest);

    for (size_t at = 0; at < n; at += at < 1024 ? 1 : 7) {
        int page = 0;

        if (at < PAGE_FILE_HEADER_BYTES)
            page = -1;
        else if (at >= PAGE_FILE_HEADER_BYTES + first)
            page = (int) ((at - PAGE_FILE_HEADER_BYTES - first) / rest) + 1;
        bytes[at] ^= 0x10;
        check_refused(&m, bytes, n, page, -EBADMSG, "");
        bytes[at] ^= 0x10;
        check_refused(&m, bytes, at, page, -ENODATA, at < 4 ? "not a file of pages" : "was cut");
    }

    /* a page twice, and bytes behind the last one */
    CU_ASSERT_EQUAL(import(m.client, bytes, n, &i), 0);
    CU_ASSERT(i.end_err == 0 && i.n_taken == N_PAGES);
    bytes[n] = 0; /* export_text() has room for it */
    CU_ASSERT_EQUAL(import(m.client, bytes, n + 1, &i), 0);
    CU_ASSERT(i.end_err == -EBADMSG && i.n_taken == N_PAGES);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "more bytes"));
    CU_ASSERT_EQUAL(match(&m), SHARED);

    embedded_free(&m);
    scene_end(&sc);
    free(bytes);
    (void) unlink(key_file);
}

/* Pages of one prompt in another order: each is whole, but of another place. */
static void test_exchanged(void)
{
    struct scene sc;
    struct embedded m;
    uint8_t *bytes, *other;
    size_t n, first, record;

    write_keys('7');
    scene_start(&sc, small(), 3, 1, key_args);
    m = scene_client(&sc);
    bytes = export_text(&m, &n);
    record_sizes(&m, &first, &record);
    other = malloc(record);
    CU_ASSERT_PTR_NOT_NULL_FATAL(other);
    memcpy(other, bytes + n - record, record);
    memcpy(bytes + n - record, bytes + n - 2 * record, record);
    memcpy(bytes + n - 2 * record, other, record);
    check_refused(&m, bytes, n, 2, -EBADMSG, "another place");
    free(other);
    free(bytes);
    embedded_free(&m);
    scene_end(&sc);
    (void) unlink(key_file);
}

const struct test_case test_cases[] = {
    TEST(test_another_host), TEST(test_not_for_it), TEST(test_no_quota),
    TEST(test_damage),       TEST(test_exchanged),  TEST_END,
};
