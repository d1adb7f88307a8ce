/* The protocol without the library; see raw_fixture.h. */
#include "tests/e2e/raw_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/table/table.h"
#include "gpu/page_layout.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

bool raw_exits_on_loss;
void (*raw_on_loss)(void);

int raw_connect(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = WAIT_LIMIT_S};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, path, strlen(path) + 1);
    assert(fd >= 0 && connect(fd, (const struct sockaddr *) &sa, sizeof(sa)) == 0);
    assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
    return fd;
}

Kvcobra__Reply *raw_request(int fd, Kvcobra__Request *m, const int *fds, size_t n_fds,
                            struct wire_packet *ret_packet)
{
    static _Thread_local uint64_t last_id; /* tests send from several threads */
    static _Thread_local uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p;
    Kvcobra__Reply *reply = NULL;
    ssize_t n;

    m->id = ++last_id;
    n = wire_request_pack(m, buf);
    assert(n > 0);
    if (wire_send(fd, buf, (size_t) n, fds, n_fds) < 0 || wire_receive(fd, buf, &p) < 0) {
        if (raw_on_loss)
            raw_on_loss();
        if (raw_exits_on_loss)
            _exit(0);
        return NULL;
    }
    assert(wire_reply_unpack(buf, p.bytes, &reply) == 0);
    if (reply->id != 0 || reply->err == 0) /* id 0: the connection is refused */
        CU_ASSERT_EQUAL(reply->id, m->id);
    CU_ASSERT_EQUAL(reply->boot_id.len, BOOT_ID_BYTES);
    CU_ASSERT(reply->err == 0 || reply->message[0] != '\0'); /* an errno has a sentence */
    if (ret_packet)
        *ret_packet = p;
    else
        wire_packet_close_fds(&p);
    return reply;
}

int raw_errno(int fd, Kvcobra__Request *m)
{
    Kvcobra__Reply *reply = raw_request(fd, m, NULL, 0, NULL);
    int r = reply ? reply->err : 1;

    wire_reply_free(reply);
    return r;
}

Kvcobra__Request raw_of(Kvcobra__Request__BodyCase body, void *message)
{
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;

    m.body_case = body;
    m.hello = message; /* all bodies are pointers in one union */
    return m;
}

int raw_hello(int fd)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);

    hello.version_min = PROTO_VERSION_MIN;
    hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "raw test";
    return raw_errno(fd, &m);
}

int raw_hello_on(int fd, const char *device, bool resume, uint8_t *token)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    Kvcobra__Reply *reply;
    int r;

    hello.version_min = PROTO_VERSION_MIN;
    hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "raw test";
    hello.device = (char *) device;
    if (resume)
        hello.session_token = (ProtobufCBinaryData){SESSION_TOKEN_BYTES, token};
    reply = raw_request(fd, &m, NULL, 0, NULL);
    r = reply ? reply->err : 1;
    if (r == 0 && token)
        memcpy(token, reply->hello->session_token.data, SESSION_TOKEN_BYTES);
    if (r == 0)
        CU_ASSERT_EQUAL(reply->hello->resumed, resume);
    wire_reply_free(reply);
    return r;
}

int raw_confirm(int fd)
{
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_CONFIRM, &confirm);

    return raw_errno(fd, &m);
}

int raw_open(const char *path)
{
    int fd = raw_connect(path);

    assert(raw_hello(fd) == 0);
    assert(raw_confirm(fd) == 0);
    return fd;
}

/* HELLO and CONFIRM on a new connection. Return: errno; 1: the daemon closed the connection. */
static int greet_on(const char *path, const char *device, int *ret_fd)
{
    int fd = raw_connect(path), r = raw_hello_on(fd, device, false, NULL);

    if (r == 0)
        r = raw_confirm(fd);
    if (r == 0)
        *ret_fd = fd;
    else
        (void) close(fd);
    return r;
}

/*
 * A busy machine may be slower than --handshake-ms. Then the daemon closes the connection, and this function
 * opens another one. It does so too while earlier connections take all places.
 */
