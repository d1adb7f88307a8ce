/*
 * Every message of the schema with fields of chance, from clients and an operator, to a daemon with a disk
 * tier: it goes on, leaves nothing held, and its heap is as large after many messages as after the first
 * ones. The messages are made from the schema's descriptors, so a new one is sent at once. A sanitizer sees
 * smaller leaks at the daemon's end.
 *
 * KVC_RANDOM_MESSAGES: how many are sent in each of the rounds (6000).
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "random_messages";

#ifdef __SANITIZE_ADDRESS__
#define ADDRESS_SANITIZER true
#else
#define ADDRESS_SANITIZER false
#endif

enum {
    CONNECTIONS = 8, /* of clients; the first ones have a model */
    MODELS = 4,
    ROUNDS = 4,
    MESSAGES = 6000,
    GROWTH_BYTES_MAX = 4 << 20,
    ARENA_BYTES = 1 << 20,
};

/* ---- one message ---- */

static uint8_t arena[ARENA_BYTES]; /* of all that the present message points at */
static size_t arena_used;

static void *take(size_t bytes)
{
    void *p = arena + arena_used;

    arena_used += (bytes + 15) / 16 * 16;
    assert(arena_used <= sizeof(arena));
    return memset(p, 0, bytes);
}

static uint64_t number(void)
{
    return test_rand_below(4) ? test_rand_below(16) : test_rand();
}

/* Bytes that often name something: a table, the model, the key of a page. */
static ProtobufCBinaryData bytes_of_chance(void)
{
    static const size_t sizes[] = {0, 1, 16, 16, 32, 32, 32, 33, 64};
    size_t n = sizes[test_rand_below(sizeof(sizes) / sizeof(sizes[0]))];
    uint8_t *data = take(n);
    struct chunk_key key = raw_key(1 + test_rand_below(64));

    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t) test_rand();
    if (n == sizeof(key) && test_rand_below(4))
        memcpy(data, key.bytes, n);
    if (n == DIGEST_BYTES && test_rand_below(2))
        memcpy(data, test_rand_below(2) ? raw_table->digest : raw_table->model_digest, n);
    return (ProtobufCBinaryData){n, data};
}

static char *text_of_chance(void)
{
    static const char *const texts[] = {"", "x", "uid-12345", "uid-12345@gpu0", "a name with spaces"};
    const char *text = texts[test_rand_below(sizeof(texts) / sizeof(texts[0]))];

    return strcpy(take(strlen(text) + 1), text);
}

static void fill(ProtobufCMessage *m);

static void fill_value(const ProtobufCFieldDescriptor *f, void *at)
{
    ProtobufCMessage *sub;

    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **) at = text_of_chance();
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *) at = bytes_of_chance();
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        sub = take(((const ProtobufCMessageDescriptor *) f->descriptor)->sizeof_message);
        protobuf_c_message_init(f->descriptor, sub);
        fill(sub);
        *(ProtobufCMessage **) at = sub;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *) at = (double) number() / 7;
        break;
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *) at = number();
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *) at = (protobuf_c_boolean) test_rand_below(2);
        break;
    default: /* 32 bits */
        *(uint32_t *) at = (uint32_t) number();
    }
}

static size_t element_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    default:
        return 4;
    }
}

static void fill_list(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    size_t n = test_rand_below(16) ? test_rand_below(8) : test_rand_below(WIRE_ITEMS_MAX + 2);
    size_t bytes = element_bytes(f);
    uint8_t *list = take(n * bytes);

    for (size_t i = 0; i < n; i++)
        fill_value(f, list + i * bytes);
    *(size_t *) ((uint8_t *) m + f->quantifier_offset) = n;
    *(void **) ((uint8_t *) m + f->offset) = n > 0 ? list : NULL;
}

static void fill(ProtobufCMessage *m)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;

    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];

        if (test_rand_below(8) == 0)
            continue; /* stays empty */
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            fill_list(m, f);
        else if (strcmp(f->name, "fetch_ms") == 0) /* the test does not wait for what no tier has */
            *(uint32_t *) ((uint8_t *) m + f->offset) = (uint32_t) test_rand_below(20);
        else
            fill_value(f, (uint8_t *) m + f->offset);
    }
}

