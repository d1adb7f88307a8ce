/* Packets and messages: worst cases below the cap, limits at limit and
 * limit + 1, hostile bytes, descriptors. */
#include "proto/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/mover_wire.h"
#include "proto/page.h"
#include "tests/lib/test.h"

static uint8_t packet[WIRE_PACKET_BYTES_MAX];

/* ---- worst case of every message ---- */

/*
 * Fills a message through its descriptor: every number at its longest encoding, every bytes and string field
 * at the longest the protocol allows, every repeated field at its limit. No message is named here, so a field
 * added to the schema is covered at once.
 */
static void fill(ProtobufCMessage *m);

static uint32_t limit_of(const ProtobufCFieldDescriptor *f)
{
    if (f->type == PROTOBUF_C_TYPE_DOUBLE)
        return 128;
    if (strcmp(f->name, "others") == 0 || strcmp(f->name, "other_revisions") == 0)
        return WIRE_TABLES_MAX - 1;
    if (f->type == PROTOBUF_C_TYPE_STRING)
        return WIRE_LIST_ITEMS_MAX;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && strstr(f->name, "tables"))
        return WIRE_LIST_ITEMS_MAX;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && (strstr(f->name, "tenants") || strstr(f->name, "spaces")))
        return WIRE_LIST_ITEMS_MAX;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && strcmp(f->name, "devices") == 0)
        return WIRE_DEVICES_MAX;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && strcmp(f->name, "sessions") == 0)
        return WIRE_SESSIONS_MAX;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && strcmp(f->name, "events") == 0)
        return WIRE_EVENTS_MAX;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && strcmp(f->name, "aliases") == 0)
        return WIRE_ALIASES_MAX;
    return WIRE_ITEMS_MAX;
}

/* Most bytes of the text or bytes field @name; @usual for fields without a limit of their own. */
static size_t largest(const char *name, size_t usual)
{
    static const struct {
        const char *name;
        size_t bytes;
    } limits[] = {
        {"message", WIRE_TEXT_BYTES_MAX},    {"reason", WIRE_TEXT_BYTES_MAX},
        {"product", WIRE_PRODUCT_BYTES_MAX}, {"bitmap", WIRE_ITEMS_MAX / 8},
        {"salt", CHUNK_SALT_BYTES_MAX},      {"json", WIRE_EVENT_BYTES_MAX},
    };

    for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++)
        if (strcmp(name, limits[i].name) == 0)
            return limits[i].bytes;
    return usual;
}

static size_t element_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_BOOL:
        return 4;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_STRING:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        assert(!"repeated field of a type that no message uses");
        return 0;
    }
}

static void fill_value(const ProtobufCFieldDescriptor *f, void *at)
{
    ProtobufCBinaryData *data = at;
    ProtobufCMessage *sub;

    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        *(uint32_t *) at = UINT32_MAX;
        break;
    case PROTOBUF_C_TYPE_SINT32:
        *(int32_t *) at = INT32_MIN;
        break;
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *) at = UINT64_MAX;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *) at = 1.5;
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *) at = 1;
        break;
    case PROTOBUF_C_TYPE_ENUM:
        *(int *) at = 1;
        break;
    case PROTOBUF_C_TYPE_STRING: {
        size_t n = largest(f->name, 64);
        char *s = calloc(1, n + 1);

        *(char **) at = memset(s, 'x', n);
        break;
    }
    case PROTOBUF_C_TYPE_BYTES:
        data->len = largest(f->name, 32);
        data->data = calloc(1, data->len);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        sub = calloc(1, f->descriptor == NULL
                            ? 0
                            : ((const ProtobufCMessageDescriptor *) f->descriptor)->sizeof_message);
        protobuf_c_message_init(f->descriptor, sub);
        fill(sub);
        *(ProtobufCMessage **) at = sub;
        break;
    default:
        assert(!"type that no message uses");
    }
}

static void fill(ProtobufCMessage *m)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;

    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        uint8_t *at = (uint8_t *) m + f->offset;

        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
            continue; /* the caller sets the body */
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = limit_of(f), size = element_bytes(f);
            uint8_t *array = calloc(n, size);

            for (size_t k = 0; k < n; k++)
                fill_value(f, array + k * size);
            *(size_t *) ((uint8_t *) m + f->quantifier_offset) = n;
            *(void **) at = array;
        } else {
            fill_value(f, at);
        }
    }
}

