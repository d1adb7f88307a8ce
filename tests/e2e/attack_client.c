/* See attack_client.h. */
#include "tests/e2e/attack_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/raw_vectors_fixture.h"
#include "tests/lib/lingering.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum {
    FLOOD_CONNECTIONS = 16,
    FLOOD_DEPTH = 200,
    BATCH = 48, /* pages that have room in an arena of 256 KiB */
    PAGE_STRIDE = 5120,
    PEERS = 256,
    RUBBISH_BYTES = 60000,
    SMALL_FIELDS = 14000,
    WAITS_PACKETS = 8,
    WAITS_PAGES = WAITS_PACKETS * WIRE_ITEMS_MAX, /* more than the quota has room for */
    WAITS_MS = 5000,
};

struct packet {
    uint8_t buf[WIRE_PACKET_BYTES_MAX];
    size_t bytes;
};

static void pack(Kvcobra__Request__BodyCase body, void *message, struct packet *ret)
{
    Kvcobra__Request m = raw_of(body, message);
    ssize_t n;

    m.id = 1;
    m.timeout_ms = 10000;
    n = wire_request_pack(&m, ret->buf);
    assert(n > 0);
    ret->bytes = (size_t) n;
}

static void pause_ms(int ms)
{
    (void) poll(NULL, 0, ms);
}

/* A greeted connection; -1 if the daemon refuses it. */
static int try_connection(void)
{
    int fd = raw_connect(raw_daemon.socket);

    if (raw_hello(fd) == 0 && raw_confirm(fd) == 0)
        return fd;
    (void) close(fd);
    return -1;
}

static bool try_session(struct raw_model *ret)
{
    int fd = try_connection();

    if (fd < 0)
        return false;
    if (raw_open_model(fd, &raw_geometry, random_table_model_digest, ret) == 0)
        return true;
    (void) close(fd);
    return false;
}

static struct raw_model any_session(void)
{
    struct raw_model m;

    while (!try_session(&m))
        pause_ms(1);
    return m;
}

/* ---- floods: one packet over and over ---- */

struct flood {
    int fd;
    unsigned in_flight;
};

