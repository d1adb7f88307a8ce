/* Tests of cluster/intake.c. */
#include "cluster/intake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/reply.h"
#include "tests/lib/test.h"

const char test_suite[] = "intake";

enum {
    BYTES_MAX = 1 << 20,
    PLACE_BYTES = 3000,
    VALUE_BYTES = 2500,
    GUARD = 0xaa,
    STREAM_BYTES_MAX = 1 << 15
};

static uint8_t place_bytes[PLACE_BYTES + 1], value[VALUE_BYTES];
static const struct intake_place place = {place_bytes, PLACE_BYTES};

static char stream[STREAM_BYTES_MAX];
static size_t n_stream;

static void add(const char *text)
{
    size_t n = strlen(text);

    assert(n <= sizeof(stream) - n_stream);
    memcpy(stream + n_stream, text, n);
    n_stream += n;
}

static void add_value(size_t n)
{
    char line[32];

    (void) snprintf(line, sizeof(line), "$%zu\r\n", n);
    add(line);
    assert(n + 2 <= sizeof(stream) - n_stream);
    for (size_t i = 0; i < n; i++)
        stream[n_stream + i] = (char) (i < VALUE_BYTES ? value[i] : 1);
    n_stream += n;
    add("\r\n");
}

static void begin(void)
{
    n_stream = 0;
    for (size_t i = 0; i < VALUE_BYTES; i++)
        value[i] = (uint8_t) test_rand();
    memset(place_bytes, GUARD, sizeof(place_bytes));
}

/* Receives a piece as a node does: into the place, if a value is on its way there. */
static size_t receive(struct intake *i, const char *at, size_t n, uint8_t *buffer, struct intake_bytes *ret)
{
    size_t size = n;
    uint8_t *room = intake_room(i, &size);

    n = size < n ? size : n;
    memcpy(room ? room : buffer, at, n);
    *ret = (struct intake_bytes){.at = buffer, .n = room ? 0 : n};
    if (room)
        intake_filled(i, n);
    return n;
}

static void check_value(const struct reply *r, size_t n, bool is_placed)
{
    CU_ASSERT_FATAL(r->kind == REPLY_STRING && r->n == n);
    CU_ASSERT_EQUAL(r->text == NULL, is_placed);
    CU_ASSERT_EQUAL(
        memcmp(is_placed ? (const char *) place_bytes : r->text, value, n < VALUE_BYTES ? n : VALUE_BYTES),
        0);
    CU_ASSERT_EQUAL(place_bytes[PLACE_BYTES], GUARD);
}

static void check_reply(unsigned k, const struct reply *r)
{
    static const char error[] = "ERR an error whose line is longer than that of any value";

    switch (k) {
    case 0:
        CU_ASSERT(r->kind == REPLY_STATUS && strcmp(r->text, "OK") == 0);
        break;
    case 1:
    case 6:
        check_value(r, VALUE_BYTES, true);
        memset(place_bytes, GUARD, PLACE_BYTES);
        break;
    case 2:
        CU_ASSERT(r->kind == REPLY_STRING && r->n == 0 && r->text);
        break;
    case 3:
        check_value(r, INTAKE_VALUE_BYTES_MIN - 1, false);
        break;
    case 4:
        CU_ASSERT_EQUAL(r->kind, REPLY_NIL);
        break;
    case 5:
        CU_ASSERT(r->kind == REPLY_ERROR && strcmp(r->text, error) == 0);
        break;
    case 7:
        check_value(r, PLACE_BYTES + 1, false); /* one more than there is room for */
        break;
    case 8:
        check_value(r, INTAKE_VALUE_BYTES_MIN, true);
        break;
    case 9:
        CU_ASSERT(r->kind == REPLY_ARRAY && r->n == 2 && r->items[1]->n == 3);
        break;
    default:
        CU_ASSERT(r->kind == REPLY_INTEGER && r->integer == 12);
    }
}

