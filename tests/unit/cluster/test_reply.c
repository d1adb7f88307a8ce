/* Tests of cluster/reply.c. */
#include "cluster/reply.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "reply";

enum { BYTES_MAX = 1 << 20 };

static int take(const char *text, size_t n, struct reply **ret)
{
    struct reply_reader *reader = reply_reader_new(BYTES_MAX);
    int r;

    assert(reader);
    r = reply_feed(reader, text, n);
    if (r == 0)
        r = reply_take(reader, ret);
    (void) reply_reader_free(reader);
    return r;
}

static void test_kinds(void)
{
    static const char text[] = "*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n$5\r\na\r\n\0b\r\n*0\r\n";
    struct reply *r = NULL;

    CU_ASSERT_EQUAL_FATAL(take(text, sizeof(text) - 1, &r), 1);
    CU_ASSERT(r->kind == REPLY_ARRAY && r->n == 6);
    CU_ASSERT(r->items[0]->kind == REPLY_STATUS && strcmp(r->items[0]->text, "OK") == 0);
    CU_ASSERT(r->items[1]->kind == REPLY_ERROR && reply_is_error(r->items[1], "ERR"));
    CU_ASSERT(!reply_is_error(r->items[1], "ER") && !reply_is_error(r->items[0], "OK"));
    CU_ASSERT(r->items[2]->kind == REPLY_INTEGER && r->items[2]->integer == -7);
    CU_ASSERT(r->items[3]->kind == REPLY_NIL);
    CU_ASSERT(r->items[4]->kind == REPLY_STRING && r->items[4]->n == 5);
    CU_ASSERT_EQUAL(memcmp(r->items[4]->text, "a\r\n\0b", 6), 0);
    CU_ASSERT(r->items[5]->kind == REPLY_ARRAY && r->items[5]->n == 0);
    (void) reply_free(r);
}

/* Two replies, cut at each byte: the first piece gives those that are whole. */
static void test_every_cut(void)
{
    static const char text[] = "*2\r\n$3\r\nabc\r\n*1\r\n:12\r\n$-1\r\n";
    const size_t n = sizeof(text) - 1, first = 22;

    for (size_t cut = 0; cut <= n; cut++) {
        struct reply_reader *reader = reply_reader_new(BYTES_MAX);
        struct reply *r = NULL;
        unsigned n_taken = 0;

        CU_ASSERT_EQUAL(reply_feed(reader, text, cut), 0);
        for (; reply_take(reader, &r) == 1; n_taken++)
            r = reply_free(r);
        CU_ASSERT_EQUAL(n_taken, (cut >= first) + (cut >= n));
        CU_ASSERT_EQUAL(reply_feed(reader, text + cut, n - cut), 0);
        for (; reply_take(reader, &r) == 1; n_taken++)
            r = reply_free(r);
        CU_ASSERT_EQUAL(n_taken, 2);
        (void) reply_reader_free(reader);
    }
}

static void test_hostile(void)
{
    static const char *const texts[] = {
        "?\r\n",
        "hello\r\n",
        "*2147483647\r\n",
        "*4294967297\r\n",
        "*9223372036854775807\r\n",
        "*1152921504606846977\r\n", /* times 8 is 8 */
        "*-2\r\n",
        "*300000\r\n",
        "$-2\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    };
    struct reply *r = NULL;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int err = take(texts[i], strlen(texts[i]), &r);

        /* 0.14.1 takes 4294967297 for 1: then the reply is not whole */
        CU_ASSERT(err == -EBADMSG || (err == 0 && i == 3));
        CU_ASSERT_PTR_NULL(r);
    }
}

/* A thousand arrays of 1000 nils each would be a million items of 64 bytes from 5 MB. */
static void test_items_in_all(void)
{
    struct reply_reader *reader = reply_reader_new((size_t) 16 << 20);
    struct reply *r = NULL;
    int err = reply_feed(reader, "*1000\r\n", 7);

    for (unsigned i = 0; i < 1000 && err == 0; i++) {
        err = reply_feed(reader, "*1000\r\n", 7);
        for (unsigned k = 0; k < 1000 && err == 0; k++)
            err = reply_feed(reader, "$-1\r\n", 5);
        if (err == 0)
            err = reply_take(reader, &r);
    }
    CU_ASSERT_EQUAL(err, -EBADMSG);
    CU_ASSERT_PTR_NULL(r);
    (void) reply_reader_free(reader);
}

/* A reply may have the limit's bytes; then the next one has as many again. */
static void test_bytes(void)
{
    enum { LIMIT = 1000 };
    struct reply_reader *reader = reply_reader_new(LIMIT);
    char text[LIMIT + 1];
    int n = snprintf(text, sizeof(text), "$%d\r\n%0*d\r\n", LIMIT - 8, LIMIT - 8, 0);
    struct reply *r = NULL;

    CU_ASSERT_EQUAL(n, LIMIT);
    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(reply_feed(reader, text, LIMIT - 1), 0);
        CU_ASSERT_EQUAL(reply_take(reader, &r), 0);
        CU_ASSERT_EQUAL(reply_feed(reader, text + LIMIT - 1, 1), 0);
        CU_ASSERT_EQUAL_FATAL(reply_take(reader, &r), 1);
        CU_ASSERT_EQUAL(r->n, LIMIT - 8);
        r = reply_free(r);
    }
    CU_ASSERT_EQUAL(reply_feed(reader, "$9999\r\n", 7), 0);
    CU_ASSERT_EQUAL(reply_feed(reader, text, LIMIT - 6), -EFBIG);
    (void) reply_reader_free(reader);
}

const struct test_case test_cases[] = {
    TEST(test_kinds),        TEST(test_every_cut), TEST(test_hostile),
    TEST(test_items_in_all), TEST(test_bytes),     TEST_END,
};