int raw_open_on(const char *path, const char *device)
{
    int fd = -1, r = greet_on(path, device, &fd);

    for (struct wait w = wait_begin(); (r == -EAGAIN || r == -EDQUOT || r == 1) && wait_again(&w);)
        r = greet_on(path, device, &fd);
    assert(r == 0);
    return fd;
}

int raw_refusal(int fd, char *ret_text, size_t n)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p;
    Kvcobra__Reply *reply = NULL;
    int err = 0;

    if (wire_receive(fd, buf, &p) == 0 && wire_reply_unpack(buf, p.bytes, &reply) == 0) {
        CU_ASSERT_EQUAL(reply->id, 0);
        CU_ASSERT_EQUAL(reply->body_case, KVCOBRA__REPLY__BODY__NOT_SET);
        err = reply->err;
        (void) snprintf(ret_text, n, "%s", reply->message);
    }

    wire_reply_free(reply);
    CU_ASSERT(raw_is_closed(fd));
    return err;
}

bool raw_is_closed(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* ---- publishing and finding ---- */

static int sealed_memfd(const void *bytes, size_t n_bytes)
{
    int fd = memfd_create("test-table", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert(fd >= 0 && write(fd, bytes, n_bytes) == (ssize_t) n_bytes);
    assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
    return fd;
}

int raw_try_activate(const char *operator_path, const void *bytes, size_t n_bytes,
                     uint8_t ret_digest[static 32])
{
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage);
    int fd = raw_open(operator_path), table = sealed_memfd(bytes, n_bytes);
    Kvcobra__Reply *reply;
    int r;

    stage.bytes = n_bytes;
    reply = raw_request(fd, &m, &table, 1, NULL);
    (void) close(table);
    assert(reply && reply->err == 0 && reply->stage_table->digest.len == 32);
    memcpy(ret_digest, reply->stage_table->digest.data, 32);
    wire_reply_free(reply);
    activate.digest = (ProtobufCBinaryData){32, ret_digest};
    m = raw_of(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate);
    r = raw_errno(fd, &m);
    (void) close(fd);
    return r;
}

void raw_activate(const char *operator_path, const void *bytes, size_t n_bytes, uint8_t ret_digest[static 32])
{
    assert(raw_try_activate(operator_path, bytes, n_bytes, ret_digest) == 0);
}

static uint8_t *map(int fd, size_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

    assert(p != MAP_FAILED);
    return p;
}

int raw_open_model(int fd, const struct geometry *g, const uint8_t *model_digest, struct raw_model *ret)
{
    Kvcobra__Geometry geometry = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_OPEN_MODEL, &open);
    struct wire_packet p = {0};
    Kvcobra__Reply *reply;
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
    open.model_digest = (ProtobufCBinaryData){32, (uint8_t *) model_digest};
    reply = raw_request(fd, &m, NULL, 0, &p);
    assert(reply);
    r = reply->err;
    if (r == 0) {
        const Kvcobra__OpenModelReply *o = reply->open_model;

        assert(p.n_fds == 4);
        *ret = (struct raw_model){
            .fd = fd,
            .handle = o->model,
            .control_bytes = o->control_bytes,
            .index_bytes = o->index_bytes,
            .session_bytes = o->session_bytes,
            .arena_bytes = o->arena_bytes,
            .index_object = o->index_object,
        };
        memcpy(ret->table_digest, o->table_digest.data, 32);
        memcpy(ret->model_digest, model_digest, 32);
        memcpy(ret->index_key, o->index_key.data, INDEX_KEY_BYTES);
        ret->control = map(p.fds[0], o->control_bytes, PROT_READ);
        ret->index = map(p.fds[1], o->index_bytes, PROT_READ);
        ret->session = map(p.fds[2], o->session_bytes, PROT_READ | PROT_WRITE);
        ret->arena = map(p.fds[3], o->arena_bytes, PROT_READ | PROT_WRITE);
    }
    wire_packet_close_fds(&p);
    wire_reply_free(reply);
    return r;
}