static size_t worst_case(const ProtobufCMessageDescriptor *d, unsigned body)
{
    const ProtobufCFieldDescriptor *f = &d->fields[body];
    ProtobufCMessage *m = calloc(1, d->sizeof_message);
    size_t bytes;

    protobuf_c_message_init(d, m);
    fill(m);
    fill_value(f, (uint8_t *) m + f->offset);
    *(uint32_t *) ((uint8_t *) m + f->quantifier_offset) = f->id;
    bytes = protobuf_c_message_get_packed_size(m);
    if (bytes <= sizeof(packet))
        CU_ASSERT_EQUAL(protobuf_c_message_pack(m, packet), bytes);
    protobuf_c_message_free_unpacked(m, NULL);
    return bytes;
}

static void test_worst_cases_fit(void)
{
    unsigned n = 0;

    for (unsigned side = 0; side < 2; side++) {
        const ProtobufCMessageDescriptor *d =
            side ? &kvcobra__reply__descriptor : &kvcobra__request__descriptor;

        for (unsigned i = 0; i < d->n_fields; i++) {
            size_t bytes;

            if (!(d->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
                continue;
            n++;
            bytes = worst_case(d, i);
            if (bytes > WIRE_PACKET_BYTES_MAX)
                printf("    %s needs %zu bytes\n", d->fields[i].name, bytes);
            CU_ASSERT_FATAL(bytes <= WIRE_PACKET_BYTES_MAX);
            if (side) {
                Kvcobra__Reply *m = NULL;

                CU_ASSERT_EQUAL(wire_reply_unpack(packet, bytes, &m), 0);
                CU_ASSERT_PTR_NOT_NULL_FATAL(m);
                CU_ASSERT_EQUAL(wire_reply_pack(m, packet), (ssize_t) bytes);
                wire_reply_free(m);
            } else {
                Kvcobra__Request *m = NULL;

                CU_ASSERT_EQUAL(wire_request_unpack(packet, bytes, &m), 0);
                CU_ASSERT_PTR_NOT_NULL_FATAL(m);
                CU_ASSERT_EQUAL(wire_request_pack(m, packet), (ssize_t) bytes);
                wire_request_free(m);
            }
        }
    }
    CU_ASSERT_EQUAL(n, 41 + 35); /* all requests and replies of the schema were filled */
}

/* The same between daemon and mover, and every field survives packing and unpacking. */
static void test_mover_worst_cases_fit(void)
{
    static const ProtobufCMessageDescriptor *const sides[] = {&kvcobra__mover_request__descriptor,
                                                              &kvcobra__mover_reply__descriptor};
    static uint8_t again[WIRE_PACKET_BYTES_MAX];
    unsigned n = 0;

    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < sides[side]->n_fields; i++) {
            ProtobufCMessage *m = NULL;
            size_t bytes;

            if (!(sides[side]->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
                continue;
            n++;
            bytes = worst_case(sides[side], i);
            CU_ASSERT_FATAL(bytes <= WIRE_PACKET_BYTES_MAX);
            if (side)
                CU_ASSERT_EQUAL(mover_reply_unpack(packet, bytes, (Kvcobra__MoverReply **) &m), 0)
            else
                CU_ASSERT_EQUAL(mover_request_unpack(packet, bytes, (Kvcobra__MoverRequest **) &m), 0)
            CU_ASSERT_PTR_NOT_NULL_FATAL(m);
            CU_ASSERT_EQUAL(wire_pack(m, again), (ssize_t) bytes);
            CU_ASSERT_EQUAL(memcmp(again, packet, bytes), 0);
            protobuf_c_message_free_unpacked(m, NULL);
        }
    CU_ASSERT_EQUAL(n, 5 + 5);
}

/* ---- limits ---- */

static size_t lease_of(size_t n_items)
{
    static Kvcobra__LeaseItem item;
    static Kvcobra__LeaseItem *items[WIRE_ITEMS_MAX + 1];
    Kvcobra__Lease lease = KVCOBRA__LEASE__INIT;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;
    ssize_t bytes;

    kvcobra__lease_item__init(&item);
    for (size_t i = 0; i < n_items; i++)
        items[i] = &item;
    lease.items = items;
    lease.n_items = n_items;
    m.body_case = KVCOBRA__REQUEST__BODY_LEASE;
    m.lease = &lease;
    bytes = wire_request_pack(&m, packet);
    CU_ASSERT_FATAL(bytes > 0);
    return (size_t) bytes;
}

static void test_item_limit(void)
{
    Kvcobra__Request *m = NULL;

    CU_ASSERT_EQUAL(wire_request_unpack(packet, lease_of(WIRE_ITEMS_MAX + 1), &m), -E2BIG);
    CU_ASSERT_PTR_NULL(m);
    CU_ASSERT_EQUAL_FATAL(wire_request_unpack(packet, lease_of(WIRE_ITEMS_MAX), &m), 0);
    CU_ASSERT_EQUAL(m->lease->n_items, WIRE_ITEMS_MAX);
    wire_request_free(m);
}

/* Items of a packed array count, also if the array comes in several pieces. */
static void test_packed_limit(void)
{
    Kvcobra__ReserveReply rr = KVCOBRA__RESERVE_REPLY__INIT;
    Kvcobra__Reply m = KVCOBRA__REPLY__INIT, *back = NULL;
    static protobuf_c_boolean exists[WIRE_ITEMS_MAX + 1];

    m.body_case = KVCOBRA__REPLY__BODY_RESERVE;
    m.reserve = &rr;
    rr.exists = exists;
    rr.n_exists = WIRE_ITEMS_MAX + 1;
    CU_ASSERT_EQUAL(wire_reply_unpack(packet, (size_t) wire_reply_pack(&m, packet), &back), -E2BIG);
    rr.n_exists--;
    CU_ASSERT_EQUAL_FATAL(wire_reply_unpack(packet, (size_t) wire_reply_pack(&m, packet), &back), 0);
    CU_ASSERT_EQUAL(back->reserve->n_exists, WIRE_ITEMS_MAX);
    wire_reply_free(back);
}

/* Checksums have four bytes each: their bytes are not counted as varints. */
static void test_fixed_limit(void)
{
    Kvcobra__MoverChecked checked = KVCOBRA__MOVER_CHECKED__INIT;
    Kvcobra__MoverReply m = KVCOBRA__MOVER_REPLY__INIT, *back = NULL;
    static uint32_t crcs[WIRE_ITEMS_MAX + 1]; /* zeros: four ends of varints in each */

    m.body_case = KVCOBRA__MOVER_REPLY__BODY_CHECK;
    m.check = &checked;
    checked.crc32c = crcs;
    checked.n_crc32c = WIRE_ITEMS_MAX;
    CU_ASSERT_EQUAL_FATAL(mover_reply_unpack(packet, (size_t) mover_reply_pack(&m, packet), &back), 0);
    CU_ASSERT_EQUAL(back->check->n_crc32c, WIRE_ITEMS_MAX);
    mover_reply_free(back);
    back = NULL;
    checked.n_crc32c++;
    memset(crcs, 0xff, sizeof(crcs)); /* no end at all */
    CU_ASSERT_EQUAL(mover_reply_unpack(packet, (size_t) mover_reply_pack(&m, packet), &back), -E2BIG);
}

static void test_text_limit(void)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT, *back = NULL;
    char name[WIRE_TEXT_BYTES_MAX + 2];

    memset(name, 'n', sizeof(name));
    name[WIRE_TEXT_BYTES_MAX + 1] = '\0';
    hello.client_name = name;
    m.body_case = KVCOBRA__REQUEST__BODY_HELLO;
    m.hello = &hello;
    CU_ASSERT_EQUAL(wire_request_unpack(packet, (size_t) wire_request_pack(&m, packet), &back), -E2BIG);
    name[WIRE_TEXT_BYTES_MAX] = '\0';
    CU_ASSERT_EQUAL_FATAL(wire_request_unpack(packet, (size_t) wire_request_pack(&m, packet), &back), 0);
    wire_request_free(back);
}

static void test_too_large_to_pack(void)
{
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;

    fetch.digest.len = WIRE_PACKET_BYTES_MAX;
    fetch.digest.data = packet;
    m.body_case = KVCOBRA__REQUEST__BODY_FETCH_TABLE;
    m.fetch_table = &fetch;
    CU_ASSERT_EQUAL(wire_request_pack(&m, packet), -EMSGSIZE);
}

static void test_refused_forms(void)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {"", 0},
        {"\x00\x01", 2},                 /* field number 0 */
        {"\x80\x80\x80\x80\x10\x01", 6}, /* field number 2^29 */
        {"\x0b\x0c", 2},                 /* group */
        {"\x08", 1},                     /* tag without value */
        {"\x08\x80", 2},                 /* varint without end */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12},
        {"\x52\x05\x08\x01", 4}, /* length beyond the packet */
        {"\x52\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},
        {"\x72\x00\x72\x00", 4},         /* the same body twice */
        {"\x72\x00\x5a\x00", 4},         /* two bodies */
        {"\x62\x04\x0a\x00\x0a\x00", 6}, /* OpenModel with two geometries */
        {"\x0a\x00", 2},                 /* id as bytes */
        {"\x10\x01\x10\x02", 4},         /* timeout_ms twice */
    };
    Kvcobra__Request *m = NULL;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int r = wire_request_unpack(cases[i].bytes, cases[i].n, &m);

        if (r != -EBADMSG)
            printf("    case %zu: %d\n", i, r);
        CU_ASSERT_EQUAL(r, -EBADMSG);
        CU_ASSERT_PTR_NULL_FATAL(m);
    }
    CU_ASSERT_EQUAL(wire_request_unpack(packet, WIRE_PACKET_BYTES_MAX + 1, &m), -EBADMSG);
}

