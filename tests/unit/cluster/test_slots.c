/* Tests of cluster/slots.c. */
#include "cluster/slots.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "cluster/reply.h"
#include "tests/lib/test.h"

const char test_suite[] = "slots";

static uint16_t slot(const char *key)
{
    return slots_of_key(key, strlen(key));
}

/*
 * The check value of the specification is CRC16("123456789") = 0x31c3; "foo" is from CLUSTER KEYSLOT, and the
 * key with an empty tag from binascii.crc_hqx() of Python.
 */
static void test_known_slots(void)
{
    CU_ASSERT_EQUAL(slot("123456789"), 0x31c3);
    CU_ASSERT_EQUAL(slot("foo"), 12182);
    CU_ASSERT_EQUAL(slot(""), 0);
    CU_ASSERT_EQUAL(slot("foo{}{bar}"), 8363);
}

static void test_hash_tags(void)
{
    CU_ASSERT_EQUAL(slot("{user1000}.following"), slot("user1000"));
    CU_ASSERT_EQUAL(slot("a{foo}{bar}"), slot("foo"));
    CU_ASSERT_NOT_EQUAL(slot("foo{}{bar}"), slot("bar")); /* an empty tag: the whole key */
    CU_ASSERT_EQUAL(slot("foo{{bar}}zap"), slot("{bar"));
    CU_ASSERT_NOT_EQUAL(slot("foo{bar"), slot("bar"));
    CU_ASSERT_EQUAL(slots_of_key("foo{bar}", 7), slots_of_key("foo{bar", 7)); /* reads no further */
}

static struct reply *parse(const char *text)
{
    struct reply_reader *reader = reply_reader_new(1 << 20);
    struct reply *r = NULL;

    assert(reader && reply_feed(reader, text, strlen(text)) == 0 && reply_take(reader, &r) == 1);
    (void) reply_reader_free(reader);
    return r;
}

struct seen {
    unsigned n;
    struct slots_range last;
    struct errmsg gap;
};

static void on_range(void *ctx, const struct slots_range *s)
{
    struct seen *seen = ctx;

    seen->n++;
    seen->last = *s;
}

static bool over_tls = true;

static int read_map(const char *text, struct seen *seen)
{
    struct reply *r = parse(text);
    struct errmsg e = {""};
    int err;

    *seen = (struct seen){.n = 0};
    err = slots_parse(r, over_tls, on_range, seen, &seen->gap, &e);
    CU_ASSERT_EQUAL(err == 0, e.text[0] == '\0');
    (void) reply_free(r);
    return err;
}

static void test_map(void)
{
    struct seen seen;

    CU_ASSERT_EQUAL(read_map("*2\r\n"
                             "*4\r\n:0\r\n:5460\r\n*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$1\r\na\r\n"
                             "*2\r\n$9\r\n127.0.0.1\r\n:7003\r\n"
                             "*3\r\n:5461\r\n:16383\r\n*2\r\n$3\r\n::1\r\n:7001\r\n",
                             &seen),
                    0);
    CU_ASSERT_EQUAL(seen.n, 2);
    CU_ASSERT(seen.last.first == 5461 && seen.last.last == 16383 && seen.last.port == 7001);
    CU_ASSERT_STRING_EQUAL(seen.last.host, "::1");
    CU_ASSERT_EQUAL(read_map("*0\r\n", &seen), 0);
    CU_ASSERT_EQUAL(read_map("*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$-1\r\n:1\r\n", &seen), 0);
    CU_ASSERT_STRING_EQUAL(seen.last.host, "");
    CU_ASSERT_EQUAL(read_map("*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$1\r\n?\r\n:65535\r\n", &seen), 0);
    CU_ASSERT_STRING_EQUAL(seen.last.host, "");
}

static void test_malformed_maps(void)
{
    static const char *const maps[] = {"+OK\r\n", "-ERR unknown command\r\n", "$-1\r\n", "*1\r\n:1\r\n",
                                       "*2\r\n$1\r\na\r\n*1\r\n:1\r\n"};
    struct seen seen;

    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        CU_ASSERT_EQUAL(read_map(maps[i], &seen), -EBADMSG);
        CU_ASSERT_EQUAL(seen.n, 0);
    }
}

/* An unusable range stands before a range that is served: the second is read, and the first is named. */
static void test_unusable_ranges(void)
{
    static const struct {
        const char *part, *why;
    } cases[] = {
        {":1\r\n", "is no range"},
        {"*1\r\n:1\r\n", "is no range"},
        {"*2\r\n:0\r\n:1\r\n", "names no node"},
        {"*3\r\n:0\r\n:1\r\n$-1\r\n", "names no node"},
        {"*3\r\n:0\r\n:1\r\n*0\r\n", "names no node"},
        {"*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:65536\r\n", "without a port"},
        {"*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n$1\r\n7\r\n", "without a port"},
        {"*3\r\n:0\r\n:1\r\n*2\r\n$0\r\n\r\n:0\r\n", "without host and port"},
        {"*3\r\n:0\r\n:1\r\n*2\r\n$1\r\n?\r\n:0\r\n", "without host and port"},
        {"*3\r\n:0\r\n:1\r\n*2\r\n$3\r\na b\r\n:1\r\n", "host is no host"},
        {"*3\r\n:0\r\n:1\r\n*2\r\n:1\r\n:1\r\n", "host is no host"},
        {"*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n", "no cluster has"},
        {"*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n", "no cluster has"},
        {"*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:1\r\n", "no cluster has"},
    };
    struct seen seen;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char map[256];

        (void) snprintf(map, sizeof(map), "*2\r\n%s*3\r\n:7\r\n:9\r\n*2\r\n$1\r\nb\r\n:6379\r\n",
                        cases[i].part);
        CU_ASSERT_EQUAL(read_map(map, &seen), 0);
        CU_ASSERT_EQUAL(seen.n, 1);
        CU_ASSERT(seen.last.first == 7 && seen.last.last == 9 && seen.last.port == 6379);
        CU_ASSERT_STRING_EQUAL(seen.last.host, "b");
        CU_ASSERT_PTR_NOT_NULL(strstr(seen.gap.text, "range 1 of the reply"));
        CU_ASSERT_PTR_NOT_NULL(strstr(seen.gap.text, cases[i].why));
    }
}

