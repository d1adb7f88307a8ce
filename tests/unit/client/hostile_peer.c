/* See hostile_peer.h. */
#include "tests/unit/client/hostile_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/table/table.h"
#include "gpu/device.h"
#include "gpu/page_layout.h"
#include "proto/index.h"
#include "proto/shared.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

#define PEER_EXTENT_BYTES (1u << 20)

static const uint8_t index_key[INDEX_KEY_BYTES] = {3};
const uint32_t peer_tokens[65] = {1, 2, 3};

/* ---- answers ---- */

static struct extent *object(size_t bytes, enum extent_access access)
{
    struct extent *x = NULL;
    int r = extent_new("kvcobra-test", bytes, access, &x, NULL);

    assert(r == 0);
    return x;
}

static void answer_hello(struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__HelloReply hello;
    static Kvcobra__LeaseReply lease;
    static uint8_t token[SESSION_TOKEN_BYTES];

    kvcobra__hello_reply__init(&hello);
    kvcobra__lease_reply__init(&lease);
    hello.version = p->wrong == HELLO_VERSION ? 9 : PROTO_VERSION;
    hello.session_token =
        (ProtobufCBinaryData){p->wrong == HELLO_SHORT_TOKEN ? 31 : SESSION_TOKEN_BYTES, token};
    reply->body_case = KVCOBRA__REPLY__BODY_HELLO;
    reply->hello = &hello;
    if (p->wrong == HELLO_WRONG_BODY) {
        reply->body_case = KVCOBRA__REPLY__BODY_LEASE;
        reply->lease = &lease;
    }
    reply->id += p->wrong == HELLO_OTHER_ID;
    reply->err = p->wrong == HELLO_POSITIVE_ERRNO ? 5 : 0;
    reply->boot_id.len -= p->wrong == HELLO_SHORT_BOOT_ID;
    if (p->wrong == HELLO_SILENT_CLOSE)
        _exit(0);
}

static bool is_gpu(const struct peer *p)
{
    return p->wrong >= GPU_CORRECT;
}

static void answer_confirm(const struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__ConfirmReply confirm;
    static Kvcobra__Device device;
    static uint8_t pool[BOOT_ID_BYTES] = {9};

    kvcobra__confirm_reply__init(&confirm);
    confirm.pool = (ProtobufCBinaryData){p->wrong == CONFIRM_NO_POOL ? 0 : sizeof(pool), pool};
    if (p->wrong == CONFIRM_OTHER_BOOT_ID)
        reply->boot_id.data[0] = 8;
    if (p->wrong == CONFIRM_NO_BODY)
        return;
    reply->body_case = KVCOBRA__REPLY__BODY_CONFIRM;
    reply->confirm = &confirm;
    kvcobra__device__init(&device);
    device.name = (char *) "gpu0";
    device.uuid =
        (char *) (p->wrong == GPU_OTHER_DEVICE ? "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1" : PEER_GPU);
    device.pool_bytes = PEER_EXTENT_BYTES;
    confirm.device = is_gpu(p) && p->wrong != GPU_NO_DEVICE ? &device : NULL;
}