static void test_truncations_and_noise(void)
{
    size_t bytes = lease_of(20);
    uint8_t copy[2048];

    assert(bytes <= sizeof(copy));
    memcpy(copy, packet, bytes);
    for (unsigned i = 0; i < 4000; i++) {
        Kvcobra__Request *m = NULL;
        size_t n = (size_t) test_rand_below(bytes + 1);

        memcpy(packet, copy, bytes);
        for (uint64_t k = test_rand_below(4); k > 0; k--)
            packet[test_rand_below(bytes)] = (uint8_t) test_rand();
        if (wire_request_unpack(packet, n, &m) == 0)
            wire_request_free(m);
    }
}

/* ---- packets ---- */

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    (void) closedir(d);
    return n;
}

static void test_fds_and_credentials(void)
{
    int sv[2], one = 1, fds[WIRE_FDS_MAX];
    unsigned before = open_fds();
    struct wire_packet p;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    CU_ASSERT_EQUAL(setsockopt(sv[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)), 0);
    for (unsigned i = 0; i < WIRE_FDS_MAX; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CU_ASSERT_EQUAL(wire_send(sv[0], "hello", 5, fds, WIRE_FDS_MAX), 0);
    CU_ASSERT_EQUAL_FATAL(wire_receive(sv[1], packet, &p), 0);
    CU_ASSERT_EQUAL(p.bytes, 5);
    CU_ASSERT_EQUAL(p.n_fds, WIRE_FDS_MAX);
    CU_ASSERT(p.pid == getpid() && p.uid == getuid() && p.gid == getgid());
    for (unsigned i = 0; i < p.n_fds; i++)
        CU_ASSERT(fcntl(p.fds[i], F_GETFD) & FD_CLOEXEC);
    wire_packet_close_fds(&p);
    CU_ASSERT_EQUAL(p.n_fds, 0);
    CU_ASSERT_EQUAL(wire_send(sv[1], "back", 4, NULL, 0), 0);
    CU_ASSERT_EQUAL(wire_receive(sv[0], packet, &p), 0);
    CU_ASSERT(p.pid == 0 && p.n_fds == 0 && p.bytes == 4);
    for (unsigned i = 0; i < WIRE_FDS_MAX; i++)
        (void) close(fds[i]);
    (void) close(sv[0]);
    CU_ASSERT_EQUAL(wire_receive(sv[1], packet, &p), -EPIPE);
    CU_ASSERT_EQUAL(wire_send(sv[1], "x", 1, NULL, 0), -EPIPE); /* and no SIGPIPE */
    (void) close(sv[1]);
    CU_ASSERT_EQUAL(open_fds(), before);
}

/* More descriptors than a packet may carry are refused, and all are closed: those that wire_receive() had
 * room for, and, where credentials need a part of the room, those that the kernel left out. */
static void too_many_fds(int with_credentials)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(16 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {(char[]){'x'}, 1};
    int sv[2];

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    CU_ASSERT_EQUAL(setsockopt(sv[1], SOL_SOCKET, SO_PASSCRED, &with_credentials, sizeof(int)), 0);
    for (unsigned n = WIRE_FDS_MAX + 1; n <= 16; n++) {
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(n * sizeof(int))};
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        struct wire_packet p = {.bytes = 77};
        unsigned before = open_fds();

        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        for (unsigned i = 0; i < n; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &sv[0], sizeof(int));
        CU_ASSERT_EQUAL_FATAL(sendmsg(sv[0], &msg, 0), 1);
        CU_ASSERT_EQUAL(wire_receive(sv[1], packet, &p), -EBADMSG);
        CU_ASSERT_EQUAL(p.bytes, 77);
        CU_ASSERT_EQUAL(open_fds(), before);
    }
    (void) close(sv[0]);
    (void) close(sv[1]);
}

