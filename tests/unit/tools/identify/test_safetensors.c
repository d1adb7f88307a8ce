/* The header of a safetensors file: limits, places, and what is refused. Folders: e2e/cli/model_id.sh. */
#include "tools/identify/safetensors.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/fd_io.h"

const char test_suite[] = "safetensors";

/* Parses @json in a file with @data_bytes after the header. */
static int parse(const char *json, uint64_t data_bytes, struct safetensors *ret)
{
    size_t n = strlen(json);
    struct errmsg e = {""};
    int r;

    *ret = (struct safetensors){.n_tensors = 77};
    r = safetensors_parse(json, n, SAFETENSORS_LENGTH_BYTES + n + data_bytes, "file", ret, &e);
    if (r < 0) {
        CU_ASSERT(strncmp(e.text, "file", 4) == 0 && strlen(e.text) > 10);
        CU_ASSERT(ret->n_tensors == 77 && !ret->tensors); /* untouched */
    }
    return r;
}

static void test_tensors(void)
{
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                               "\"none\":{\"dtype\":\"I64\",\"shape\":[0,9],\"data_offsets\":[16,16]},"
                               "\"half\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[16,19]}}   ";
    uint64_t data = SAFETENSORS_LENGTH_BYTES + strlen(json);
    struct safetensors s;

    CU_ASSERT_EQUAL_FATAL(parse(json, 19, &s), 0);
    CU_ASSERT_EQUAL_FATAL(s.n_tensors, 4);
    CU_ASSERT_STRING_EQUAL(s.tensors[0].name, "a");
    CU_ASSERT(s.tensors[0].n_dims == 0 && s.tensors[0].offset == data && s.tensors[0].bytes == 4);
    CU_ASSERT_STRING_EQUAL(s.tensors[1].name, "b");
    CU_ASSERT_STRING_EQUAL(s.tensors[1].type, "BF16");
    CU_ASSERT(s.tensors[1].n_dims == 2 && s.tensors[1].dims[0] == 2 && s.tensors[1].dims[1] == 3);
    CU_ASSERT(s.tensors[1].offset == data + 4 && s.tensors[1].bytes == 12);
    CU_ASSERT_STRING_EQUAL(s.tensors[2].name, "none");
    CU_ASSERT_STRING_EQUAL(s.tensors[3].name, "half");
    CU_ASSERT_EQUAL(s.tensors[3].bytes, 3);
    safetensors_deinit(&s);
    safetensors_deinit(&s); /* twice is fine */
    CU_ASSERT_EQUAL_FATAL(parse("{}", 0, &s), 0);
    CU_ASSERT_EQUAL(s.n_tensors, 0);
    safetensors_deinit(&s);
}