static size_t answer_open(struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__OpenModelReply open;
    const struct index_hit hit = {5, p->wrong == INDEX_CLASS ? PAGE_REST : PAGE_FIRST, 6};
    struct extent *control = object(CONTROL_PAGE_BYTES, EXTENT_READ), *index = object(65536, EXTENT_READ);
    struct extent *session = object(p->wrong == OPEN_SESSION_SIZE ? 8192 : 4096, EXTENT_READ_WRITE);
    struct extent *arena = object(1 << 20, EXTENT_READ_WRITE);
    struct control_page *page = extent_data(control);
    struct index_writer w;
    unsigned entry = p->wrong == CONTROL_ENTRY ? 200 : 0;

    if (p->wrong == CONTROL_NONE)
        entry = 255;
    page->magic = CONTROL_MAGIC;
    page->version = 1;
    memcpy(page->models[0].digests[0], p->digest, sizeof(p->digest));
    page->models[0].word = control_word(1, entry, 255, 0);
    index_writer_init(&w, extent_data(index), extent_bytes(index));
    assert(index_insert(&w, &p->key, &hit) == 0);
    if (p->wrong == OPEN_INDEX_HEAD)
        ((uint8_t *) extent_data(index))[8 + 3] = 1;
    kvcobra__open_model_reply__init(&open);
    open.model = 1;
    open.control_slot = p->wrong == OPEN_CONTROL_SLOT ? CONTROL_MODELS_MAX : 0;
    open.table_digest = (ProtobufCBinaryData){32, p->digest};
    open.index_key = (ProtobufCBinaryData){p->wrong == OPEN_SHORT_KEY ? 31 : 32, (uint8_t *) index_key};
    if (p->wrong == OPEN_SHORT_DIGESTS) {
        open.model_digest = (ProtobufCBinaryData){5, p->digest};
        open.table_digest.len = 0;
    }
    open.control_bytes = CONTROL_PAGE_BYTES + (p->wrong == OPEN_CONTROL_SIZE ? 4096 : 0);
    open.index_bytes = extent_bytes(index);
    open.session_bytes = extent_bytes(session);
    open.arena_bytes = extent_bytes(arena);
    if (p->wrong == OPEN_SHORT_MODEL || p->wrong == OPEN_OTHER_MODEL)
        open.model_digest =
            (ProtobufCBinaryData){p->wrong == OPEN_SHORT_MODEL ? 31 : 32, (uint8_t *) index_key};
    reply->body_case = KVCOBRA__REPLY__BODY_OPEN_MODEL;
    reply->open_model = &open;
    fds[0] = extent_fd(control);
    fds[1] = extent_fd(index);
    fds[2] = extent_fd(session);
    fds[3] = extent_fd(arena);
    if (p->wrong == OPEN_UNSEALED) {
        fds[0] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert(write(fds[0], page, CONTROL_PAGE_BYTES) == CONTROL_PAGE_BYTES);
    }
    return p->wrong == OPEN_FEW_FDS ? 3 : 4;
}

/* The peer's table is active. */
static void answer_list(struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__ListTablesReply list;
    static Kvcobra__TableInfo table;
    static Kvcobra__TableInfo *tables[1] = {&table};

    kvcobra__list_tables_reply__init(&list);
    kvcobra__table_info__init(&table);
    table.digest = (ProtobufCBinaryData){p->wrong == LIST_SHORT_DIGEST ? 31 : 32, p->digest};
    table.model_digest = (ProtobufCBinaryData){32, (uint8_t *) random_table_model_digest};
    table.state = KVCOBRA__TABLE_STATE__TABLE_ACTIVE;
    list.tables = tables;
    list.n_tables = p->wrong == LIST_NO_END ? 0 : 1;
    list.next_cursor = p->wrong == LIST_NO_END ? 1 : 0;
    reply->body_case = KVCOBRA__REPLY__BODY_LIST_TABLES;
    reply->list_tables = &list;
}

static size_t answer_fetch(struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__FetchTableReply fetch;
    static const char other[] = "this is no table at all, whatever the reply says";
    int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ssize_t n =
        p->wrong == FETCH_OTHER_TABLE ? write(fd, other, sizeof(other)) : write(fd, p->table, p->n_table);

    assert(n > 0);
    if (p->wrong != FETCH_UNSEALED)
        assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
    kvcobra__fetch_table_reply__init(&fetch);
    fetch.bytes = (uint64_t) n + (p->wrong == FETCH_SIZE);
    reply->body_case = KVCOBRA__REPLY__BODY_FETCH_TABLE;
    reply->fetch_table = &fetch;
    fds[0] = fd;
    return p->wrong != FETCH_NO_FD;
}