static void test_too_many_fds(void)
{
    too_many_fds(0);
    too_many_fds(1);
}

static void test_long_packet(void)
{
    static uint8_t big[WIRE_PACKET_BYTES_MAX + 1];
    int sv[2], bytes = 1 << 20;
    struct wire_packet p;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
    (void) setsockopt(sv[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    CU_ASSERT_EQUAL(wire_receive(sv[1], packet, &p), -EAGAIN);
    CU_ASSERT_EQUAL_FATAL(send(sv[0], big, sizeof(big), 0), (ssize_t) sizeof(big));
    CU_ASSERT_EQUAL(wire_receive(sv[1], packet, &p), -EBADMSG);
    CU_ASSERT_EQUAL(wire_send(sv[0], big, sizeof(big) - 1, NULL, 0), 0);
    CU_ASSERT_EQUAL(wire_receive(sv[1], packet, &p), 0);
    CU_ASSERT_EQUAL(p.bytes, WIRE_PACKET_BYTES_MAX);
    (void) close(sv[0]);
    (void) close(sv[1]);
}

/* Ranges of versions that a later daemon or library may have, too. */
static void test_common_version(void)
{
    static const struct {
        uint32_t own_min, own_max, peer_min, peer_max, want;
    } cases[] = {
        {1, 1, 1, 1, 1}, {1, 1, 1, 5, 1},          {1, 5, 1, 1, 1},
        {2, 3, 1, 2, 2}, {2, 3, 3, 4, 3},          {1, 9, 4, 6, 6},
        {4, 6, 1, 9, 6}, {2, 3, 1, 1, 0},          {1, 1, 2, 3, 0},
        {1, 3, 3, 2, 0}, {3, 2, 1, 3, 0},          {1, UINT32_MAX, 0, UINT32_MAX, UINT32_MAX},
        {1, 2, 0, 0, 0}, {1, 2, UINT32_MAX, 0, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CU_ASSERT_EQUAL(
            protocol_common(cases[i].own_min, cases[i].own_max, cases[i].peer_min, cases[i].peer_max),
            cases[i].want);
}

const struct test_case test_cases[] = {
    TEST(test_worst_cases_fit),
    TEST(test_mover_worst_cases_fit),
    TEST(test_item_limit),
    TEST(test_packed_limit),
    TEST(test_fixed_limit),
    TEST(test_text_limit),
    TEST(test_too_large_to_pack),
    TEST(test_refused_forms),
    TEST(test_truncations_and_noise),
    TEST(test_fds_and_credentials),
    TEST(test_too_many_fds),
    TEST(test_long_packet),
    TEST(test_common_version),
    TEST_END,
};
const char test_suite[] = "wire";
