/* Tests of daemon/cluster/cluster_link: a process that answers, one that lies, one that is silent. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/cluster/cluster_link.h"
#include "daemon/loop/ev.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "cluster_link";

enum { MEMORY_BYTES = 1 << 20, CALLS_MAX = 64, VALUE_BYTES = 5000, HALF_BYTES = MEMORY_BYTES / 2 };

static const uint8_t fleet[CLUSTER_FLEET_BYTES] = {1, 2, 3};
static const uint8_t name[CLUSTER_NAME_BYTES] = {9};

struct fixture {
    char folder[64], path[80];
    struct ev *ev;
    struct cluster_link *link;
    int fd; /* of the process that this test is; -1: none */
    uint8_t *memory;
    bool is_silent; /* the process answers nothing but STATUS */
    bool has_ended; /* the daemon closed the connection */
    enum cluster_state state;
    const char *sentence;
    struct cluster_request last; /* other than HELLO and STATUS */
    unsigned n_requests;
    uint64_t ids[CALLS_MAX];
};
static struct fixture f;

/* ---- the process ---- */

static void process_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    f.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(a.sun_path, f.path, strlen(f.path));
    CU_ASSERT_FATAL(f.fd >= 0 && connect(f.fd, (struct sockaddr *) &a, sizeof(a)) == 0);
    f.has_ended = false;
}

static void process_end(void)
{
    if (f.memory)
        (void) munmap(f.memory, MEMORY_BYTES);
    f.memory = NULL;
    if (f.fd >= 0)
        (void) close(f.fd);
    f.fd = -1;
}

static void process_send(const struct cluster_reply *r)
{
    uint8_t packet[CLUSTER_REPLY_BYTES_MAX];
    size_t bytes = cluster_reply_encode(r, packet);

    CU_ASSERT_EQUAL(send(f.fd, packet, bytes, MSG_NOSIGNAL), (ssize_t) bytes);
}

static void process_take_hello(const struct cluster_request *q, int fd)
{
    const struct cluster_reply r = {.kind = CLUSTER_HELLO, .version = CLUSTER_WIRE_VERSION};

    CU_ASSERT_EQUAL_FATAL(q->bytes, MEMORY_BYTES);
    CU_ASSERT_EQUAL(memcmp(q->fleet, fleet, sizeof(fleet)), 0);
    CU_ASSERT_TRUE_FATAL(fd >= 0 && (fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) != 0);
    f.memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CU_ASSERT_FATAL(f.memory != MAP_FAILED);
    (void) close(fd);
    process_send(&r);
}

static void process_answer_status(uint64_t id)
{
    struct cluster_reply r = {.kind = CLUSTER_STATUS, .id = id};

    r.counters[CLUSTER_COUNTER_STATE] = f.state;
    if (f.sentence)
        (void) snprintf(r.sentence, sizeof(r.sentence), "%s", f.sentence);
    process_send(&r);
}

/* A process that has every name, and whose values are VALUE_BYTES times the first byte of the name. */
static void process_answer(const struct cluster_request *q)
{
    struct cluster_reply r = {.kind = q->kind, .id = q->id};

    if (cluster_kind_has_bits(q->kind)) {
        r.n_bits = q->n_names;
        memset(r.bits, 0x55, (q->n_names + 7) / 8);
        if (q->n_names % 8 != 0)
            r.bits[q->n_names / 8] &= (uint8_t) ((1u << q->n_names % 8) - 1);
    } else if (q->kind == CLUSTER_GET) {
        r.bytes = q->bytes < VALUE_BYTES ? q->bytes : VALUE_BYTES;
        memset(f.memory + q->offset, q->names[0][0], r.bytes);
    }
    process_send(&r);
}

static void process_take(const void *packet, size_t bytes, int fd)
{
    struct cluster_request q;

    CU_ASSERT_EQUAL_FATAL(cluster_request_decode(packet, bytes, &q), 0);
    if (q.kind == CLUSTER_HELLO) {
        process_take_hello(&q, fd);
    } else if (q.kind == CLUSTER_STATUS) {
        process_answer_status(q.id);
    } else {
        if (f.n_requests < CALLS_MAX)
            f.ids[f.n_requests] = q.id;
        f.n_requests++;
        f.last = q;
        f.last.names = NULL;
        if (!f.is_silent)
            process_answer(&q);
    }
}