/* False: the daemon closed the connection. */
static bool flood_send(struct flood *f, const struct packet *p, unsigned depth)
{
    while (f->in_flight < depth) {
        if (send(f->fd, p->buf, p->bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            return errno == EAGAIN;
        f->in_flight++;
    }
    return true;
}

static bool flood_receive(struct flood *f)
{
    char byte;
    ssize_t n;

    while ((n = recv(f->fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC)) > 0)
        f->in_flight -= f->in_flight > 0;
    return n < 0 && errno == EAGAIN;
}

/* @models: whether the packet needs a session with a model; its handle is that of every first OPEN_MODEL. */
static void flood_open(struct flood *f, bool models)
{
    struct raw_model m;

    f->in_flight = 0;
    if (models)
        f->fd = try_session(&m) ? m.fd : -1; /* the mappings stay until the process is killed */
    else
        f->fd = try_connection();
}

/* The connections send the @n packets in turn. */
static void flood_packets(const struct packet *p, size_t n, bool models)
{
    struct flood all[FLOOD_CONNECTIONS];

    for (size_t i = 0; i < FLOOD_CONNECTIONS; i++)
        flood_open(&all[i], models);
    for (;;) {
        for (size_t i = 0; i < FLOOD_CONNECTIONS; i++) {
            if (all[i].fd >= 0 && flood_send(&all[i], &p[i % n], FLOOD_DEPTH) && flood_receive(&all[i]))
                continue;
            if (all[i].fd >= 0)
                (void) close(all[i].fd);
            flood_open(&all[i], models);
        }
    }
}

static void flood(const struct packet *p, bool models)
{
    flood_packets(p, 1, models);
}

/* Connections on which the client sends and never reads. They are replaced ten times a second. */
static void flood_unread(const struct packet *p)
{
    struct flood all[FLOOD_CONNECTIONS];

    for (;;) {
        for (size_t i = 0; i < FLOOD_CONNECTIONS; i++) {
            flood_open(&all[i], false);
            if (all[i].fd >= 0)
                (void) flood_send(&all[i], p, UINT32_MAX);
        }
        pause_ms(100);
        for (size_t i = 0; i < FLOOD_CONNECTIONS; i++)
            if (all[i].fd >= 0)
                (void) close(all[i].fd);
    }
}

void attack_list(void)
{
    static struct packet p;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;

    pack(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list, &p);
    flood(&p, false);
}

void attack_deaf(void)
{
    static struct packet p;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;

    pack(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list, &p);
    flood_unread(&p);
}

void attack_fetch(void)
{
    static struct packet p;
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;

    fetch.digest = (ProtobufCBinaryData){32, raw_table->digest};
    pack(KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch, &p);
    flood_unread(&p);
}

void attack_rubbish(void)
{
    static const uint8_t field[] = {0xfa, 0x3e, 0x01}; /* number 1007, one byte that is missing */
    static struct packet p;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;

    pack(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list, &p);
    for (; p.bytes + sizeof(field) < RUBBISH_BYTES; p.bytes += sizeof(field))
        memcpy(p.buf + p.bytes, field, sizeof(field));
    flood(&p, false);
}

void attack_fields(void)
{
    static const uint8_t field[] = {0x18, 0x01}; /* number 3: a number */
    static struct packet p;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;

    pack(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list, &p);
    for (unsigned i = 0; i < SMALL_FIELDS; i++, p.bytes += sizeof(field))
        memcpy(p.buf + p.bytes, field, sizeof(field));
    flood(&p, false);
}

void attack_abort(void)
{
    static struct packet p;
    static Kvcobra__AbortItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    Kvcobra__Abort abort_ = KVCOBRA__ABORT__INIT;

    for (unsigned i = 0; i < WIRE_ITEMS_MAX; i++) {
        items[i] = (Kvcobra__AbortItem) KVCOBRA__ABORT_ITEM__INIT;
        items[i].slot = i;
        items[i].generation = 2;
        pointers[i] = &items[i];
    }
    abort_.n_items = WIRE_ITEMS_MAX;
    abort_.items = pointers;
    pack(KVCOBRA__REQUEST__BODY_ABORT, &abort_, &p);
    flood(&p, false);
}

/* ---- batches of pages ---- */

struct batch {
    struct chunk_key keys[WIRE_ITEMS_MAX];
    struct raw_slot slots[WIRE_ITEMS_MAX];
    size_t n;
};

static void reserve_message(const struct raw_model *m, const struct batch *b, size_t n, Kvcobra__Reserve *ret)
{
    static Kvcobra__ReserveItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];

    *ret = (Kvcobra__Reserve) KVCOBRA__RESERVE__INIT;
    for (size_t i = 0; i < n; i++) {
        items[i] = (Kvcobra__ReserveItem) KVCOBRA__RESERVE_ITEM__INIT;
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) b->keys[i].bytes};
        items[i].page_class = PAGE_REST;
        pointers[i] = &items[i];
    }
    ret->model = m->handle;
    ret->table_digest = (ProtobufCBinaryData){32, (uint8_t *) m->table_digest};
    ret->n_items = n;
    ret->items = pointers;
}

/* Sets slots and number of those that the daemon reserved. */
static void reserve(struct raw_model *m, struct batch *b, size_t n)
{
    Kvcobra__Reserve message;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_RESERVE, &message);
    Kvcobra__Reply *reply;

    reserve_message(m, b, n, &message);
    b->n = 0;
    reply = raw_request(m->fd, &q, NULL, 0, NULL);
    if (reply && reply->err == 0)
        for (; b->n < reply->reserve->n_slots; b->n++)
            b->slots[b->n] = (struct raw_slot){
                .slot = reply->reserve->slots[b->n]->slot,
                .generation = reply->reserve->slots[b->n]->generation,
            };
    wire_reply_free(reply);
}

