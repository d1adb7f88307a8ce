/* Traces: requests with their blocks numbered from 0, and lines that are refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tools/bench/capacity_trace.h"

const char test_suite[] = "capacity_trace";

static char path[32];
static struct errmsg error;
static uint32_t prompt_tokens;

static int read_text(const char *text, uint32_t n_max, struct capacity_trace *ret)
{
    size_t n = strlen(text);
    int fd, r;

    (void) strcpy(path, "/tmp/kvcobra-trace-XXXXXX");
    fd = mkstemp(path);
    assert(fd >= 0 && write(fd, text, n) == (ssize_t) n && close(fd) == 0);
    errmsg_clear(&error);
    r = capacity_trace_read(path, n_max, prompt_tokens, ret, &error);
    (void) unlink(path);
    return r;
}

static void test_requests(void)
{
    static const char text[] = "{\"timestamp\": 3, \"hash_ids\": [7, 9223372036854775807, 7]}\n"
                               "\n"
                               "{\"hash_ids\": []}\r\n"
                               "{\"hash_ids\": [0], \"other\": {\"hash_ids\": [5]}}";
    static const uint32_t blocks[] = {1, 2, 1, 0};
    struct capacity_trace t = CAPACITY_TRACE_INIT;

    CU_ASSERT_EQUAL_FATAL(read_text(text, UINT32_MAX, &t), 0);
    CU_ASSERT(t.n_requests == 3 && t.n_blocks == 4 && t.n_distinct == 3);
    CU_ASSERT(memcmp(t.blocks, blocks, sizeof(blocks)) == 0);
    CU_ASSERT_EQUAL(capacity_trace_length(&t, 0), 3);
    CU_ASSERT_EQUAL(capacity_trace_length(&t, 1), 0);
    CU_ASSERT_EQUAL(capacity_trace_length(&t, 2), 1);
    capacity_trace_deinit(&t);

    CU_ASSERT_EQUAL_FATAL(read_text(text, 1, &t), 0);
    CU_ASSERT(t.n_requests == 1 && t.n_blocks == 3 && t.n_distinct == 2);
    capacity_trace_deinit(&t);
}

/* Tokens of a block, by the lengths of prompts: a power of two that agrees with all. */
static void test_block_tokens(void)
{
    static const struct {
        const char *text;
        uint32_t tokens;
    } cases[] = {
        {"{\"input_length\": 40, \"hash_ids\": [1, 2, 3]}", 16},
        {"{\"input_length\": 6758, \"hash_ids\": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}\n"
         "{\"input_length\": 3, \"hash_ids\": [1]}",
         512},
        {"{\"input_length\": 100, \"hash_ids\": [1]}\n{\"input_length\": 90, \"hash_ids\": [1, 2, 3]}",
         0}, /* 100 or 44 */
        {"{\"input_length\": 1e3, \"hash_ids\": [1, 2]}\n{\"hash_ids\": [1]}", 0},
        {"{\"input_length\": 7, \"hash_ids\": []}\n{\"input_length\": -7, \"hash_ids\": [1]}", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct capacity_trace t = CAPACITY_TRACE_INIT;

        CU_ASSERT_EQUAL(read_text(cases[i].text, UINT32_MAX, &t), 0);
        CU_ASSERT_EQUAL(t.block_tokens, cases[i].tokens);
        capacity_trace_deinit(&t);
    }
}

/* Ids are compared as 64 bits without a sign, and what is none as a text. */
static void test_ids(void)
{
    static const char text[] =
        "\xef\xbb\xbf{\"hash_ids\": [9223372036854775807, 9223372036854775808, 18446744073709551615, -1, "
        "0]}\n"
        "{\"t\": 1.5e3, \"s\": \"a \\\" 5 [6\", \"hash_ids\": [18446744073709551615, 18446744073709551616, "
        "18446744073709551614]}\n"
        "{\"hash_ids\": [\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\", "
        "\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a09\", -1, \"18446744073709551616\", "
        "-9223372036854775808, \"\"]}\n";
    struct capacity_trace t = CAPACITY_TRACE_INIT;
    const uint32_t *b;

    CU_ASSERT_EQUAL_FATAL(read_text(text, UINT32_MAX, &t), 0);
    CU_ASSERT(t.n_requests == 3 && t.n_blocks == 14 && t.n_distinct == 11);
    b = t.blocks;
    CU_ASSERT(b[2] == b[5] && b[3] == b[10] && b[6] == b[11]);
    CU_ASSERT(b[0] != b[1] && b[1] != b[2] && b[5] != b[7] && b[8] != b[9]);
    capacity_trace_deinit(&t);
}

/* Prompts are cut into whole blocks. Equal beginnings have equal ids; equal blocks behind others do not. */
static void test_prompts(void)
{
    static const char text[] = "{\"prompt\": [1, 2, 3, 4, 5], \"output_tokens\": 3}\n"
                               "{\"prompt_token_ids\": [1, 2, 3, 5]}\n"
                               "{\"prompt\": [3, 4, 3, 4, 3, 4]}\n"
                               "{\"prompt\": \"12345678abcdefghx\"}\n"
                               "{\"prompt\": \"12345678abcdefgX\"}\n"
                               "{\"prompt\": \"1234567\"}\n";
    struct capacity_trace t = CAPACITY_TRACE_INIT;
    const uint32_t *b;

    prompt_tokens = 2;
    CU_ASSERT_EQUAL_FATAL(read_text(text, UINT32_MAX, &t), 0);
    CU_ASSERT(t.n_requests == 6 && t.n_blocks == 11 && t.n_distinct == 9);
    CU_ASSERT(t.has_prompts && t.has_texts && t.block_tokens == 2);
    CU_ASSERT(capacity_trace_length(&t, 0) == 2 && capacity_trace_length(&t, 5) == 0);
    b = t.blocks;
    CU_ASSERT(b[0] == b[2] && b[7] == b[9]); /* [1, 2], "12345678" */
    CU_ASSERT(b[1] != b[3] && b[8] != b[10] && b[1] != b[4] && b[4] != b[5] && b[5] != b[6]);
    capacity_trace_deinit(&t);

    prompt_tokens = 0;
    CU_ASSERT_EQUAL(read_text("{\"prompt\": \"short\"}\n", UINT32_MAX, &t), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(error.text, "whole block"));
    capacity_trace_deinit(&t);
}

static void test_many(void)
{
    enum { REQUESTS = 3000, LINE = 64 };
    char *text = malloc(REQUESTS * LINE), *at = text;
    struct capacity_trace t = CAPACITY_TRACE_INIT;

    assert(text);
    for (int i = 0; i < REQUESTS; i++)
        at += snprintf(at, LINE, "{\"hash_ids\": [%d, %d]}\n", 2 * i, 2 * i + 1);
    CU_ASSERT_EQUAL_FATAL(read_text(text, UINT32_MAX, &t), 0);
    CU_ASSERT(t.n_requests == REQUESTS && t.n_distinct == 2 * REQUESTS);
    for (uint32_t i = 0; i < 2 * REQUESTS; i++)
        CU_ASSERT_EQUAL(t.blocks[i], i);
    capacity_trace_deinit(&t);
    free(text);
}

static void test_refused(void)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "has no request"},
        {"{\"hash_ids\": []}\n", "has no request"},
        {"{\"hash_ids\": [1]}\n{\"hash_ids\": [1", "line 2: no JSON"},
        {"[1]\n", "line 1: no array"},
        {"{\"hash_ids\": 1}\n", "line 1: no array"},
        {"{\"hash_ids\": [1, true]}\n", "else than integers and texts"},
        {"{\"hash_ids\": [1.5]}\n", "else than integers and texts"},
        {"{\"hash_ids\": [1e5]}\n", "else than integers and texts"},
        {"{\"hash_ids\": [[1]]}\n", "else than integers and texts"},
        {"{\"hash_ids\": [007]}\n", "line 1: no JSON"},
        {"{\"hash_ids\": [--7]}\n", "line 1: no JSON"},
        {"{\"messages\": []}\n", "line 1: no array \"hash_ids\", and no \"prompt\""},
        {"{\"prompt\": 7}\n", "line 1: no array"},
        {"{\"prompt\": [1, \"a\"]}\n", "line 1: token ids that are no integers"},
        {"{\"hash_ids\": [1]}\n{\"prompt\": \"a\"}\n", "line 2: requests with \"hash_ids\" and with prompts"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct capacity_trace t = CAPACITY_TRACE_INIT;

        CU_ASSERT_EQUAL(read_text(cases[i].text, UINT32_MAX, &t), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(error.text, cases[i].sentence));
        CU_ASSERT_PTR_NOT_NULL(strstr(error.text, path));
        capacity_trace_deinit(&t);
    }
}

static void test_no_file(void)
{
    struct capacity_trace t = CAPACITY_TRACE_INIT;

    CU_ASSERT_EQUAL(capacity_trace_read("/nowhere/trace", 1, 0, &t, &error), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(error.text, "/nowhere/trace"));
    CU_ASSERT(capacity_trace_read("/", 1, 0, &t, &error) < 0);
    capacity_trace_deinit(&t);
}

const struct test_case test_cases[] = {
    TEST(test_requests), TEST(test_block_tokens), TEST(test_ids),     TEST(test_prompts),
    TEST(test_many),     TEST(test_refused),      TEST(test_no_file), TEST_END};