static void process_read(void)
{
    static uint8_t packet[CLUSTER_REQUEST_BYTES_MAX];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;

    while (f.fd >= 0 && !f.has_ended) {
        struct iovec v = {packet, sizeof(packet)};
        struct msghdr m = {
            .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(f.fd, &m, MSG_CMSG_CLOEXEC);
        const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
        int fd = -1;

        if (n < 0 && errno == EAGAIN)
            return;
        if (c && c->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(c), sizeof(fd));
        if (n <= 0)
            f.has_ended = true;
        else
            process_take(packet, (size_t) n, fd);
    }
}

/* ---- the daemon ---- */

struct run {
    bool (*is_done)(void);
    struct wait wait;
    bool was_done;
};

static void on_tick(void *ctx)
{
    struct run *r = ctx;

    process_read();
    r->was_done = r->is_done();
    if (r->was_done || !wait_again(&r->wait))
        ev_stop(f.ev);
}

static void run(bool (*is_done)(void))
{
    struct run r = {.is_done = is_done, .wait = wait_begin()};

    ev_tick_every(f.ev, 1, on_tick, &r);
    CU_ASSERT_EQUAL_FATAL(ev_run(f.ev), 0);
    ev_tick_every(f.ev, 0, on_tick, &r);
    CU_ASSERT_TRUE_FATAL(r.was_done);
}

static struct cluster_link_status status(void)
{
    struct cluster_link_status s;

    cluster_link_status(f.link, &s);
    return s;
}

static bool is_ready(void)
{
    return cluster_link_is_ready(f.link);
}

static bool is_refused(void)
{
    return status().state == CLUSTER_LINK_REFUSED;
}

static bool is_degraded(void)
{
    return status().state == CLUSTER_LINK_DEGRADED;
}

static bool is_whole(void)
{
    return status().state == CLUSTER_LINK_READY;
}

static bool is_absent(void)
{
    return status().state == CLUSTER_LINK_ABSENT && f.has_ended;
}

static void begin(uid_t uid)
{
    struct cluster_link_options o = {.fleet = fleet, .memory_bytes = MEMORY_BYTES, .uid = uid};

    f = (struct fixture){.folder = "/tmp/kvcobra-link-XXXXXX", .fd = -1, .state = CLUSTER_READY};
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(f.folder));
    (void) snprintf(f.path, sizeof(f.path), "%s/s", f.folder);
    o.socket_path = f.path;
    CU_ASSERT_EQUAL_FATAL(ev_new(&f.ev, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(cluster_link_new(f.ev, &o, &f.link, NULL), 0);
}

static void begin_ready(void)
{
    begin(getuid());
    process_connect();
    run(is_ready);
}

static void end(void)
{
    f.link = cluster_link_free(f.link);
    process_end();
    f.ev = ev_free(f.ev);
    CU_ASSERT_EQUAL(rmdir(f.folder), 0); /* socket and lock are gone */
}

/* ---- calls ---- */

static struct cluster_call calls[CALLS_MAX];
static struct tier_share share;
static unsigned n_done;
static bool bits[16];

static void on_done(struct cluster_call *c)
{
    n_done++;
    for (uint32_t i = 0; i < 16; i++)
        bits[i] = c->reply && cluster_bit(c->reply, i);
    if (c->data && c->kind == CLUSTER_GET) {
        CU_ASSERT(c->value_bytes <= c->bytes);
        for (uint64_t i = 0; i < c->value_bytes; i++)
            CU_ASSERT_EQUAL_FATAL(c->data[i], name[0]);
        cluster_link_give_back(f.link, c->data);
    }
}

static int submit(unsigned i, enum cluster_kind kind, uint64_t bytes, uint32_t timeout_ms)
{
    calls[i] = (struct cluster_call){.kind = kind,
                                     .share = &share,
                                     .timeout_ms = timeout_ms,
                                     .bytes = bytes,
                                     .n_names = 1,
                                     .names = name,
                                     .done = on_done};
    if (kind == CLUSTER_PUT || kind == CLUSTER_TOUCH)
        calls[i].ttl_ms = 1000;
    if (kind == CLUSTER_PUT)
        calls[i].data = cluster_link_take(f.link, bytes);
    return cluster_link_submit(f.link, &calls[i]);
}

static unsigned wanted;

static bool are_done(void)
{
    return n_done >= wanted;
}

static bool have_arrived(void)
{
    return f.n_requests >= wanted;
}

static void await(bool (*what)(void), unsigned n)
{
    wanted = n;
    run(what);
}

/* ---- tests ---- */

static void test_calls(void)
{
    static const uint8_t names[11][CLUSTER_NAME_BYTES];

    n_done = 0;
    begin_ready();
    CU_ASSERT_EQUAL(submit(0, CLUSTER_PUT, 4000, 60000), 0);
    CU_ASSERT_EQUAL(submit(1, CLUSTER_GET, VALUE_BYTES + 1, 60000), 0);
    CU_ASSERT_EQUAL(submit(2, CLUSTER_TOUCH, 0, 60000), 0);
    await(are_done, 3);
    CU_ASSERT_EQUAL(calls[1].value_bytes, VALUE_BYTES);

    calls[3] = (struct cluster_call){
        .kind = CLUSTER_EXISTS, .timeout_ms = 60000, .n_names = 11, .names = names[0], .done = on_done};
    CU_ASSERT_EQUAL(cluster_link_submit(f.link, &calls[3]), 0);
    await(are_done, 4);
    for (unsigned i = 0; i < 11; i++)
        CU_ASSERT_EQUAL(bits[i], i % 2 == 0);
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(calls[i].result, 0);
    CU_ASSERT_EQUAL(status().n_sent, 0);
    CU_ASSERT_EQUAL(submit(4, CLUSTER_GET, HALF_BYTES + 1, 60000), -EFBIG);
    end();
}

static void test_states(void)
{
    begin(getuid());
    CU_ASSERT_EQUAL(submit(0, CLUSTER_EXISTS, 0, 60000), -ENODEV);
    f.state = CLUSTER_REFUSED;
    f.sentence = "another \"fleet\"\n";
    process_connect();
    run(is_refused);
    CU_ASSERT_STRING_EQUAL(status().sentence, "another ?fleet??");
    CU_ASSERT_EQUAL(submit(0, CLUSTER_EXISTS, 0, 60000), -ENODEV);
    f.state = CLUSTER_READY;
    f.sentence = NULL;
    run(is_ready);
    CU_ASSERT_EQUAL(status().n_joined, 1);

    /* a part of it does not answer: the rest serves */
    f.state = CLUSTER_DEGRADED;
    f.sentence = "the reason";
    run(is_degraded);
    CU_ASSERT_STRING_EQUAL(status().sentence, "the reason");
    CU_ASSERT_TRUE(cluster_link_is_ready(f.link));
    f.state = CLUSTER_READY;
    f.sentence = NULL;
    run(is_whole);
    CU_ASSERT(status().n_joined == 1 && status().n_degraded == 1 && status().sentence[0] == '\0');
    end();
}

static void test_stranger(void)
{
    begin(getuid() + 1);
    process_connect();
    run(is_absent);
    CU_ASSERT_EQUAL(status().n_strangers, 1);
    CU_ASSERT_PTR_NULL(f.memory); /* it got no HELLO */
    end();
}

/* The first process stays, and the second one is sent away. */
static void test_two_processes(void)
{
    int first;

    begin_ready();
    first = f.fd;
    process_connect();
    while (!f.has_ended)
        run(is_ready);
    process_end();
    f.fd = first;
    f.has_ended = false;
    n_done = 0;
    CU_ASSERT_EQUAL(submit(0, CLUSTER_TOUCH, 0, 60000), 0);
    await(are_done, 1);
    CU_ASSERT_EQUAL(calls[0].result, 0);
    end();
}

/* Packets that answer no request. @i: which. False: there are no more. */
static bool lie(unsigned i, uint64_t id)
{
    struct cluster_reply r = {.kind = CLUSTER_GET, .id = id};

    switch (i) {
    case 0:
        CU_ASSERT(send(f.fd, "rubbish", 7, MSG_NOSIGNAL) == 7);
        return true;
    case 1:
        r.id++;
        break;
    case 2:
        r.id = UINT64_MAX;
        break;
    case 3:
        r.kind = CLUSTER_PUT;
        break;
    case 4:
        r.bytes = VALUE_BYTES + 1;
        break;
    case 5:
        r = (struct cluster_reply){.kind = CLUSTER_HELLO, .version = CLUSTER_WIRE_VERSION};
        break;
    case 6:
        r = (struct cluster_reply){.kind = CLUSTER_STATUS, .id = id};
        break;
    case 7:
        r = (struct cluster_reply){.kind = CLUSTER_EXISTS, .id = id, .n_bits = 1};
        break;
    case 8: /* the answer, twice */
        r.result = -ENOENT;
        process_send(&r);
        break;
    default:
        return false;
    }
    process_send(&r);
    return true;
}

static void test_lies(void)
{
    for (unsigned i = 0;; i++) {
        bool lied;

        n_done = 0;
        begin_ready();
        f.is_silent = true;
        CU_ASSERT_EQUAL(submit(0, CLUSTER_GET, VALUE_BYTES, 60000), 0);
        await(have_arrived, 1);
        lied = lie(i, f.ids[0]);
        if (lied) {
            run(is_absent);
            CU_ASSERT_EQUAL(n_done, 1);
            CU_ASSERT_EQUAL(calls[0].result, i == 8 ? -ENOENT : -ENODEV);
            CU_ASSERT_EQUAL(status().n_faults, 1);
            process_end();
            process_connect(); /* the next one is welcome */
            run(is_ready);
        }
        end();
        CU_ASSERT_EQUAL(n_done, 1);
        if (!lied)
            return;
    }
}

/* A call ends at its deadline; its range is free again when the reply comes, whatever that says. */
static void test_deadlines(void)
{
    struct cluster_reply r = {.kind = CLUSTER_GET, .bytes = 77};

    n_done = 0;
    begin_ready();
    f.is_silent = true;
    CU_ASSERT_EQUAL(submit(0, CLUSTER_GET, HALF_BYTES, 20), 0);
    CU_ASSERT_EQUAL(submit(1, CLUSTER_GET, HALF_BYTES, 20), 0);
    CU_ASSERT_EQUAL(submit(2, CLUSTER_GET, HALF_BYTES, 20), 0); /* has no room, and is not sent */
    CU_ASSERT_EQUAL(submit(3, CLUSTER_EXISTS, 0, 20), 0);
    await(are_done, 4);
    for (unsigned i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(calls[i].result, -ETIMEDOUT);
        CU_ASSERT_PTR_NULL(calls[i].data);
    }
    await(have_arrived, 3);
    CU_ASSERT_EQUAL(status().n_late, 4);
    CU_ASSERT_EQUAL(status().n_sent, 3);

    CU_ASSERT_EQUAL(submit(4, CLUSTER_GET, HALF_BYTES, 60000), 0); /* waits for the range of the first */
    r.id = f.ids[0];
    process_send(&r);
    await(have_arrived, 4);
    CU_ASSERT_EQUAL(status().n_faults, 0);
    end();
    CU_ASSERT_EQUAL(n_done, 5);
    CU_ASSERT_EQUAL(calls[4].result, -ENODEV);
}

/* One account has some questions on their way, and leaves places for others. */
static void test_questions_of_an_account(void)
{
    static struct tier_share other;
    unsigned n = 0;

    n_done = 0;
    begin_ready();
    f.is_silent = true;
    while (n < CALLS_MAX && submit(n, CLUSTER_EXISTS, 0, 60000) == 0)
        n++;
    CU_ASSERT_EQUAL(n, 8);
    CU_ASSERT_EQUAL(submit(n, CLUSTER_EXISTS, 0, 60000), -EAGAIN);
    calls[n].share = &other;
    CU_ASSERT_EQUAL(cluster_link_submit(f.link, &calls[n]), 0);
    CU_ASSERT_EQUAL(submit(n + 1, CLUSTER_TOUCH, 0, 60000), 0);
    end();
    CU_ASSERT_EQUAL(n_done, 10);
    CU_ASSERT_EQUAL(share.n_looks + other.n_looks, 0);
}

/* More GETs than the memory has room for: each is answered once, and none is sent without room. */
static void test_more_than_memory(void)
{
    n_done = 0;
    begin_ready();
    for (unsigned i = 0; i < CALLS_MAX; i++)
        CU_ASSERT_EQUAL(submit(i, CLUSTER_GET, MEMORY_BYTES / 8, 60000), 0);
    await(are_done, CALLS_MAX);
    CU_ASSERT_EQUAL(n_done, CALLS_MAX);
    for (unsigned i = 0; i < CALLS_MAX; i++)
        CU_ASSERT_EQUAL(calls[i].result, 0);
    CU_ASSERT_EQUAL(share.n_requests, 0);

    n_done = 0;
    f.is_silent = true;
    for (unsigned i = 0; i < CALLS_MAX; i++)
        CU_ASSERT_EQUAL(submit(i, CLUSTER_GET, MEMORY_BYTES / 8, 60000), 0);
    process_end();
    await(are_done, CALLS_MAX);
    for (unsigned i = 0; i < CALLS_MAX; i++)
        CU_ASSERT_EQUAL(calls[i].result, -ENODEV);
    CU_ASSERT_EQUAL(share.n_requests, 0);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_calls),
    TEST(test_states),
    TEST(test_stranger),
    TEST(test_two_processes),
    TEST(test_lies),
    TEST(test_deadlines),
    TEST(test_questions_of_an_account),
    TEST(test_more_than_memory),
    TEST_END,
};
