/*
 * A peer that speaks the protocol and lies: every answer that makes no sense is a code and a sentence, nothing is
 * mapped from objects that could change under us, and no descriptor is left behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/table.h"
#include "base/errmsg.h"
#include "gpu/device.h"
#include "proto/index.h"
#include "proto/shared.h"
#include "proto/wire.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum lie {
    NO_LIE = 0,
    HELLO_VERSION, HELLO_OTHER_ID, HELLO_POSITIVE_ERRNO, HELLO_WRONG_BODY, HELLO_SHORT_BOOT_ID, HELLO_SILENT_CLOSE,
    HELLO_SHORT_TOKEN, CONFIRM_OTHER_BOOT_ID, CONFIRM_NO_POOL, CONFIRM_NO_BODY,
    OPEN_FEW_FDS, OPEN_CONTROL_SLOT, OPEN_SHORT_KEY, OPEN_UNSEALED, OPEN_CONTROL_SIZE, OPEN_INDEX_HEAD,
    OPEN_SESSION_SIZE,
    FETCH_NO_FD, FETCH_SIZE, FETCH_OTHER_TABLE,
    CONTROL_ENTRY, CONTROL_NONE,
    LEASE_OFFSET, LEASE_UNALIGNED, LEASE_BYTES, LEASE_DAMAGED, LEASE_OTHER_POSITION, LEASE_MORE,
    N_LIES,
};

static const struct {
    const char *name;
    int connect, open, match; /* what the library answers */
} lies[N_LIES] = {
    [NO_LIE] = { "truth", 0, 0 },
    [HELLO_VERSION] = { "version 9", -EPROTO, 0 },
    [HELLO_OTHER_ID] = { "reply to another request", -EPROTO, 0 },
    [HELLO_POSITIVE_ERRNO] = { "positive errno", -EPROTO, 0 },
    [HELLO_WRONG_BODY] = { "body of another reply", -EPROTO, 0 },
    [HELLO_SHORT_BOOT_ID] = { "short boot id", -EPROTO, 0 },
    [HELLO_SILENT_CLOSE] = { "hangs up", -EPROTO, 0 },
    [HELLO_SHORT_TOKEN] = { "session token of 31 bytes", -EPROTO, 0 },
    [CONFIRM_NO_POOL] = { "no pool", -EPROTO, 0 },
    [CONFIRM_NO_BODY] = { "empty confirmation", -EPROTO, 0 },
    [CONFIRM_OTHER_BOOT_ID] = { "another boot id", -EPROTO, 0 },
    [OPEN_FEW_FDS] = { "three descriptors", 0, -EPROTO },
    [OPEN_CONTROL_SLOT] = { "control slot outside the page", 0, -EPROTO },
    [OPEN_SHORT_KEY] = { "index key of 31 bytes", 0, -EPROTO },
    [OPEN_UNSEALED] = { "objects that may shrink", 0, -EBADMSG },
    [OPEN_CONTROL_SIZE] = { "control page of another size", 0, -EBADMSG },
    [OPEN_INDEX_HEAD] = { "index with more buckets than bytes", 0, -EBADMSG },
    [OPEN_SESSION_SIZE] = { "session page of two pages", 0, -EPROTO },
    [FETCH_NO_FD] = { "table without descriptor", 0, -EPROTO },
    [FETCH_SIZE] = { "table longer than its object", 0, -EPROTO },
    [FETCH_OTHER_TABLE] = { "table that is none", 0, -EBADMSG },
    [CONTROL_ENTRY] = { "word naming entry 200", 0, -EBADMSG },
    [CONTROL_NONE] = { "word naming no table", 0, -ENODATA },
    [LEASE_OFFSET] = { "page beyond its extent", 0, 0, -EPROTO },
    [LEASE_UNALIGNED] = { "page between slots", 0, 0, -EPROTO },
    [LEASE_BYTES] = { "page of another size", 0, 0, -EPROTO },
    [LEASE_DAMAGED] = { "page without a header", 0, 0, -EBADMSG },
    [LEASE_OTHER_POSITION] = { "page of another position", 0, 0, -EPROTO },
    [LEASE_MORE] = { "more pages than asked for", 0, 0, 0 },
};