/* All kinds of replies, in pieces of each size. */
static void test_pieces(void)
{
    static uint8_t buffer[STREAM_BYTES_MAX];

    begin();
    add("+OK\r\n");
    add_value(VALUE_BYTES);
    add_value(0);
    add_value(INTAKE_VALUE_BYTES_MIN - 1);
    add("$-1\r\n-ERR an error whose line is longer than that of any value\r\n");
    add_value(VALUE_BYTES);
    add_value(PLACE_BYTES + 1);
    add_value(INTAKE_VALUE_BYTES_MIN);
    add("*2\r\n:1\r\n$3\r\nabc\r\n:12\r\n"); /* the reader takes what follows a list, too */
    for (size_t piece = 1; piece <= n_stream; piece += 1 + piece / 8) {
        struct intake *i = intake_new(BYTES_MAX);
        unsigned n_taken = 0;

        assert(i);
        for (size_t at = 0; at < n_stream;) {
            struct intake_bytes b;
            struct reply *r = NULL;

            at += receive(i, stream + at, n_stream - at < piece ? n_stream - at : piece, buffer, &b);
            for (; intake_take(i, &place, &b, &r) == 1; r = reply_free(r))
                check_reply(n_taken++, r);
            CU_ASSERT_EQUAL_FATAL(b.n, 0);
        }
        CU_ASSERT_EQUAL(n_taken, 11);
        (void) intake_free(i);
    }
}

/* The place of a request that has ended belongs to another. */
static void test_discard(void)
{
    static uint8_t buffer[STREAM_BYTES_MAX];
    struct intake *i = intake_new(BYTES_MAX);
    struct intake_bytes b;
    struct reply *r = NULL;
    size_t at, n;

    assert(i);
    begin();
    add_value(VALUE_BYTES);
    add(":12\r\n");
    at = receive(i, stream, 1000, buffer, &b);
    CU_ASSERT_EQUAL(intake_take(i, &place, &b, &r), 0);
    CU_ASSERT_PTR_NOT_NULL(intake_room(i, &n));
    intake_discard(i);
    memset(place_bytes, GUARD, sizeof(place_bytes));
    CU_ASSERT_PTR_NULL(intake_room(i, &n));
    while (at < n_stream) {
        at += receive(i, stream + at, n_stream - at < 700 ? n_stream - at : 700, buffer, &b);
        for (; intake_take(i, &(struct intake_place){.to = NULL}, &b, &r) == 1; r = reply_free(r))
            n = r->n;
    }
    for (size_t k = 0; k < sizeof(place_bytes); k++)
        CU_ASSERT_EQUAL_FATAL(place_bytes[k], GUARD);
    CU_ASSERT_EQUAL(n, 0); /* the integer came last */
    (void) intake_free(i);
}

/* Lines that end otherwise: the reader alone decides what they are, and gets all bytes. */
static void test_odd_lines(void)
{
    static const char *const texts[] = {
        "+OK\n+OK\r\n", "-an error that is long, with \n in its middle\r\n:1\r\n", "$-1\n\r\n:1\r\n"};

    for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
        struct intake_bytes b = {(const uint8_t *) texts[k], strlen(texts[k])};
        struct reply_reader *reader = reply_reader_new(BYTES_MAX);
        struct intake *i = intake_new(BYTES_MAX);
        struct reply *a = NULL, *r = NULL;
        int of_reader = 1, of_intake = 1;

        CU_ASSERT_EQUAL(reply_feed(reader, b.at, b.n), 0);
        while (of_reader == 1 && of_intake == of_reader) {
            of_reader = reply_take(reader, &a);
            of_intake = intake_take(i, &place, &b, &r);
            CU_ASSERT_EQUAL(of_intake, of_reader);
            if (of_reader == 1)
                CU_ASSERT(a->kind == r->kind && a->n == r->n);
            a = reply_free(a);
            r = reply_free(r);
        }
        CU_ASSERT(of_intake < 0 || b.n == 0);
        (void) reply_reader_free(reader);
        (void) intake_free(i);
    }
}

static void test_malformed(void)
{
    static const char *const texts[] = {"?\r\n", "$-2\r\n", "$12x\r\n", "*-2\r\n",
                                        "$99999999999999999999\r\n"};
    struct intake_bytes b;
    struct reply *r = NULL;

    for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
        struct intake *i = intake_new(BYTES_MAX);

        b = (struct intake_bytes){(const uint8_t *) texts[k], strlen(texts[k])};
        CU_ASSERT_EQUAL(intake_take(i, &place, &b, &r), -EBADMSG);
        (void) intake_free(i);
    }

    begin(); /* a value that is longer than its length */
    add_value(VALUE_BYTES);
    stream[n_stream - 2] = 'x';
    for (unsigned cut = 0; cut < 2; cut++) {
        struct intake *i = intake_new(BYTES_MAX);
        size_t n = n_stream - cut;

        b = (struct intake_bytes){(const uint8_t *) stream, n};
        CU_ASSERT_EQUAL(intake_take(i, &place, &b, &r), -EBADMSG);
        (void) intake_free(i);
    }
}

const struct test_case test_cases[] = {TEST(test_pieces), TEST(test_discard), TEST(test_odd_lines),
                                       TEST(test_malformed), TEST_END};