static void answer_lease(struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__LeaseReply lease;
    static Kvcobra__PageRef page;
    static Kvcobra__PageRef *pages[2] = {&page, &page};

    kvcobra__lease_reply__init(&lease);
    kvcobra__page_ref__init(&page);
    page.extent = 1;
    page.bytes = p->page_bytes + (p->wrong == LEASE_BYTES || p->wrong == GPU_LEASE_BYTES);
    page.offset = 128;
    if (p->wrong == LEASE_OFFSET || p->wrong == GPU_LEASE_OFFSET)
        page.offset = UINT64_MAX - 127;
    if (p->wrong == LEASE_UNALIGNED || p->wrong == GPU_LEASE_UNALIGNED)
        page.offset = 64;
    lease.lease = 1;
    lease.pages = pages;
    lease.n_pages = p->wrong == LEASE_MORE ? 2 : 1;
    reply->body_case = p->wrong == LEASE_NO_BODY ? KVCOBRA__REPLY__BODY__NOT_SET : KVCOBRA__REPLY__BODY_LEASE;
    reply->lease = &lease;
    reply->id += p->wrong == LEASE_OTHER_ID;
    if (p->wrong == LEASE_ERRNO)
        reply->err = -EDQUOT;
    if (p->wrong == LEASE_GONE)
        _exit(0);
}

/* A slot for one page, and the page after COMMIT: not the page of the index, which has another place. */
static void answer_reserve(const struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__ReserveReply reserve;
    static Kvcobra__PageRef slot;
    static Kvcobra__PageRef *slots[1] = {&slot};
    static protobuf_c_boolean exists[1];

    kvcobra__reserve_reply__init(&reserve);
    kvcobra__page_ref__init(&slot);
    slot.extent = 1;
    slot.slot = 8;
    slot.generation = 9;
    slot.bytes = p->page_bytes - (p->wrong == GPU_SLOT_BYTES);
    slot.offset = p->wrong == GPU_SLOT_UNALIGNED ? 65600 : 65536;
    if (p->wrong == GPU_SLOT_OFFSET)
        slot.offset = PEER_EXTENT_BYTES - 128;
    reserve.slots = slots;
    reserve.exists = exists;
    reserve.n_slots = reserve.n_exists = 1;
    reply->body_case = KVCOBRA__REPLY__BODY_RESERVE;
    reply->reserve = &reserve;
}

static void answer_commit(const struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__CommitReply commit;
    static Kvcobra__PageRef page;
    static Kvcobra__PageRef *pages[1] = {&page};
    static int32_t errs[1];

    if (p->wrong == GPU_GONE)
        _exit(0);
    kvcobra__commit_reply__init(&commit);
    kvcobra__page_ref__init(&page);
    page = (Kvcobra__PageRef){
        .base = page.base, .extent = 1, .slot = 8, .generation = 9, .offset = 65536, .bytes = p->page_bytes};
    commit.pages = pages;
    commit.errs = errs;
    commit.n_pages = commit.n_errs = p->wrong == GPU_COMMIT_FEW ? 0 : 1;
    commit.lease = 2;
    reply->body_case = KVCOBRA__REPLY__BODY_COMMIT;
    reply->commit = &commit;
}

/* Memory of the stand-in's first device, as another process would allocate it. */
static size_t answer_gpu_extent(const struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__GetExtentReply get;
    int fd, r;

    fd = memfd_create(p->wrong == GPU_ON_HOST ? "kvcobra-pages" : "standin-gpu-0", MFD_CLOEXEC);
    r = fd < 0 ? -1 : ftruncate(fd, PEER_EXTENT_BYTES);

    assert(r == 0);
    kvcobra__get_extent_reply__init(&get);
    get.bytes = PEER_EXTENT_BYTES * (p->wrong == GPU_SHORT ? 2 : 1) - (p->wrong == GPU_FRACTION);
    reply->body_case = KVCOBRA__REPLY__BODY_GET_EXTENT;
    reply->get_extent = &get;
    if (p->wrong == GPU_NO_DESCRIPTOR) {
        (void) close(fd);
        return 0;
    }
    fds[0] = fd;
    return 1;
}