/* Writes the pages of @b to the arena and commits them. Return: their lease; 0: none. */
static uint64_t commit(struct raw_model *m, const struct batch *b)
{
    static Kvcobra__CommitItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    Kvcobra__Commit body = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_COMMIT, &body);
    Kvcobra__Reply *reply;
    uint64_t lease = 0;

    for (size_t i = 0; i < b->n; i++) {
        raw_write_page(m, raw_table, &b->keys[i], PAGE_REST, i * PAGE_STRIDE, 1);
        items[i] = (Kvcobra__CommitItem) KVCOBRA__COMMIT_ITEM__INIT;
        items[i].slot = b->slots[i].slot;
        items[i].generation = b->slots[i].generation;
        items[i].arena_offset = i * PAGE_STRIDE;
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) b->keys[i].bytes};
        pointers[i] = &items[i];
    }
    body.model = m->handle;
    body.n_items = b->n;
    body.items = pointers;
    reply = raw_request(m->fd, &q, NULL, 0, NULL);
    if (reply && reply->err == 0)
        lease = reply->commit->lease;
    wire_reply_free(reply);
    return lease;
}

/* Keys of other pages in each process and call. */
static void fill_keys(struct batch *b, size_t n)
{
    static uint64_t next;

    for (size_t i = 0; i < n; i++)
        b->keys[i] = raw_key((uint64_t) getpid() << 32 | ++next);
}

/* Publishes @n pages, which this process holds until it is killed. */
static void publish_held(struct raw_model *m, struct batch *b, size_t n)
{
    do {
        fill_keys(b, n);
        reserve(m, b, n);
    } while (b->n == 0 || commit(m, b) == 0);
}

void attack_publish(void)
{
    static struct batch b;
    struct raw_model m = any_session();
    uint64_t lease;

    for (;;) {
        fill_keys(&b, BATCH);
        reserve(&m, &b, BATCH);
        lease = commit(&m, &b);
        if (lease)
            (void) raw_release(&m, lease);
    }
}

/*
 * The upper halves of both words of a key choose its homes, so all these keys share the same two. The pages
 * that find no place are given back, and others are tried.
 */
void attack_index(void)
{
    static struct batch b;
    struct raw_model m = any_session();
    uint32_t next = (uint32_t) getpid() << 16;

    for (;;) {
        for (size_t i = 0; i < BATCH; i++) {
            const uint32_t words[4] = {next++, 0x12345678, next ^ 0x5555, 0x1abcdef0};

            memcpy(b.keys[i].bytes, words, sizeof(words));
        }
        reserve(&m, &b, BATCH);
        (void) commit(&m, &b); /* the leases keep the pages where they are */
        for (size_t i = 0; i < b.n; i++)
            (void) raw_abort(&m, &b.slots[i]);
    }
}

void attack_reserve(void)
{
    static struct batch b;
    static struct packet p;
    struct raw_model m = any_session();
    Kvcobra__Reserve message;

    fill_keys(&b, WIRE_ITEMS_MAX);
    reserve_message(&m, &b, WIRE_ITEMS_MAX, &message);
    pack(KVCOBRA__REQUEST__BODY_RESERVE, &message, &p);
    raw_close_model(&m);
    flood(&p, true);
}

/* LEASE of 512 items, which repeat the pages of @b. */
static void pack_lease(const struct raw_model *m, const struct batch *b, struct packet *ret)
{
    static Kvcobra__LeaseItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    Kvcobra__Lease message = KVCOBRA__LEASE__INIT;

    for (size_t i = 0; i < WIRE_ITEMS_MAX; i++) {
        const struct raw_slot *s = &b->slots[i % b->n];

        items[i] = (Kvcobra__LeaseItem) KVCOBRA__LEASE_ITEM__INIT;
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) b->keys[i % b->n].bytes};
        items[i].slot = s->slot;
        items[i].generation = s->generation;
        pointers[i] = &items[i];
    }
    message.model = m->handle;
    message.table_digest = (ProtobufCBinaryData){32, (uint8_t *) m->table_digest};
    message.n_items = WIRE_ITEMS_MAX;
    message.items = pointers;
    pack(KVCOBRA__REQUEST__BODY_LEASE, &message, ret);
}

void attack_lease(void)
{
    static struct batch b;
    static struct packet p;
    struct raw_model m = any_session();

    publish_held(&m, &b, BATCH);
    pack_lease(&m, &b, &p);
    flood(&p, true);
}