static const uint8_t index_key[INDEX_KEY_BYTES] = { 3 };
static const uint32_t tokens[65] = { 1, 2, 3 }; /* one chunk, and one token more to compute */

/* ---- the peer ----------------------------------------------------------------------------------------------------- */

struct peer {
    enum lie lie;
    int fd;
    const void *table;
    size_t n_table;
    uint8_t digest[32];
    size_t page_bytes;           /* of class first */
    struct chunk_key key;        /* of the chunk that the index has */
    uint8_t packet[WIRE_PACKET_BYTES_MAX];
};

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
    hello.version = p->lie == HELLO_VERSION ? 9 : PROTO_VERSION;
    hello.session_token = (ProtobufCBinaryData) { p->lie == HELLO_SHORT_TOKEN ? 31 : SESSION_TOKEN_BYTES, token };
    reply->body_case = KVCOBRA__REPLY__BODY_HELLO;
    reply->hello = &hello;
    if (p->lie == HELLO_WRONG_BODY) {
        reply->body_case = KVCOBRA__REPLY__BODY_LEASE;
        reply->lease = &lease;
    }
    reply->id += p->lie == HELLO_OTHER_ID;
    reply->err = p->lie == HELLO_POSITIVE_ERRNO ? 5 : 0;
    reply->boot_id.len -= p->lie == HELLO_SHORT_BOOT_ID;
    if (p->lie == HELLO_SILENT_CLOSE)
        _exit(0);
}

static void answer_confirm(const struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__ConfirmReply confirm;
    static uint8_t pool[BOOT_ID_BYTES] = { 9 };

    kvcobra__confirm_reply__init(&confirm);
    confirm.pool = (ProtobufCBinaryData) { p->lie == CONFIRM_NO_POOL ? 0 : sizeof(pool), pool };
    if (p->lie == CONFIRM_OTHER_BOOT_ID)
        reply->boot_id.data[0] = 8;
    if (p->lie == CONFIRM_NO_BODY)
        return;
    reply->body_case = KVCOBRA__REPLY__BODY_CONFIRM;
    reply->confirm = &confirm;
}

static size_t answer_open(struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__OpenModelReply open;
    const struct index_hit hit = { 5, 0, 6 };
    struct extent *control = object(CONTROL_PAGE_BYTES, EXTENT_READ), *index = object(65536, EXTENT_READ);
    struct extent *session = object(p->lie == OPEN_SESSION_SIZE ? 8192 : 4096, EXTENT_READ_WRITE);
    struct extent *arena = object(1 << 20, EXTENT_READ_WRITE);
    struct control_page *page = extent_data(control);
    struct index_writer w;

    page->magic = CONTROL_MAGIC;
    page->version = 1;
    memcpy(page->models[0].digests[0], p->digest, sizeof(p->digest));
    page->models[0].word = control_word(1, p->lie == CONTROL_ENTRY ? 200 : p->lie == CONTROL_NONE ? 255 : 0, 255, 0);
    index_writer_init(&w, extent_data(index), extent_bytes(index));
    assert(index_insert(&w, &p->key, &hit) == 0);
    if (p->lie == OPEN_INDEX_HEAD)
        ((uint8_t *) extent_data(index))[8 + 3] = 1;
    kvcobra__open_model_reply__init(&open);
    open.model = 1;
    open.control_slot = p->lie == OPEN_CONTROL_SLOT ? CONTROL_MODELS_MAX : 0;
    open.table_digest = (ProtobufCBinaryData) { 32, p->digest };
    open.index_key = (ProtobufCBinaryData) { p->lie == OPEN_SHORT_KEY ? 31 : 32, (uint8_t *) index_key };
    open.control_bytes = CONTROL_PAGE_BYTES + (p->lie == OPEN_CONTROL_SIZE ? 4096 : 0);
    open.index_bytes = extent_bytes(index);
    open.session_bytes = extent_bytes(session);
    open.arena_bytes = extent_bytes(arena);
    reply->body_case = KVCOBRA__REPLY__BODY_OPEN_MODEL;
    reply->open_model = &open;
    fds[0] = extent_fd(control);
    fds[1] = extent_fd(index);
    fds[2] = extent_fd(session);
    fds[3] = extent_fd(arena);
    if (p->lie == OPEN_UNSEALED) {
        fds[0] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert(write(fds[0], page, CONTROL_PAGE_BYTES) == CONTROL_PAGE_BYTES);
    }
    return p->lie == OPEN_FEW_FDS ? 3 : 4;
}

