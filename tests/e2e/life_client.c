/* See life_client.h. */
#include "tests/e2e/life_client.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

struct table *life_tables[LIFE_TABLES];
struct life_state *life_state;

static struct {
    struct raw_model m;
    uint8_t token[SESSION_TOKEN_BYTES];
    struct raw_slot slots[LIFE_HELD];
    uint64_t leases[LIFE_HELD];
    const uint8_t *pages[LIFE_HELD];
    uint32_t table; /* of the held pages */
    jmp_buf lost;
    time_t began_s;
} client;

enum { HELD_KEY = 1000 }; /* the first key of the held pages */

static _Noreturn void life_broken(const char *what, unsigned n)
{
    printf("    life: %s %u\n", what, n);
    (void) fflush(stdout);
    _exit(LIFE_BROKEN);
}

static time_t life_now_s(void)
{
    struct timespec now;

    (void) clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* A receive that ended by its timeout is a request without an answer. */
static void life_on_loss(void)
{
    if (life_now_s() - client.began_s >= WAIT_LIMIT_S - 1)
        life_broken("a request was not answered, seconds:", WAIT_LIMIT_S);
    longjmp(client.lost, 1);
}

/* ---- messages ---- */

static int life_hello(int fd, bool resume, bool *ret_resumed)
{
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
    Kvcobra__Reply *reply;
    int r;

    client.began_s = life_now_s();
    raw_on_loss = life_on_loss;
    hello.version_min = PROTO_VERSION_MIN;
    hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "life";
    if (resume)
        hello.session_token = (ProtobufCBinaryData){SESSION_TOKEN_BYTES, client.token};
    reply = raw_request(fd, &m, NULL, 0, NULL);
    r = reply->err;
    if (r == 0) {
        memcpy(client.token, reply->hello->session_token.data, SESSION_TOKEN_BYTES);
        *ret_resumed = reply->hello->resumed;
    }
    wire_reply_free(reply);
    return r == 0 ? raw_confirm(fd) : r;
}

/* Every errno is documented, and raw_request() checked its sentence. */
static int life_open(bool resume, bool *ret_resumed)
{
    int fd = raw_connect(raw_daemon.socket), r = life_hello(fd, resume, ret_resumed);

    if (r < 0)
        return r;
    r = raw_open_model(fd, &raw_geometry, random_table_model_digest, &client.m);
    if (r == 0 && memcmp(client.m.table_digest, life_tables[life_state->active]->digest, 32) != 0)
        life_broken("the activated table is not active:", life_state->active);
    raw_table = life_tables[life_state->active];
    return r;
}

static int life_say_bye(void)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_BYE, &bye);

    return raw_errno(client.m.fd, &m);
}

static int life_stage(int fd, const struct table *t)
{
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage);
    int memory = memfd_create("life-table", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;
    Kvcobra__Reply *reply;

    assert(memory >= 0 && write(memory, t->bytes, t->n_bytes) == (ssize_t) t->n_bytes);
    assert(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
    stage.bytes = t->n_bytes;
    reply = raw_request(fd, &m, &memory, 1, NULL);
    r = reply->err;
    wire_reply_free(reply);
    return r;
}

int life_activate(uint32_t table)
{
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate);
    bool resumed;
    int fd, r;

    if (setjmp(client.lost))
        return -ECONNRESET;
    fd = raw_connect(raw_daemon.operator_socket);
    r = life_hello(fd, false, &resumed);
    if (r == 0)
        r = life_stage(fd, life_tables[table]);
    activate.digest = (ProtobufCBinaryData){32, life_tables[table]->digest};
    return r == 0 ? raw_errno(fd, &m) : r;
}

int life_read_status(void)
{
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_GET_STATUS, &get);
    Kvcobra__Reply *reply;
    bool resumed;
    int fd, r;

    if (setjmp(client.lost))
        return -ECONNRESET;
    fd = raw_connect(raw_daemon.operator_socket);
    r = life_hello(fd, false, &resumed);
    if (r < 0)
        return r;
    reply = raw_request(fd, &m, NULL, 0, NULL);
    r = reply->err;
    if (r == 0) {
        life_state->held_pages = reply->status->held_pages;
        life_state->sessions = reply->status->sessions;
    }
    wire_reply_free(reply);
    return r;
}

/* ---- pages ---- */