/* New sessions until the daemon refuses one; each takes leases until it is refused. */
void attack_leases(void)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    static struct batch b;
    static struct packet p;
    struct raw_model m = any_session();

    publish_held(&m, &b, BATCH);
    pack_lease(&m, &b, &p);
    for (;;) {
        struct wire_packet received;
        Kvcobra__Reply *reply = NULL;
        struct raw_model next;
        bool refused;

        if (wire_send(m.fd, p.buf, p.bytes, NULL, 0) == 0 && wire_receive(m.fd, buf, &received) == 0)
            (void) wire_reply_unpack(buf, received.bytes, &reply);
        refused = !reply || reply->err != 0;
        wire_reply_free(reply);
        if (refused && try_session(&next))
            m = next; /* the session before stays open, and so do its leases */
    }
}

/* Publishes pages of this process until most of them left memory for the disk. */
static void publish_many(struct raw_model *m, struct chunk_key keys[static WAITS_PAGES])
{
    static struct batch b;
    uint64_t lease;

    for (size_t at = 0; at < WAITS_PAGES; at += BATCH) {
        size_t n = WAITS_PAGES - at < BATCH ? WAITS_PAGES - at : BATCH;

        fill_keys(&b, n);
        memcpy(&keys[at], b.keys, n * sizeof(keys[0]));
        reserve(m, &b, n);
        lease = commit(m, &b);
        if (lease)
            (void) raw_release(m, lease);
    }
}

void attack_waits(void)
{
    static struct packet packets[WAITS_PACKETS];
    static struct chunk_key keys[WAITS_PAGES];
    static Kvcobra__LeaseItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    struct raw_model m = any_session();
    Kvcobra__Lease lease = KVCOBRA__LEASE__INIT;

    publish_many(&m, keys);
    for (size_t p = 0; p < WAITS_PACKETS; p++) {
        for (size_t i = 0; i < WIRE_ITEMS_MAX; i++) {
            items[i] = (Kvcobra__LeaseItem) KVCOBRA__LEASE_ITEM__INIT;
            items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, keys[p * WIRE_ITEMS_MAX + i].bytes};
            items[i].slot = UINT32_MAX;
            items[i].page_class = PAGE_REST;
            pointers[i] = &items[i];
        }
        lease.model = m.handle;
        lease.table_digest = (ProtobufCBinaryData){32, m.table_digest};
        lease.n_items = WIRE_ITEMS_MAX;
        lease.items = pointers;
        lease.fetch_ms = WAITS_MS;
        pack(KVCOBRA__REQUEST__BODY_LEASE, &lease, &packets[p]);
    }
    flood_packets(packets, WAITS_PACKETS, true);
}

void attack_raw_pages(void)
{
    struct raw_model m = any_session();
    uint32_t first_token = (uint32_t) getpid() << 12;
    uint64_t lease;

    for (;; first_token += CHUNK_TOKENS) {
        Kvcobra__AppendRaw a = raw_append_of(&m, first_token);

        if (raw_append(&m, &a, &lease) == 0)
            (void) raw_release(&m, lease);
    }
}

/* ---- connections, sessions, descriptors ---- */

void attack_connections(void)
{
    for (;;)
        (void) try_connection(); /* stays open */
}

void attack_sessions(void)
{
    struct raw_model m;

    for (;;)
        if (try_session(&m))
            raw_close_model(&m);
}

void attack_descriptors(void)
{
    int peers[PEERS];

    for (size_t i = 0;; i++) {
        int connection = raw_connect(raw_daemon.socket), *peer = &peers[i % PEERS], fd;

        if (i >= PEERS)
            (void) close(*peer); /* ends an earlier wait */
        fd = lingering_socket(peer);
        /* where the kernel refuses the descriptor, the close below is the last one, and must not wait */
        if (lingering_send(connection, fd, WIRE_FDS_MAX) < 0) {
            (void) close(*peer);
            *peer = -1;
        }
        (void) close(fd);
        (void) close(connection);
    }
}
