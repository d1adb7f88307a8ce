/* Messages of the protocol, one at a time; see bench_service_link.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/memory_file.h"
#include "base/splitmix64.h"
#include "proto/wire.h"
#include "lab/bench/bench_service_device.h"
#include "lab/bench/bench_service_link.h"
#include "tools/command/clock.h"

enum {
    PATIENCE_S = 20,
    PAUSE_MS = 2
}; /* how long, and how often, requests that get EAGAIN are retried: a GPU's pool may be allocating */

static Kvcobra__Request service_link_of(Kvcobra__Request__BodyCase body, void *message)
{
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;

    m.body_case = body;
    m.hello = message; /* all bodies are pointers in one union */
    return m;
}

/* @ret_reply: the caller frees it. @packet: the caller closes its descriptors; NULL: no descriptors are
 * expected. */
static int service_link_request(struct link *l, Kvcobra__Request *m, const int *fds, size_t n_fds,
                                struct wire_packet *packet, Kvcobra__Reply **ret_reply, struct errmsg *e)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p = {0};
    ssize_t n = wire_request_pack(m, buf);
    int r;

    r = n < 0 ? (int) n : wire_send(l->fd, buf, (size_t) n, fds, n_fds);
    if (r == 0)
        r = wire_receive(l->fd, buf, &p);
    if (r < 0) {
        wire_packet_close_fds(&p);
        return fail(e, r, "the daemon does not answer: %s", strerror(-r));
    }

    r = wire_reply_unpack(buf, p.bytes, ret_reply);
    if (r < 0) {
        wire_packet_close_fds(&p);
        return fail(e, r, "the daemon's reply is refused: %s", wire_refusal(r));
    }

    if ((*ret_reply)->err < 0) {
        r = fail(e, (*ret_reply)->err, "the daemon refuses: %.300s", (*ret_reply)->message);
        wire_reply_free(*ret_reply);
        wire_packet_close_fds(&p);
        return r;
    }

    if (packet)
        *packet = p;
    else
        wire_packet_close_fds(&p);
    return 0;
}

static int service_link_send(struct link *l, Kvcobra__Request m, const int *fds, size_t n_fds,
                             struct errmsg *e)
{
    Kvcobra__Reply *reply = NULL;
    int r = service_link_request(l, &m, fds, n_fds, NULL, &reply, e);

    if (r < 0)
        return r;

    wire_reply_free(reply);
    return 0;
}

/* Whether to retry a request on a GPU after EAGAIN; pauses first. */
static bool service_link_retry(const struct link *l, int r, double since)
{
    return r == -EAGAIN && bench_device_is_gpu(l->device) && clock_seconds() - since < PATIENCE_S &&
           poll(NULL, 0, PAUSE_MS) == 0;
}

static int service_link_connect_to(const char *path, int *ret_fd, struct errmsg *e)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    *ret_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    if (*ret_fd < 0 || connect(*ret_fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0)
        return fail(e, -errno, "cannot connect to %s: %s", path, strerror(errno));

    return 0;
}

int link_open(const char *path, struct bench_device *device, struct link *ret, struct errmsg *e)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    double began = clock_seconds();
    int r;

    *ret = (struct link){.fd = -1, .device = device};
    hello.version_min = PROTO_VERSION_MIN;
    hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "kvcobra-lab bench service";
    if (bench_device_is_gpu(device))
        hello.device = device->gpu.uuid;
    do {
        closep(&ret->fd); /* the daemon closes a connection whose HELLO it refuses */
        r = service_link_connect_to(path, &ret->fd, e);
        if (r == 0)
            r = service_link_send(ret, service_link_of(KVCOBRA__REQUEST__BODY_HELLO, &hello), NULL, 0, e);
    } while (service_link_retry(ret, r, began));
    if (r < 0)
        return r;

    return service_link_send(ret, service_link_of(KVCOBRA__REQUEST__BODY_CONFIRM, &confirm), NULL, 0, e);
}