/* A request with a body of chance. Return: the bytes of the packet; 0: it is too long for one. */
static size_t make_request(uint8_t ret_packet[static WIRE_PACKET_BYTES_MAX])
{
    const ProtobufCMessageDescriptor *d = &kvcobra__request__descriptor;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;
    const ProtobufCFieldDescriptor *f;
    ssize_t n;

    arena_used = 0;
    do
        f = &d->fields[test_rand_below(d->n_fields)];
    while (!(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF));
    m.id = test_rand_below(1000);
    m.timeout_ms = (uint32_t) test_rand_below(100);
    m.body_case = (Kvcobra__Request__BodyCase) f->id;
    fill_value(f, (uint8_t *) &m + f->offset);
    if (m.body_case == KVCOBRA__REQUEST__BODY_DRAIN)
        m.drain->off = 1; /* a daemon that drains refuses what the test is about */
    n = wire_request_pack(&m, ret_packet);
    return n > 0 ? (size_t) n : 0;
}

/* ---- connections ---- */

struct talker {
    int fd;
    struct raw_model model; /* with MODELS */
    bool has_model, is_operator;
};

static void talker_open(struct talker *t)
{
    t->fd = raw_open(t->is_operator ? raw_daemon.operator_socket : raw_daemon.socket);
    if (t->has_model) /* refused if an operator retired the table: then it goes on without */
        (void) !raw_open_model(t->fd, &raw_geometry, raw_table->model_digest, &t->model);
}

static void talker_close(struct talker *t)
{
    if (t->has_model && t->model.fd == t->fd)
        raw_close_model(&t->model);
    else
        (void) close(t->fd);
    t->model = (struct raw_model){.fd = -1};
}

/* Reads all replies that have come. False: the daemon closed the connection. */
static bool talker_read(struct talker *t)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p;
    int r;

    while ((r = wire_receive_now(t->fd, packet, &p)) == 0) {
        Kvcobra__Reply *reply = NULL;

        CU_ASSERT_EQUAL(wire_reply_unpack(packet, p.bytes, &reply), 0);
        wire_reply_free(reply);
        wire_packet_close_fds(&p);
    }
    return r == -EAGAIN;
}

static void talker_speak(struct talker *t)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    size_t n = make_request(packet);
    struct pollfd p = {.fd = t->fd, .events = POLLIN | POLLOUT};

    if (n == 0)
        return;
    if (send(t->fd, packet, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EAGAIN)
        (void) poll(&p, 1, -1); /* there are replies to read, or room for the next one */
    if (!talker_read(t)) {
        talker_close(t);
        talker_open(t);
    }
}

static void talk(struct talker *all, size_t n, unsigned long n_messages)
{
    for (size_t i = 0; i < n; i++)
        talker_open(&all[i]);
    for (unsigned long i = 0; i < n_messages; i++)
        talker_speak(&all[test_rand_below(n)]);
    for (size_t i = 0; i < n; i++)
        talker_close(&all[i]);
    raw_wait_for_no_sessions();
    CU_ASSERT_EQUAL(raw_held_pages(), 0);
}

/* Waits until the heap is at most @bytes. */
static bool heap_reaches(uint64_t bytes)
{
    struct wait w = wait_begin();
    bool reached;

    do {
        wire_reply_free(raw_status());
        reached = daemon_heap_bytes(&raw_daemon) <= bytes;
    } while (!reached && wait_again(&w));
    return reached;
}

static void test_heap_stays(void)
{
    const char *text = getenv("KVC_RANDOM_MESSAGES");
    unsigned long n_messages = text ? strtoul(text, NULL, 10) : MESSAGES;
    struct talker all[CONNECTIONS + 1] = {{.fd = -1}};
    char folder[64] = "/tmp/kvcobra-random-XXXXXX", disk[96], path[96];
    uint64_t before;

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(disk, sizeof(disk), "--disk-dir=%s", folder);
    for (size_t i = 0; i <= CONNECTIONS; i++)
        all[i] = (struct talker){
            .fd = -1, .model.fd = -1, .has_model = i < MODELS, .is_operator = i == CONNECTIONS};
    raw_start(DAEMON_WITH_STATE, (const char *const[]){"--pool-bytes=64M", "--arena-bytes=256K", disk,
                                                       "--disk-bytes=64M", NULL});
    talk(all, CONNECTIONS + 1, n_messages);
    before = daemon_heap_bytes(&raw_daemon);
    for (unsigned round = 1; round < ROUNDS; round++)
        talk(all, CONNECTIONS + 1, n_messages);
    printf("    heap after the first round %llu KiB, after all %llu KiB\n", (unsigned long long) before >> 10,
           (unsigned long long) daemon_heap_bytes(&raw_daemon) >> 10);
    CU_ASSERT(ADDRESS_SANITIZER || heap_reaches(before + GROWTH_BYTES_MAX));
    raw_stop();
    for (size_t i = 0; i < 2; i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", folder, i ? "pages" : "records");
        (void) unlink(path);
    }
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

const struct test_case test_cases[] = {TEST(test_heap_stays), TEST_END};