#define ENTRY(name, type, shape, offsets)                                                                    \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_refusals(void)
{
    static const struct {
        const char *json;
        uint64_t data_bytes;
        int err;
    } cases[] = {
        {"", 0, -EBADMSG},
        {"[]", 0, -EBADMSG},
        {"{} x", 0, -EBADMSG},
        {"{}", 1, -EBADMSG},
        {"{\"__metadata__\":[]}", 0, -EBADMSG},
        {"{" ENTRY("", "U8", "[1]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "}", 0, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "}", 2, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[1,2]") "}", 2, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[1,0]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0,1,2]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1.0]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "1", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[-1]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[9223372036854775808]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, -EBADMSG},
        {"{" ENTRY("a", "F4", "[3]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "Q4", "[1]", "[0,1]") "}", 1, -EOPNOTSUPP},
        {"{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("b", "U8", "[2]", "[1,3]") "}", 3, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("b", "U8", "[1]", "[2,3]") "}", 3, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("a", "U8", "[1]", "[1,2]") "}", 2, -EBADMSG},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("b", "U8", "[1]", "[0,1]") "}", 1, -EBADMSG},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, -EBADMSG},
        {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EBADMSG},
        {"{\"a\":null}", 0, -EBADMSG},
        {"{" ENTRY("\\u001b[2J", "U8", "[1]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("\\u009bJ", "U8", "[1]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a\\u007f", "U8", "[1]", "[0,1]") "}", 1, -EBADMSG},
        {"{" ENTRY("a", "\\n", "[1]", "[0,1]") "}", 1, -EBADMSG},
    };
    struct safetensors s;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int r = parse(cases[i].json, cases[i].data_bytes, &s);

        if (r != cases[i].err)
            printf("    case %zu: %d\n", i, r);
        CU_ASSERT_EQUAL(r, cases[i].err);
    }
    CU_ASSERT_EQUAL_FATAL(parse("{" ENTRY("a", "U8", "[1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, &s), 0);
    safetensors_deinit(&s);
    CU_ASSERT_EQUAL_FATAL(parse("{" ENTRY("\\u00a0\\u00e9", "U8", "[1]", "[0,1]") "}", 1, &s), 0);
    CU_ASSERT_STRING_EQUAL(s.tensors[0].name, "\xc2\xa0\xc3\xa9");
    safetensors_deinit(&s);
}

static int length(uint64_t n, uint64_t file_bytes)
{
    uint8_t first[SAFETENSORS_LENGTH_BYTES];
    size_t got = 7;
    int r;

    for (unsigned i = 0; i < sizeof(first); i++)
        first[i] = (uint8_t) (n >> 8 * i);
    r = safetensors_header_bytes(first, file_bytes, "file", &got, NULL);
    CU_ASSERT_EQUAL(got, r < 0 ? 7 : n);
    return r;
}

static void test_lengths(void)
{
    CU_ASSERT_EQUAL(length(0, 8), 0);
    CU_ASSERT_EQUAL(length(0, 7), -EBADMSG);
    CU_ASSERT_EQUAL(length(10, 18), 0);
    CU_ASSERT_EQUAL(length(11, 18), -EBADMSG);
    CU_ASSERT_EQUAL(length(SAFETENSORS_HEADER_MAX - 1, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(length(SAFETENSORS_HEADER_MAX, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(length(SAFETENSORS_HEADER_MAX + 1, UINT64_MAX), -EBADMSG);
    CU_ASSERT_EQUAL(length(UINT64_MAX, UINT64_MAX), -EBADMSG);
    CU_ASSERT_EQUAL(length(UINT64_C(1) << 32, UINT64_MAX), -EBADMSG); /* no truncation to 32 bits */
}

static void test_files(void)
{
    static const char json[] = "{" ENTRY("a", "U8", "[3]", "[0,3]") "}";
    uint8_t first[SAFETENSORS_LENGTH_BYTES] = {sizeof(json) - 1};
    int fd = memfd_create("test", MFD_CLOEXEC), ends[2];
    struct errmsg e = {""};
    struct safetensors s;

    CU_ASSERT_EQUAL(safetensors_read(fd, "file", &s, &e), -EBADMSG); /* empty */
    CU_ASSERT_EQUAL(fd_write_all(fd, first, sizeof(first)), 0);
    CU_ASSERT_EQUAL(safetensors_read(fd, "file", &s, &e), -EBADMSG);
    CU_ASSERT_EQUAL(fd_write_all(fd, json, sizeof(json) - 1), 0);
    CU_ASSERT_EQUAL(safetensors_read(fd, "file", &s, &e), -EBADMSG); /* the bytes are missing */
    CU_ASSERT_EQUAL(fd_write_all(fd, "abc", 3), 0);
    CU_ASSERT_EQUAL_FATAL(safetensors_read(fd, "file", &s, &e), 0);
    CU_ASSERT(s.n_tensors == 1 && s.tensors[0].offset == 8 + sizeof(json) - 1);
    safetensors_deinit(&s);
    (void) close(fd);

    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    CU_ASSERT_EQUAL(safetensors_read(ends[0], "file", &s, &e), -EINVAL);
    (void) close(ends[0]);
    (void) close(ends[1]);
}

const struct test_case test_cases[] = {
    TEST(test_tensors), TEST(test_refusals), TEST(test_lengths), TEST(test_files), TEST_END,
};