int link_open_model(struct link *l, const struct geometry *g, const uint8_t *model_digest, struct errmsg *e)
{
    Kvcobra__Geometry geometry = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;
    Kvcobra__Request m = service_link_of(KVCOBRA__REQUEST__BODY_OPEN_MODEL, &open);
    Kvcobra__Reply *reply = NULL;
    struct wire_packet p = {0};
    int r;

    geometry.n_layers = g->n_layers;
    geometry.n_heads = g->n_heads;
    geometry.n_kv_heads = g->n_kv_heads;
    geometry.d = g->d;
    geometry.n_rot = g->n_rot;
    geometry.attn_scale = g->attn_scale;
    geometry.n_freq = g->n_rot / 2;
    geometry.freq = (double *) g->freq;
    open.geometry = &geometry;
    open.model_digest = (ProtobufCBinaryData){DIGEST_BYTES, (uint8_t *) model_digest};
    r = service_link_request(l, &m, NULL, 0, &p, &reply, e);
    if (r < 0)
        return r;

    l->model = reply->open_model->model;
    memcpy(l->table_digest, reply->open_model->table_digest.data, DIGEST_BYTES);
    l->arena_bytes = reply->open_model->arena_bytes;
    l->index_bytes = reply->open_model->index_bytes;
    wire_reply_free(reply);
    if (p.n_fds == 4) {
        void *index = mmap(NULL, l->index_bytes, PROT_READ, MAP_SHARED, p.fds[1], 0);
        void *arena = mmap(NULL, l->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p.fds[3], 0);

        l->index = index == MAP_FAILED ? NULL : index;
        l->arena = arena == MAP_FAILED ? NULL : arena;
    }

    wire_packet_close_fds(&p);
    return l->index && l->arena ? 0 : fail(e, -EIO, "cannot map the index and the arena");
}

void link_close(struct link *l)
{
    if (l->arena)
        (void) munmap(l->arena, l->arena_bytes);
    if (l->index)
        (void) munmap((void *) l->index, l->index_bytes);
    if (l->fd >= 0)
        (void) close(l->fd);
    *l = (struct link){.fd = -1};
}

int link_stage_and_activate(const char *operator_path, const void *bytes, size_t n_bytes, struct errmsg *e)
{
    _cleanup_(closep) int fd = memory_file_open("table");
    _cleanup_(link_close) struct link l = {.fd = -1};
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Request m = service_link_of(KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage);
    Kvcobra__Reply *reply = NULL;
    uint8_t digest[DIGEST_BYTES];
    int r;

    if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t) n_bytes ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return fail(e, -EIO, "cannot pass a table to the daemon: %s", strerror(errno));

    r = link_open(operator_path, NULL, &l, e);
    stage.bytes = n_bytes;
    if (r < 0)
        return r;

    r = service_link_request(&l, &m, &fd, 1, NULL, &reply, e);
    if (r < 0)
        return r;

    memcpy(digest, reply->stage_table->digest.data, DIGEST_BYTES);
    wire_reply_free(reply);
    activate.digest = (ProtobufCBinaryData){DIGEST_BYTES, digest};
    return service_link_send(&l, service_link_of(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate), NULL, 0,
                             e);
}

/* ---- pages ---- */

static ProtobufCBinaryData service_link_key_bytes(const struct chunk_key *k)
{
    return (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) k->bytes};
}

static struct link_page service_link_page_of(const Kvcobra__PageRef *p)
{
    return (struct link_page){p->slot, p->generation, p->extent, p->offset, p->bytes, 0};
}

/* Reserves as many slots as there are now. Return: 0; -EAGAIN: *ret_n slots; the GPU must allocate memory for
 * the others. */
static int service_link_reserve_some(struct link *l, const struct chunk_key *keys, size_t n,
                                     unsigned page_class, struct link_page *ret, size_t *ret_n,
                                     struct errmsg *e)
{
    Kvcobra__ReserveItem item[LINK_ITEMS_MAX], *items[LINK_ITEMS_MAX];
    Kvcobra__Reserve body = KVCOBRA__RESERVE__INIT;
    Kvcobra__Request m = service_link_of(KVCOBRA__REQUEST__BODY_RESERVE, &body);
    Kvcobra__Reply *reply = NULL;
    int r;

    for (size_t i = 0; i < n; i++) {
        kvcobra__reserve_item__init(&item[i]);
        item[i].key = service_link_key_bytes(&keys[i]);
        item[i].page_class = page_class;
        items[i] = &item[i];
    }