void raw_close_model(struct raw_model *m)
{
    (void) munmap(m->control, m->control_bytes);
    (void) munmap(m->index, m->index_bytes);
    (void) munmap(m->session, m->session_bytes);
    (void) munmap(m->arena, m->arena_bytes);
    (void) close(m->fd);
}

static struct raw_slot slot_of(const Kvcobra__PageRef *ref)
{
    return (struct raw_slot){
        .slot = ref->slot,
        .generation = ref->generation,
        .extent = ref->extent,
        .offset = ref->offset,
        .bytes = ref->bytes,
    };
}

struct raw_slot raw_reserve(struct raw_model *m, const struct chunk_key *key, unsigned page_class)
{
    Kvcobra__ReserveItem item = KVCOBRA__RESERVE_ITEM__INIT, *items[] = {&item};
    Kvcobra__Reserve reserve = KVCOBRA__RESERVE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_RESERVE, &reserve);
    struct raw_slot ret = {0};
    Kvcobra__Reply *reply;

    item.key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) key->bytes};
    item.page_class = page_class;
    reserve.model = m->handle;
    reserve.table_digest = (ProtobufCBinaryData){32, m->table_digest};
    reserve.n_items = 1;
    reserve.items = items;
    reply = raw_request(m->fd, &q, NULL, 0, NULL);
    assert(reply);
    if (reply->err < 0) {
        ret.err = reply->err;
    } else if (reply->reserve->n_slots == 0) {
        ret.err = reply->reserve->end_err;
        CU_ASSERT(reply->message[0] != '\0');
    } else {
        ret = slot_of(reply->reserve->slots[0]);
        ret.exists = reply->reserve->exists[0];
    }
    wire_reply_free(reply);
    return ret;
}

void raw_write_page(struct raw_model *m, const struct table *t, const struct chunk_key *key,
                    unsigned page_class, size_t offset, unsigned seed)
{
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .key = *key,
        .n_heads = t->geometry.n_kv_heads,
        .first_position = page_class == PAGE_FIRST ? 0 : CHUNK_TOKENS,
        .n_tokens = CHUNK_TOKENS,
        .flags = page_class == PAGE_FIRST ? PAGE_FLAG_FIRST : 0,
    };
    struct page_layout l;
    uint8_t *payload = m->arena + offset + PAGE_HEADER_BYTES;

    assert(page_layout_init(&l, t, (struct shard){0, t->geometry.n_kv_heads}) == 0);
    assert(offset + l.page_bytes[page_class] <= m->arena_bytes);
    /* the numbers are finite in binary16: their exponents are not all ones */
    for (size_t i = 0; i < l.payload_bytes[page_class]; i++)
        payload[i] = (uint8_t) ((i * 131 + seed) & 0x3b);
    memcpy(h.table_digest, t->digest, 32);
    memcpy(h.model_digest, m->model_digest, 32);
    h.payload_bytes = l.payload_bytes[page_class];
    h.payload_crc32c = crc32c(payload, l.payload_bytes[page_class]);
    page_header_store(&h, m->arena + offset);
    page_layout_deinit(&l);
}

static int commit(struct raw_model *m, const struct raw_slot *s, const struct chunk_key *key, size_t offset,
                  uint32_t crc, uint64_t *ret_lease)
{
    Kvcobra__CommitItem item = KVCOBRA__COMMIT_ITEM__INIT, *items[] = {&item};
    Kvcobra__Commit body = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_COMMIT, &body);
    Kvcobra__Reply *reply;
    int r;

    item.slot = s->slot;
    item.generation = s->generation;
    item.arena_offset = offset;
    item.key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) key->bytes};
    item.payload_crc32c = crc;
    body.model = m->handle;
    body.n_items = 1;
    body.items = items;
    reply = raw_request(m->fd, &q, NULL, 0, NULL);
    assert(reply);
    r = reply->err;
    if (r == 0) {
        CU_ASSERT_EQUAL_FATAL(reply->commit->n_errs, 1);
        r = reply->commit->errs[0];
        CU_ASSERT_EQUAL(reply->commit->lease != 0, r == 0);
        if (ret_lease)
            *ret_lease = reply->commit->lease;
    }
    wire_reply_free(reply);
    return r;
}

