/* The protocol by hand, one message at a time; see bench_service.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/wire.h"
#include "tools/bench_service.h"

static Kvcobra__Request of(Kvcobra__Request__BodyCase body, void *message)
{
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;

    m.body_case = body;
    m.hello = message; /* all bodies are pointers in one union */
    return m;
}

/* *ret_reply: to be freed; @packet: its descriptors are the caller's, or NULL if none are expected. */
static int ask(struct link *l, Kvcobra__Request *m, const int *fds, size_t n_fds, struct wire_packet *packet,
               Kvcobra__Reply **ret_reply, struct errmsg *e)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p = { 0 };
    ssize_t n = wire_request_pack(m, buf);
    int r = n < 0 ? (int) n : wire_send(l->fd, buf, (size_t) n, fds, n_fds);

    if (r == 0)
        r = wire_receive(l->fd, buf, &p);
    if (r == 0)
        r = wire_reply_unpack(buf, p.bytes, ret_reply);
    if (r < 0) {
        wire_packet_close_fds(&p);
        return fail(e, r, "the daemon does not answer: %s", strerror(-r));
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

static int tell(struct link *l, Kvcobra__Request m, const int *fds, size_t n_fds, struct errmsg *e)
{
    Kvcobra__Reply *reply = NULL;
    int r = ask(l, &m, fds, n_fds, NULL, &reply, e);

    if (r == 0)
        wire_reply_free(reply);
    return r;
}

int link_open(const char *path, struct link *ret, struct errmsg *e)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    int r;

    *ret = (struct link) { .fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) };
    (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    if (ret->fd < 0 || connect(ret->fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0)
        return fail(e, -errno, "cannot connect to %s: %s", path, strerror(errno));
    hello.version_min = PROTO_VERSION_MIN;
    hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "kvcobra bench service";
    r = tell(ret, of(KVCOBRA__REQUEST__BODY_HELLO, &hello), NULL, 0, e);
    return r < 0 ? r : tell(ret, of(KVCOBRA__REQUEST__BODY_CONFIRM, &confirm), NULL, 0, e);
}

int link_open_model(struct link *l, const struct geometry *g, const uint8_t *model_digest, struct errmsg *e)
{
    Kvcobra__Geometry geometry = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;
    Kvcobra__Request m = of(KVCOBRA__REQUEST__BODY_OPEN_MODEL, &open);
    Kvcobra__Reply *reply = NULL;
    struct wire_packet p = { 0 };
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
    open.model_digest = (ProtobufCBinaryData) { DIGEST_BYTES, (uint8_t *) model_digest };
    r = ask(l, &m, NULL, 0, &p, &reply, e);
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
    return l->index && l->arena ? 0 : fail(e, -EIO, "cannot map what the daemon shares");
}

void link_close(struct link *l)
{
    if (l->arena)
        (void) munmap(l->arena, l->arena_bytes);
    if (l->index)
        (void) munmap((void *) l->index, l->index_bytes);
    if (l->fd >= 0)
        (void) close(l->fd);
    *l = (struct link) { .fd = -1 };
}

int link_stage_and_activate(const char *operator_path, const void *bytes, size_t n_bytes, struct errmsg *e)
{
    _cleanup_(closep) int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    _cleanup_(link_close) struct link l = { .fd = -1 };
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Request m = of(KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage);
    Kvcobra__Reply *reply = NULL;
    uint8_t digest[DIGEST_BYTES];
    int r;

    if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t) n_bytes ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return fail(e, -EIO, "cannot hand a table over: %s", strerror(errno));
    r = link_open(operator_path, &l, e);
    stage.bytes = n_bytes;
    if (r == 0)
        r = ask(&l, &m, &fd, 1, NULL, &reply, e);
    if (r < 0)
        return r;
    memcpy(digest, reply->stage_table->digest.data, DIGEST_BYTES);
    wire_reply_free(reply);
    activate.digest = (ProtobufCBinaryData) { DIGEST_BYTES, digest };
    return tell(&l, of(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate), NULL, 0, e);
}