    body.model = l->model;
    body.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, l->table_digest};
    body.items = items;
    body.n_items = n;
    *ret_n = 0;
    r = service_link_request(l, &m, NULL, 0, NULL, &reply, e);
    if (r < 0)
        return r;
    if (reply->reserve->n_slots > n || reply->reserve->n_exists != reply->reserve->n_slots)
        r = fail(e, -EPROTO, "the daemon answered for %zu of %zu pages", reply->reserve->n_slots, n);
    else if (reply->reserve->n_slots < n)
        r = fail(e, reply->reserve->end_err < 0 ? reply->reserve->end_err : -EPROTO, "no slot: %.300s",
                 reply->message);
    for (size_t i = 0; (r == 0 || r == -EAGAIN) && i < reply->reserve->n_slots; i++) {
        ret[i] = service_link_page_of(reply->reserve->slots[i]);
        *ret_n = i + 1;
        if (reply->reserve->exists[i])
            r = fail(e, -EEXIST, "a page exists that was not published");
    }

    wire_reply_free(reply);
    return r;
}

int link_reserve(struct link *l, const struct chunk_key *keys, size_t n, unsigned page_class,
                 struct link_page *ret, struct errmsg *e)
{
    double began = clock_seconds();
    size_t done = 0, some;
    int r;

    do {
        r = service_link_reserve_some(l, keys + done, n - done, page_class, ret + done, &some, e);
        done += some;
    } while (service_link_retry(l, r, began));
    return r;
}

int link_commit(struct link *l, const struct chunk_key *keys, const struct link_page *pages, size_t n,
                size_t stride, uint64_t *ret_lease, struct errmsg *e)
{
    Kvcobra__CommitItem item[LINK_ITEMS_MAX], *items[LINK_ITEMS_MAX];
    Kvcobra__Commit body = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request m = service_link_of(KVCOBRA__REQUEST__BODY_COMMIT, &body);
    Kvcobra__Reply *reply = NULL;
    int r;

    for (size_t i = 0; i < n; i++) {
        kvcobra__commit_item__init(&item[i]);
        item[i].slot = pages[i].slot;
        item[i].generation = pages[i].generation;
        item[i].arena_offset = i * stride;
        item[i].key = service_link_key_bytes(&keys[i]);
        item[i].payload_crc32c = pages[i].crc32c;
        items[i] = &item[i];
    }

    body.model = l->model;
    body.items = items;
    body.n_items = n;
    r = service_link_request(l, &m, NULL, 0, NULL, &reply, e);
    if (r < 0)
        return r;
    if (reply->commit->n_errs != n)
        r = fail(e, -EPROTO, "the daemon answered for %zu of %zu pages", reply->commit->n_errs, n);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (reply->commit->errs[i] < 0)
            r = fail(e, reply->commit->errs[i], "not committed: %.300s", reply->message);
    if (r == 0)
        *ret_lease = reply->commit->lease;
    wire_reply_free(reply);
    return r;
}

int link_lease(struct link *l, const struct chunk_key *keys, const struct link_page *pages, size_t n,
               uint64_t *ret_lease, struct errmsg *e)
{
    Kvcobra__LeaseItem item[LINK_ITEMS_MAX], *items[LINK_ITEMS_MAX];
    Kvcobra__Lease body = KVCOBRA__LEASE__INIT;
    Kvcobra__Request m = service_link_of(KVCOBRA__REQUEST__BODY_LEASE, &body);
    Kvcobra__Reply *reply = NULL;
    double began = clock_seconds();
    int r;

    for (size_t i = 0; i < n; i++) {
        kvcobra__lease_item__init(&item[i]);
        item[i].key = service_link_key_bytes(&keys[i]);
        item[i].slot = pages[i].slot;
        item[i].generation = pages[i].generation;
        items[i] = &item[i];
    }

    body.model = l->model;
    body.table_digest = (ProtobufCBinaryData){DIGEST_BYTES, l->table_digest};
    body.items = items;
    body.n_items = n;
    do /* EAGAIN: pages of an earlier process are checked first */
        r = service_link_request(l, &m, NULL, 0, NULL, &reply, e);
    while (service_link_retry(l, r, began));
    if (r < 0)
        return r;
    if (reply->lease->n_pages != n)
        r = fail(e, -ENOENT, "of %zu published pages the daemon has %zu", n, reply->lease->n_pages);
    else
        *ret_lease = reply->lease->lease;
    wire_reply_free(reply);
    return r;
}

int link_release(struct link *l, uint64_t lease, struct errmsg *e)
{
    Kvcobra__Release body = KVCOBRA__RELEASE__INIT;

    body.lease = lease;
    return service_link_send(l, service_link_of(KVCOBRA__REQUEST__BODY_RELEASE, &body), NULL, 0, e);
}