/* The longest host, and the first and last of each kind of character; one byte more, and the neighbours. */
static void test_hosts(void)
{
    static const char allowed[] = "azAZ09.-_:%", refused[] = "`{@[/,;^ \n";
    char host[HOST_BYTES + 1], map[HOST_BYTES + 100];
    struct seen seen;

    for (size_t n = HOST_BYTES - 2; n <= HOST_BYTES; n++) {
        memset(host, 'h', n);
        host[n] = '\0';
        (void) snprintf(map, sizeof(map), "*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$%zu\r\n%s\r\n:1\r\n", n, host);
        CU_ASSERT_EQUAL(read_map(map, &seen), 0);
        CU_ASSERT_EQUAL(seen.n, n < HOST_BYTES);
        if (n < HOST_BYTES)
            CU_ASSERT_STRING_EQUAL(seen.last.host, host);
    }
    for (size_t i = 0; i < sizeof(allowed) + sizeof(refused) - 2; i++) {
        bool is_allowed = i < sizeof(allowed) - 1;
        char c = is_allowed ? allowed[i] : refused[i - (sizeof(allowed) - 1)];

        (void) snprintf(map, sizeof(map), "*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$2\r\nx%c\r\n:1\r\n", c);
        CU_ASSERT_EQUAL(read_map(map, &seen), 0);
        CU_ASSERT_EQUAL(seen.n, is_allowed);
    }
}

/* A server with a port for TLS alone says port 0: over TLS that of the node that was asked, else no node. */
static void test_port_0(void)
{
    struct seen seen;

    CU_ASSERT_EQUAL(read_map("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n", &seen), 0);
    CU_ASSERT(seen.n == 1 && seen.last.port == 0);
    CU_ASSERT_STRING_EQUAL(seen.last.host, "a");
    CU_ASSERT_EQUAL(read_map("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$-1\r\n:0\r\n", &seen), 0);
    CU_ASSERT(seen.n == 1 && seen.last.port == 0 && seen.last.host[0] == '\0');
    CU_ASSERT_STRING_EQUAL(seen.gap.text, "");
    over_tls = false;
    CU_ASSERT_EQUAL(read_map("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n", &seen), 0);
    CU_ASSERT_EQUAL(seen.n, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(seen.gap.text, "a port for TLS alone"));
    over_tls = true;
}

static int redirect(const char *text, struct redirection *ret)
{
    struct reply *r = parse(text);
    int err = slots_parse_redirection(r, over_tls, ret);

    (void) reply_free(r);
    return err;
}

static void test_redirections(void)
{
    struct redirection d = {.slot = 42};

    CU_ASSERT_EQUAL(redirect("-MOVED 3999 127.0.0.1:6381\r\n", &d), 0);
    CU_ASSERT(!d.is_ask && d.slot == 3999 && d.port == 6381);
    CU_ASSERT_STRING_EQUAL(d.host, "127.0.0.1");
    CU_ASSERT_EQUAL(redirect("-ASK 16383 ::1:1\r\n", &d), 0);
    CU_ASSERT(d.is_ask && d.slot == 16383 && d.port == 1);
    CU_ASSERT_STRING_EQUAL(d.host, "::1");
    CU_ASSERT_EQUAL(redirect("-MOVED 1 :6381\r\n", &d), 0);
    CU_ASSERT_STRING_EQUAL(d.host, "");
    CU_ASSERT_EQUAL(redirect("-MOVED 1 a:0\r\n", &d), 0);
    CU_ASSERT_EQUAL(d.port, 0);
    CU_ASSERT_STRING_EQUAL(d.host, "a");
    over_tls = false;
    CU_ASSERT_EQUAL(redirect("-MOVED 1 a:0\r\n", &d), -EBADMSG);
    over_tls = true;
}

static void test_malformed_redirections(void)
{
    static const char *const texts[] = {
        "-MOVED\r\n",         "-MOVED \r\n",          "-MOVED 1\r\n",    "-MOVED 1 a\r\n",
        "-MOVED x a:1\r\n",   "-MOVED 16384 a:1\r\n", "-MOVED 1 :0\r\n", "-MOVED 1 a:65536\r\n",
        "-MOVED 1 a:1 b\r\n", "-MOVED 1 a b:1\r\n",   "-ASK  a:1\r\n",   "-ASK 99999999999 a:1\r\n"};
    struct redirection d = {.slot = 42};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        CU_ASSERT_EQUAL(redirect(texts[i], &d), -EBADMSG);
    CU_ASSERT_EQUAL(redirect("-MOVEDX 1 a:1\r\n", &d), -ENOENT);
    CU_ASSERT_EQUAL(redirect("+MOVED 1 a:1\r\n", &d), -ENOENT);
    CU_ASSERT_EQUAL(redirect("*0\r\n", &d), -ENOENT);
    CU_ASSERT_EQUAL(d.slot, 42);
}

const struct test_case test_cases[] = {
    TEST(test_known_slots),
    TEST(test_hash_tags),
    TEST(test_map),
    TEST(test_malformed_maps),
    TEST(test_unusable_ranges),
    TEST(test_hosts),
    TEST(test_port_0),
    TEST(test_redirections),
    TEST(test_malformed_redirections),
    TEST_END,
};