static size_t answer_fetch(struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__FetchTableReply fetch;
    static const char other[] = "this is no table at all, whatever the reply says";
    int fd = memfd_create("table", MFD_CLOEXEC);
    ssize_t n = p->lie == FETCH_OTHER_TABLE ? write(fd, other, sizeof(other)) : write(fd, p->table, p->n_table);

    assert(n > 0);
    kvcobra__fetch_table_reply__init(&fetch);
    fetch.bytes = (uint64_t) n + (p->lie == FETCH_SIZE);
    reply->body_case = KVCOBRA__REPLY__BODY_FETCH_TABLE;
    reply->fetch_table = &fetch;
    fds[0] = fd;
    return p->lie != FETCH_NO_FD;
}

static void answer_lease(struct peer *p, Kvcobra__Reply *reply)
{
    static Kvcobra__LeaseReply lease;
    static Kvcobra__PageRef page;
    static Kvcobra__PageRef *pages[2] = { &page, &page };

    kvcobra__lease_reply__init(&lease);
    kvcobra__page_ref__init(&page);
    page.extent = 1;
    page.bytes = p->page_bytes + (p->lie == LEASE_BYTES);
    page.offset = p->lie == LEASE_OFFSET ? UINT64_MAX - 127 : p->lie == LEASE_UNALIGNED ? 64 : 128;
    lease.lease = 1;
    lease.pages = pages;
    lease.n_pages = p->lie == LEASE_MORE ? 2 : 1;
    reply->body_case = KVCOBRA__REPLY__BODY_LEASE;
    reply->lease = &lease;
}

static size_t answer_extent(struct peer *p, Kvcobra__Reply *reply, int *fds)
{
    static Kvcobra__GetExtentReply get;
    struct extent *x = object(1 << 20, EXTENT_READ);
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION, .codec_id = PAGE_CODEC_HALF_TILES, .key = p->key, .n_heads = 1,
        .first_position = p->lie == LEASE_OTHER_POSITION ? 64 : 0, .n_tokens = 64, .flags = PAGE_FLAG_FIRST,
        .payload_bytes = p->page_bytes - 128,
    };

    memcpy(h.table_digest, p->digest, 32);
    memcpy(h.model_digest, random_table_model_digest, 32);
    if (p->lie != LEASE_DAMAGED)
        page_header_store(&h, (uint8_t *) extent_data(x) + 128);
    kvcobra__get_extent_reply__init(&get);
    get.bytes = extent_bytes(x);
    reply->body_case = KVCOBRA__REPLY__BODY_GET_EXTENT;
    reply->get_extent = &get;
    fds[0] = extent_fd(x);
    return 1;
}