static int service_link_extent_of(struct link *l, uint64_t id, struct bench_extent **ret, struct errmsg *e)
{
    Kvcobra__GetExtent body = KVCOBRA__GET_EXTENT__INIT;
    Kvcobra__Request m = service_link_of(KVCOBRA__REQUEST__BODY_GET_EXTENT, &body);
    Kvcobra__Reply *reply = NULL;
    struct wire_packet p = {0};
    size_t bytes;
    int r;

    *ret = bench_device_extent(l->device, id);
    if (*ret)
        return 0;

    body.extent = id;
    r = service_link_request(l, &m, NULL, 0, &p, &reply, e);
    if (r < 0)
        return r;

    bytes = reply->get_extent->bytes;
    wire_reply_free(reply);
    if (p.n_fds != 1) {
        wire_packet_close_fds(&p);
        return fail(e, -EPROTO, "the daemon sends %zu descriptors for an extent", p.n_fds);
    }

    return bench_device_map(l->device, id, p.fds[0], bytes, ret, e);
}

int link_read_page(struct link *l, const struct link_page *page, size_t first, size_t n, void *to,
                   struct errmsg *e)
{
    struct bench_extent *x;
    int r = service_link_extent_of(l, page->extent, &x, e);

    return r < 0 ? r : bench_device_read(x, page->offset + first, to, n, e);
}

/* ---- publishing ---- */

/* The n-th number of splitmix64 from state 0. */
static uint64_t service_link_mixed(uint64_t n)
{
    return splitmix64_mix((n + 1) * 0x9e3779b97f4a7c15u);
}

struct chunk_key link_key(uint64_t n)
{
    uint64_t words[2] = {service_link_mixed(n), service_link_mixed(~n)};
    struct chunk_key k;

    _Static_assert(sizeof(words) == sizeof(k.bytes), "two words");
    memcpy(k.bytes, words, sizeof(words));
    return k;
}

void link_write_page(const struct page_layout *layout, const struct chunk_key *key, uint8_t *to)
{
    const struct table *t = layout->table;
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .key = *key,
        .first_head = layout->shard.first_head,
        .n_heads = layout->shard.n_heads,
        .first_position = CHUNK_TOKENS,
        .n_tokens = CHUNK_TOKENS,
        .payload_bytes = layout->payload_bytes[PAGE_REST],
    };
    uint8_t *payload = to + PAGE_HEADER_BYTES;
    uint64_t n;

    memcpy(h.table_digest, t->digest, DIGEST_BYTES);
    memcpy(h.model_digest, t->model_digest, DIGEST_BYTES);
    memcpy(&n, key->bytes, sizeof(n));
    for (size_t i = 0; i + sizeof(n) <= h.payload_bytes; i += sizeof(n)) { /* a multiple of 64 bytes */
        uint64_t word = service_link_mixed(n + i);

        memcpy(payload + i, &word, sizeof(word));
    }

    h.payload_crc32c = crc32c(payload, (size_t) h.payload_bytes);
    page_header_store(&h, to);
}

/* Writes the payload of @page, in host memory, to its slot on the GPU. */
static int service_link_fill_slot(struct link *l, const struct page_layout *layout, const uint8_t *page,
                                  struct link_page *slot, struct errmsg *e)
{
    size_t bytes = layout->payload_bytes[PAGE_REST];
    struct bench_extent *x;
    int r;

    r = service_link_extent_of(l, slot->extent, &x, e);
    if (r < 0)
        return r;

    slot->crc32c = crc32c(page + PAGE_HEADER_BYTES, bytes);
    return bench_device_write(x, slot->offset + PAGE_HEADER_BYTES, page + PAGE_HEADER_BYTES, bytes, e);
}

int link_publish(struct link *l, const struct page_layout *layout, uint64_t first, size_t n,
                 struct link_page *ret, uint64_t *ret_lease, struct errmsg *e)
{
    size_t stride = layout->page_bytes[PAGE_REST];
    struct chunk_key keys[LINK_ITEMS_MAX];
    int r;

    if (n == 0 || n > LINK_ITEMS_MAX || n * stride > l->arena_bytes)
        return fail(e, -E2BIG, "%zu pages do not fit into a message and the arena", n);

    for (size_t i = 0; i < n; i++)
        keys[i] = link_key(first + i);
    r = link_reserve(l, keys, n, PAGE_REST, ret, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n && r == 0; i++) {
        link_write_page(layout, &keys[i], l->arena + i * stride);
        if (bench_device_is_gpu(l->device))
            r = service_link_fill_slot(l, layout, l->arena + i * stride, &ret[i], e);
    }

    return r < 0 ? r : link_commit(l, keys, ret, n, stride, ret_lease, e);
}