int raw_commit(struct raw_model *m, const struct raw_slot *s, const struct chunk_key *key, size_t offset,
               uint64_t *ret_lease)
{
    return commit(m, s, key, offset, 0, ret_lease);
}

int raw_commit_crc(struct raw_model *m, const struct raw_slot *s, const struct chunk_key *key,
                   uint32_t crc32c, uint64_t *ret_lease)
{
    /* an offset outside every arena, which the daemon ignores */
    return commit(m, s, key, UINT64_C(1) << 40, crc32c, ret_lease);
}

int raw_abort(struct raw_model *m, const struct raw_slot *s)
{
    Kvcobra__AbortItem item = KVCOBRA__ABORT_ITEM__INIT, *items[] = {&item};
    Kvcobra__Abort abort_ = KVCOBRA__ABORT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_ABORT, &abort_);

    item.slot = s->slot;
    item.generation = s->generation;
    abort_.n_items = 1;
    abort_.items = items;
    return raw_errno(m->fd, &q);
}

int raw_lease(struct raw_model *m, const struct chunk_key *keys, const struct raw_slot *slots, size_t n,
              size_t *ret_granted, uint64_t *ret_lease, int *ret_reason)
{
    Kvcobra__LeaseItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    Kvcobra__Lease lease = KVCOBRA__LEASE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LEASE, &lease);
    Kvcobra__Reply *reply;
    int r;

    for (size_t i = 0; i < n; i++) {
        items[i] = (Kvcobra__LeaseItem) KVCOBRA__LEASE_ITEM__INIT;
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) keys[i].bytes};
        items[i].slot = slots[i].slot;
        items[i].generation = slots[i].generation;
        pointers[i] = &items[i];
    }
    lease.model = m->handle;
    lease.table_digest = (ProtobufCBinaryData){32, m->table_digest};
    lease.n_items = n;
    lease.items = pointers;
    reply = raw_request(m->fd, &q, NULL, 0, NULL);
    assert(reply);
    r = reply->err;
    if (r == 0) {
        *ret_granted = reply->lease->n_pages;
        *ret_lease = reply->lease->lease;
        *ret_reason = (int) reply->lease->end_reason;
    }
    wire_reply_free(reply);
    return r;
}

int raw_release(struct raw_model *m, uint64_t lease)
{
    Kvcobra__Release release = KVCOBRA__RELEASE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_RELEASE, &release);

    release.lease = lease;
    return raw_errno(m->fd, &q);
}

int raw_keep(struct raw_model *m, const uint64_t *leases, size_t n)
{
    Kvcobra__KeepLeases keep = KVCOBRA__KEEP_LEASES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_KEEP_LEASES, &keep);

    keep.leases = (uint64_t *) leases;
    keep.n_leases = n;
    keep.last = true;
    return raw_errno(m->fd, &q);
}

int raw_get_extent(struct raw_model *m, uint64_t extent, int *ret_fd, size_t *ret_bytes)
{
    Kvcobra__GetExtent get = KVCOBRA__GET_EXTENT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_GET_EXTENT, &get);
    struct wire_packet p = {0};
    Kvcobra__Reply *reply;
    int r;

    get.extent = extent;
    reply = raw_request(m->fd, &q, NULL, 0, &p);
    assert(reply);
    r = reply->err;
    if (r == 0) {
        assert(p.n_fds == 1);
        *ret_bytes = reply->get_extent->bytes;
        *ret_fd = fcntl(p.fds[0], F_DUPFD_CLOEXEC, 0);
        assert(*ret_fd >= 0);
    }
    wire_packet_close_fds(&p);
    wire_reply_free(reply);
    return r;
}

uint8_t *raw_map_extent(struct raw_model *m, uint64_t extent, size_t *ret_bytes)
{
    uint8_t *data;
    int fd;

    assert(raw_get_extent(m, extent, &fd, ret_bytes) == 0);
    data = map(fd, *ret_bytes, PROT_READ);
    (void) close(fd);
    return data;
}