static void answer(struct peer *p, const Kvcobra__Request *m)
{
    static uint8_t boot_id[BOOT_ID_BYTES] = { 7 };
    Kvcobra__Reply reply = KVCOBRA__REPLY__INIT;
    size_t n_fds = 0;
    int fds[4];
    ssize_t n;

    reply.id = m->id;
    reply.boot_id = (ProtobufCBinaryData) { BOOT_ID_BYTES, boot_id };
    if (m->body_case == KVCOBRA__REQUEST__BODY_HELLO)
        answer_hello(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_OPEN_MODEL)
        n_fds = answer_open(p, &reply, fds);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_FETCH_TABLE)
        n_fds = answer_fetch(p, &reply, fds);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_LEASE)
        answer_lease(p, &reply);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_GET_EXTENT)
        n_fds = answer_extent(p, &reply, fds);
    else if (m->body_case == KVCOBRA__REQUEST__BODY_CONFIRM)
        answer_confirm(p, &reply);
    n = wire_reply_pack(&reply, p->packet);
    assert(n > 0);
    (void) wire_send(p->fd, p->packet, (size_t) n, fds, n_fds);
}

static _Noreturn void serve(int listener, struct peer *p)
{
    p->fd = accept(listener, NULL, NULL);
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

/* ---- the library -------------------------------------------------------------------------------------------------- */

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    (void) closedir(d);
    return n;
}

static void check_match(const struct peer *p, kvc_client *c, kvc_model *model)
{
    int want = lies[p->lie].match, r;
    kvc_seq *s = NULL;
    size_t n = 7;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    r = kvc_seq_match(s, tokens, 65, &n);
    if (r != want)
        printf("    %s: match %d: %s\n", lies[p->lie].name, r, kvc_last_error(c));
    CU_ASSERT_EQUAL(r, want);
    CU_ASSERT_EQUAL(n, r < 0 ? 7 : 64);
    CU_ASSERT_EQUAL(kvc_seq_length(s), r < 0 ? 0 : 64);
    CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
    kvc_seq_free(s);
}

static void check_lie(const struct embedded *m, const char *path, int listener, struct peer *p)
{
    kvc_model_id id = embedded_id(m);
    unsigned before = open_fds();
    kvc_client *c = NULL;
    kvc_model *model = NULL;
    int r, status = 0;
    pid_t pid = fork();

    if (pid == 0)
        serve(listener, p);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    r = kvc_client_connect(c, path);
    if (r != lies[p->lie].connect)
        printf("    %s: connect %d: %s\n", lies[p->lie].name, r, kvc_last_error(c));
    CU_ASSERT_EQUAL(r, lies[p->lie].connect);
    if (r == 0) {
        r = kvc_model_open(c, &id, &model);
        if (r != lies[p->lie].open)
            printf("    %s: open %d: %s\n", lies[p->lie].name, r, kvc_last_error(c));
        CU_ASSERT_EQUAL(r, lies[p->lie].open);
        CU_ASSERT_EQUAL(r == 0, model != NULL);
        if (r == 0)
            check_match(p, c, model);
    }
    CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
    kvc_client_free(c);
    (void) kill(pid, SIGTERM);
    (void) waitpid(pid, &status, 0);
    CU_ASSERT_EQUAL(open_fds(), before);
}

static void test_lies(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    char dir[] = "/tmp/kvcobra-test-XXXXXX";
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    kvc_model_info info = { .struct_bytes = sizeof(info) };
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/s", dir);
    assert(bind(listener, (const struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(listener, 4) == 0);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &info), 0);
    for (unsigned lie = NO_LIE; lie < N_LIES; lie++) {
        struct peer *p = calloc(1, sizeof(*p));

        p->lie = lie;
        p->table = m.bytes;
        p->n_table = m.n_bytes;
        memcpy(p->digest, info.table_digest, sizeof(p->digest));
        p->page_bytes = info.first_page_bytes;
        chunk_key_derive(index_key, &(struct chunk_identity) { p->digest, random_table_model_digest, 0, 1, NULL, 0 },
                         NULL, tokens, &p->key);
        check_lie(&m, sa.sun_path, listener, p);
        free(p);
    }
    (void) close(listener);
    (void) unlink(sa.sun_path);
    (void) rmdir(dir);
    embedded_free(&m);
}

const struct test_case test_cases[] = { TEST(test_lies), TEST_END };
const char test_suite[] = "hostile_daemon";