static size_t answer_extent(struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__GetExtentReply get;
    struct extent *x = object(1 << 20, EXTENT_READ);
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .key = p->key,
        .n_heads = 1,
        .first_position = p->wrong == LEASE_OTHER_POSITION ? 64 : 0,
        .n_tokens = 64,
        .flags = PAGE_FLAG_FIRST,
        .payload_bytes = p->page_bytes - 128,
    };

    memcpy(h.table_digest, p->digest, 32);
    memcpy(h.model_digest, random_table_model_digest, 32);
    if (p->wrong != LEASE_DAMAGED)
        page_header_store(&h, (uint8_t *) extent_data(x) + 128);
    kvcobra__get_extent_reply__init(&get);
    get.bytes = extent_bytes(x);
    reply->body_case = KVCOBRA__REPLY__BODY_GET_EXTENT;
    reply->get_extent = &get;
    fds[0] = extent_fd(x);
    return p->wrong != LEASE_NO_DESCRIPTOR;
}

static void answer(struct peer *p, const Kvcobra__Request *m)
{
    static uint8_t boot_id[BOOT_ID_BYTES] = {7};
    Kvcobra__Reply reply = KVCOBRA__REPLY__INIT;
    size_t n_fds = 0;
    int fds[4];
    ssize_t n;

    reply.id = m->id;
    reply.boot_id = (ProtobufCBinaryData){BOOT_ID_BYTES, boot_id};
    if (m->body_case == KVCOBRA__REQUEST__BODY_HELLO)
        answer_hello(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_OPEN_MODEL)
        n_fds = answer_open(p, &reply, fds);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_FETCH_TABLE)
        n_fds = answer_fetch(p, &reply, fds);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_LIST_TABLES)
        answer_list(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_LEASE)
        answer_lease(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_GET_EXTENT)
        n_fds = is_gpu(p) ? answer_gpu_extent(p, &reply, fds) : answer_extent(p, &reply, fds);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_RESERVE)
        answer_reserve(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_COMMIT)
        answer_commit(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_CONFIRM)
        answer_confirm(p, &reply);
    n = wire_reply_pack(&reply, p->packet);
    assert(n > 0);
    (void) wire_send(p->fd, p->packet, (size_t) n, fds, n_fds);
    if (m->body_case == KVCOBRA__REQUEST__BODY_LEASE && p->wrong == LEASE_TWICE)
        (void) wire_send(p->fd, p->packet, (size_t) n, NULL, 0);
}

_Noreturn void peer_serve(int listener, struct peer *p)
{
    p->fd = accept(listener, NULL, NULL);
    (void) close(listener);
    for (;;) {
        struct wire_packet packet;
        Kvcobra__Request *m = NULL;

        if (wire_receive(p->fd, p->packet, &packet) < 0)
            _exit(0);
        if (wire_request_unpack(p->packet, packet.bytes, &m) < 0)
            _exit(1);
        answer(p, m);
        wire_request_free(m);
    }
}

/* ---- setting up ---- */

void peer_init(struct peer *p, const struct embedded *m, enum wrong_reply wrong)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    int r = kvc_model_get_info(m->model, &info);

    assert(r == 0);
    p->wrong = wrong;
    p->table = m->bytes;
    p->n_table = m->n_bytes;
    memcpy(p->digest, info.table_digest, sizeof(p->digest));
    p->page_bytes = info.first_page_bytes;
    chunk_key_derive(index_key,
                     &(struct chunk_identity){p->digest, random_table_model_digest, 0, 1, NULL, 0, false},
                     NULL, peer_tokens, &p->key);
}

int peer_listen(char *dir, char *path, size_t path_bytes)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;

    assert(listener >= 0 && mkdtemp(dir));
    (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/s", dir);
    r = bind(listener, (const struct sockaddr *) &sa, sizeof(sa));
    if (r == 0)
        r = listen(listener, 4);
    assert(r == 0);
    (void) snprintf(path, path_bytes, "%s", sa.sun_path);
    return listener;
}

void peer_unlisten(int listener, const char *dir, const char *path)
{
    (void) close(listener);
    (void) unlink(path);
    (void) rmdir(dir);
}