static uint64_t life_key(unsigned n)
{
    return 10000 * (uint64_t) life_state->active + n + 1;
}

static int life_map(const struct raw_slot *s, const uint8_t **ret)
{
    size_t bytes;
    uint8_t *data;
    int fd, r = raw_get_extent(&client.m, s->extent, &fd, &bytes);

    if (r < 0)
        return r;
    data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert(data != MAP_FAILED && s->offset + s->bytes <= bytes);
    (void) close(fd);
    *ret = data + s->offset;
    return 0;
}

/* @t: the active table, or an earlier one of a held page. */
static void life_compare(const struct table *t, uint64_t key_number, const uint8_t *page, size_t bytes,
                         unsigned n)
{
    struct chunk_key key = raw_key(key_number);
    struct raw_model scratch = client.m;

    scratch.arena_bytes = 65536;
    scratch.arena = calloc(1, scratch.arena_bytes);
    assert(scratch.arena && bytes <= scratch.arena_bytes);
    memcpy(scratch.model_digest, random_table_model_digest, 32);
    raw_write_page(&scratch, t, &key, PAGE_REST, 0, (unsigned) key_number);
    if (memcmp(scratch.arena, page, bytes) != 0)
        life_broken("a committed page has other bytes, number", n);
    free(scratch.arena);
}

/* The page must exist: its COMMIT was answered. */
static int life_find(unsigned n)
{
    uint64_t lease, number = life_key(n);
    struct chunk_key key = raw_key(number);
    struct raw_slot s = raw_reserve(&client.m, &key, PAGE_REST);
    const uint8_t *page = NULL;
    int r = s.err;

    if (r < 0)
        return r;
    if (!s.exists)
        life_broken("a committed page is lost, number", n);
    r = raw_commit(&client.m, &s, &key, 0, &lease);
    if (r == 0)
        r = life_map(&s, &page);
    if (r < 0)
        return r;
    life_compare(life_tables[life_state->active], number, page, s.bytes, n);
    return raw_release(&client.m, lease);
}

int life_visit(unsigned first, unsigned n)
{
    bool resumed;
    int r;

    if (setjmp(client.lost))
        return -ECONNRESET;
    r = life_open(false, &resumed);
    for (unsigned i = 0; r == 0 && i < LIFE_KEYS; i++)
        if (life_state->committed[life_state->active][i])
            r = life_find(i);
    for (unsigned i = first; r == 0 && i < first + n; i++) {
        struct raw_slot s;
        uint64_t lease;

        r = raw_publish(&client.m, life_key(i), &s, &lease);
        if (r == 0) {
            life_state->committed[life_state->active][i] = true;
            r = raw_release(&client.m, lease);
        }
    }
    return r == 0 ? life_say_bye() : r;
}

/* ---- the holder ---- */

int life_hold(void)
{
    bool resumed;
    int r;

    if (setjmp(client.lost))
        return -ECONNRESET;
    r = life_open(false, &resumed);
    client.table = life_state->active;
    for (unsigned i = 0; r == 0 && i < LIFE_HELD; i++) {
        r = raw_publish(&client.m, HELD_KEY + i, &client.slots[i], &client.leases[i]);
        if (r == 0)
            r = life_map(&client.slots[i], &client.pages[i]);
    }
    return r;
}

void life_check_held(void)
{
    for (unsigned i = 0; i < LIFE_HELD; i++)
        life_compare(life_tables[client.table], HELD_KEY + i, client.pages[i], client.slots[i].bytes,
                     HELD_KEY + i);
}

int life_resume(bool *ret_resumed)
{
    static unsigned tries;
    uint8_t token[SESSION_TOKEN_BYTES];
    int r;

    tries++;
    memcpy(token, client.token, sizeof(token));
    if (setjmp(client.lost)) {
        memcpy(client.token, token, sizeof(token));
        return -ECONNRESET;
    }
    r = life_open(true, ret_resumed);
    if (r == 0 && *ret_resumed) {
        r = raw_keep(&client.m, client.leases, LIFE_HELD);
        if (r == 0)
            r = raw_release(&client.m, client.leases[0]);
        if (r == -ESTALE && (tries > 1 || daemon_logged(&raw_daemon, "event=holds-orphaned")))
            r = 0; /* the reply of the first try was lost, or the lease was not restored */
    }
    if (r < 0)
        memcpy(client.token, token, sizeof(token));
    return r;
}