int link_reserve(struct link *l, const struct chunk_key *key, unsigned page_class, struct link_page *ret, struct errmsg *e)
{
    Kvcobra__ReserveItem item = KVCOBRA__RESERVE_ITEM__INIT, *items[] = { &item };
    Kvcobra__Reserve body = KVCOBRA__RESERVE__INIT;
    Kvcobra__Request m = of(KVCOBRA__REQUEST__BODY_RESERVE, &body);
    Kvcobra__Reply *reply = NULL;
    int r;

    item.key = (ProtobufCBinaryData) { CHUNK_KEY_BYTES, (uint8_t *) key->bytes };
    item.page_class = page_class;
    body.model = l->model;
    body.table_digest = (ProtobufCBinaryData) { DIGEST_BYTES, l->table_digest };
    body.items = items;
    body.n_items = 1;
    r = ask(l, &m, NULL, 0, NULL, &reply, e);
    if (r < 0)
        return r;
    if (reply->reserve->n_slots == 1 && !reply->reserve->exists[0])
        *ret = (struct link_page) { reply->reserve->slots[0]->slot, reply->reserve->slots[0]->generation, 0 };
    else
        r = fail(e, reply->reserve->end_err < 0 ? reply->reserve->end_err : -EEXIST, "no slot: %.300s", reply->message);
    wire_reply_free(reply);
    return r;
}

int link_commit(struct link *l, const struct chunk_key *key, size_t offset, struct link_page *p, struct errmsg *e)
{
    Kvcobra__CommitItem item = KVCOBRA__COMMIT_ITEM__INIT, *items[] = { &item };
    Kvcobra__Commit body = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request m = of(KVCOBRA__REQUEST__BODY_COMMIT, &body);
    Kvcobra__Reply *reply = NULL;
    int r;

    item.slot = p->slot;
    item.generation = p->generation;
    item.arena_offset = offset;
    item.key = (ProtobufCBinaryData) { CHUNK_KEY_BYTES, (uint8_t *) key->bytes };
    body.model = l->model;
    body.items = items;
    body.n_items = 1;
    r = ask(l, &m, NULL, 0, NULL, &reply, e);
    if (r < 0)
        return r;
    if (reply->commit->n_errs != 1 || reply->commit->errs[0] < 0)
        r = fail(e, -EIO, "a page was refused: %.300s", reply->message);
    p->lease = reply->commit->lease;
    wire_reply_free(reply);
    return r;
}

int link_lease(struct link *l, const struct chunk_key *key, const struct link_page *p, uint64_t *ret_lease, struct errmsg *e)
{
    Kvcobra__LeaseItem item = KVCOBRA__LEASE_ITEM__INIT, *items[] = { &item };
    Kvcobra__Lease body = KVCOBRA__LEASE__INIT;
    Kvcobra__Request m = of(KVCOBRA__REQUEST__BODY_LEASE, &body);
    Kvcobra__Reply *reply = NULL;
    int r;

    item.key = (ProtobufCBinaryData) { CHUNK_KEY_BYTES, (uint8_t *) key->bytes };
    item.slot = p->slot;
    item.generation = p->generation;
    body.model = l->model;
    body.table_digest = (ProtobufCBinaryData) { DIGEST_BYTES, l->table_digest };
    body.items = items;
    body.n_items = 1;
    r = ask(l, &m, NULL, 0, NULL, &reply, e);
    if (r < 0)
        return r;
    *ret_lease = reply->lease->lease;
    if (reply->lease->n_pages != 1)
        r = fail(e, -EIO, "a page that was published a moment ago is not there");
    wire_reply_free(reply);
    return r;
}

int link_release(struct link *l, uint64_t lease, struct errmsg *e)
{
    Kvcobra__Release body = KVCOBRA__RELEASE__INIT;

    body.lease = lease;
    return tell(l, of(KVCOBRA__REQUEST__BODY_RELEASE, &body), NULL, 0, e);
}

void link_write_page(struct link *l, const struct page_layout *layout, const struct chunk_key *key)
{
    const struct table *t = layout->table;
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION, .codec_id = PAGE_CODEC_HALF_TILES, .key = *key,
        .first_head = layout->shard.first_head, .n_heads = layout->shard.n_heads, .first_position = CHUNK_TOKENS,
        .n_tokens = CHUNK_TOKENS, .payload_bytes = layout->payload_bytes[PAGE_REST],
    };

    memcpy(h.table_digest, t->digest, DIGEST_BYTES);
    memcpy(h.model_digest, t->model_digest, DIGEST_BYTES);
    h.payload_crc32c = crc32c(l->arena + PAGE_HEADER_BYTES, (size_t) h.payload_bytes);
    page_header_store(&h, l->arena);
}
