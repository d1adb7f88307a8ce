/*
 * A process that sends valid and invalid messages, and checks the daemon's promises: held pages stay
 * the same through restarts and the actions of other processes, generations only grow, and each answer
 * is a documented one.
 */
#include "tests/e2e/stress_client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/table/table.h"
#include "base/splitmix64.h"
#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { HELD_MAX = 24, MAPS_MAX = 64, FLOOD = 40, IMAGE_AT = 16384, EXPECTED_AT = STRESS_ARENA_USED };

struct held {
    uint64_t lease; /* 0: its session has ended, so it cannot be released */
    unsigned table, n;
    uint64_t slot, generation;
    const uint8_t *page;
};

struct map {
    uint64_t extent;
    uint8_t *data;
    size_t bytes;
};

static struct {
    uint64_t random, last_generation;
    struct raw_model m;
    bool connected;
    unsigned table; /* index in stress_tables of the table that m was opened with */
    struct held held[HELD_MAX];
    size_t n_held;
    struct map maps[MAPS_MAX];
    size_t n_maps;
    jmp_buf lost;
} c;

struct table *stress_tables[STRESS_TABLES];

uint64_t stress_key(unsigned t, unsigned n)
{
    return 1 + 1000 * (uint64_t) t + n;
}

uint64_t stress_below(uint64_t *state, uint64_t n)
{
    return splitmix64_next(state) % n;
}

static uint64_t below(uint64_t n)
{
    return stress_below(&c.random, n);
}

static _Noreturn void broken(const char *what)
{
    printf("    pid %ld: %s\n", (long) getpid(), what);
    (void) fflush(stdout);
    _exit(1);
}

/*
 * Errors that every valid request may get here: full pool, quota reached, draining, table swapped meanwhile.
 */
static bool is_refusal(int r)
{
    return r == -EDQUOT || r == -ENOSPC || r == -EAGAIN || r == -ESTALE || r == -ETIMEDOUT ||
           r == -ESHUTDOWN || r == -ENODATA || r == -ENOENT;
}

static void expect(const char *what, int r)
{
    char text[128];

    if (r == 0 || is_refusal(r))
        return;
    (void) snprintf(text, sizeof(text), "%s was answered with errno %d", what, -r);
    broken(text);
}

/* ---- held pages ---- */

static void check_page(const struct held *h)
{
    struct chunk_key key = raw_key(stress_key(h->table, h->n));
    static uint8_t *expected;
    static size_t bytes = 65536;
    /* raw_write_page() needs an arena; this one is private, since the client may have none now */
    struct raw_model scratch = c.m;
    struct page_layout l;

    if (!expected)
        expected = malloc(bytes);
    scratch.arena = expected;
    scratch.arena_bytes = bytes;
    memcpy(scratch.model_digest, random_table_model_digest, 32);
    raw_write_page(&scratch, stress_tables[h->table], &key, PAGE_REST, 0,
                   (unsigned) stress_key(h->table, h->n));
    if (page_layout_init(&l, stress_tables[h->table], (struct shard){0, raw_geometry.n_kv_heads}) != 0)
        broken("the page has no layout");
    if (memcmp(expected, h->page, l.page_bytes[PAGE_REST]) != 0)
        broken("a held page changed");
    ++*stress_n_compared;
    page_layout_deinit(&l);
}

static void check_some(void)
{
    if (c.n_held > 0)
        check_page(&c.held[below(c.n_held)]);
}

static const uint8_t *map_extent(uint64_t extent)
{
    size_t bytes;

    for (size_t i = 0; i < c.n_maps; i++)
        if (c.maps[i].extent == extent)
            return c.maps[i].data;
    if (c.n_maps == MAPS_MAX)
        return NULL;
    c.maps[c.n_maps] = (struct map){.extent = extent, .data = raw_map_extent(&c.m, extent, &bytes)};
    c.maps[c.n_maps].bytes = bytes;
    return c.maps[c.n_maps++].data;
}

static void hold(uint64_t lease, unsigned n, const struct raw_slot *s)
{
    const uint8_t *data = map_extent(s->extent);

    if (!data || c.n_held == HELD_MAX) {
        expect("release", raw_release(&c.m, lease));
        return;
    }
    c.held[c.n_held++] = (struct held){
        .lease = lease,
        .table = c.table,
        .n = n,
        .slot = s->slot,
        .generation = s->generation,
        .page = data + s->offset,
    };
    check_page(&c.held[c.n_held - 1]);
}

static void publish(void)
{
    unsigned n = (unsigned) below(STRESS_KEYS);
    uint64_t id = stress_key(c.table, n), lease = 0;
    struct chunk_key key = raw_key(id);
    struct raw_slot s = raw_reserve(&c.m, &key, PAGE_REST);
    int r;

    expect("reserve", s.err);
    if (s.err < 0)
        return;
    if (!s.exists) {
        if (s.generation <= c.last_generation)
            broken("a generation is not above all earlier ones");
        c.last_generation = s.generation;
    }
    if (below(8) == 0) { /* a damaged page, an offset outside the arena, or a missing page */
        raw_write_page(&c.m, stress_tables[c.table], &key, PAGE_REST, IMAGE_AT, (unsigned) id);
        c.m.arena[IMAGE_AT + below(2000)] ^= (uint8_t) (1 + below(255));
        r = raw_commit(&c.m, &s, &key, below(2) ? IMAGE_AT : (size_t) splitmix64_next(&c.random), &lease);
        if (r == 0) /* the page is another process's, or the first of its key: readers compare every byte */
            expect("release", raw_release(&c.m, lease));
        return;
    }
    if (below(8) == 0) {
        if (below(2))
            (void) raw_abort(&c.m, &s);
        return;
    }
    raw_write_page(&c.m, stress_tables[c.table], &key, PAGE_REST, 0, (unsigned) id);
    r = raw_commit(&c.m, &s, &key, 0, &lease);
    expect("commit", r);
    if (r == 0 && s.exists)
        hold(lease, n, &s);
    else if (r == 0 && below(4)) /* else another process published first, in another slot */
        expect("release", raw_release(&c.m, lease));
}

static void release_one(void)
{
    size_t i;
    struct held h;

    if (c.n_held == 0)
        return;
    i = below(c.n_held);
    h = c.held[i];
    if (h.lease == 0)
        return;
    check_page(&h);
    c.held[i] = c.held[--c.n_held];
    expect("release", raw_release(&c.m, h.lease));
}

/* Leases a held page once more, by a hint that may be wrong. */
static void lease_again(void)
{
    struct raw_slot s = {.slot = (uint32_t) below(4) << 14 | (uint32_t) below(20), .generation = below(5000)};
    struct chunk_key key = raw_key(stress_key(c.table, (unsigned) below(STRESS_KEYS)));
    size_t granted = 0;
    uint64_t lease = 0;
    int reason = 0, r;

    if (c.n_held > 0 && below(2)) {
        const struct held *h = &c.held[below(c.n_held)];

        if (h->table == c.table) {
            key = raw_key(stress_key(h->table, h->n));
            s = (struct raw_slot){.slot = (uint32_t) h->slot, .generation = h->generation};
        }
    }
    r = raw_lease(&c.m, &key, &s, 1, &granted, &lease, &reason);
    expect("lease", r);
    if (r == 0 && granted && below(3)) /* the other leases end with the process */
        expect("release", raw_release(&c.m, lease));
}

/* ---- misbehaviour ---- */

static _Noreturn void send_bytes(const uint8_t *bytes, size_t n, const int *fds, size_t n_fds)
{
    struct pollfd p = {.fd = c.m.fd, .events = POLLIN};
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet got;

    if (wire_send(c.m.fd, bytes, n, fds, n_fds) < 0)
        longjmp(c.lost, 1);
    while (poll(&p, 1, 20) == 1) { /* one answer, several, or a closed connection */
        if (wire_receive(c.m.fd, buf, &got) < 0)
            longjmp(c.lost, 1);
        wire_packet_close_fds(&got);
    }
    longjmp(c.lost, 1); /* an answer may be on its way */
}

static void garbage(void)
{
    uint8_t bytes[512];
    size_t n = 1 + below(sizeof(bytes) - 1);

    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t) splitmix64_next(&c.random);
    send_bytes(bytes, n, NULL, 0);
}

/* Removes the pages of the present session from the list of held pages, since their holds may end. */
static void forget_leases(void)
{
    size_t n = 0;

    for (size_t i = 0; i < c.n_held; i++) /* pages of an earlier session stay held */
        if (c.held[i].lease == 0)
            c.held[n++] = c.held[i];
    c.n_held = n;
}

static Kvcobra__Request any_request(void *room)
{
    uint64_t leases[HELD_MAX];

    for (size_t i = 0; i < c.n_held; i++)
        leases[i] = c.held[i].lease;
    return stress_request(&c.random, leases, c.n_held, room);
}

/* A valid message with some bytes changed. */
static void mutated(void)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX], room[4096];
    Kvcobra__Request m = any_request(room);
    ssize_t n;

    m.id = 1;
    n = wire_request_pack(&m, buf);
    if (n <= 0)
        return;
    for (uint64_t k = below(4); k > 0; k--)
        buf[below((uint64_t) n)] ^= (uint8_t) (1u << below(8));
    forget_leases(); /* the message may be a BYE */
    send_bytes(buf, (size_t) n, NULL, 0);
}

static void with_descriptors(void)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    int fds[WIRE_FDS_MAX];
    size_t n = 1 + below(WIRE_FDS_MAX);
    ssize_t bytes = wire_request_pack(&m, buf);
    struct wire_packet got;
    int r;

    for (size_t i = 0; i < n; i++)
        fds[i] = memfd_create("stress", MFD_CLOEXEC);
    r = wire_send(c.m.fd, buf, (size_t) bytes, fds, n);
    for (size_t i = 0; i < n; i++)
        (void) close(fds[i]);
    if (r == -EPERM) /* the kernel refuses descriptors for the daemon; the connection stays */
        return;
    if (r < 0 || wire_receive(c.m.fd, buf, &got) < 0)
        longjmp(c.lost, 1);
    wire_packet_close_fds(&got);
}

/* Sends requests and does not read, until one side closes the connection. */
static void flood(void)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX], room[4096];

    for (int i = 0; i < FLOOD; i++) {
        Kvcobra__Request m = any_request(room);
        ssize_t n;

        m.id = (uint64_t) i;
        n = wire_request_pack(&m, buf);
        if (n > 0 && send(c.m.fd, buf, (size_t) n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            break;
    }
    longjmp(c.lost, 1);
}

static void forked_child_speaks(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        static uint8_t buf[WIRE_PACKET_BYTES_MAX], room[4096];
        Kvcobra__Request m = any_request(room);
        ssize_t n = wire_request_pack(&m, buf);

        if (n > 0)
            (void) send(c.m.fd, buf, (size_t) n, MSG_DONTWAIT | MSG_NOSIGNAL);
        _exit(0);
    }
    if (pid > 0)
        (void) waitpid(pid, NULL, 0);
}

static void odd_request(void)
{
    static uint8_t room[4096];
    Kvcobra__Request m = any_request(room);
    struct wire_packet p;
    Kvcobra__Reply *reply = raw_request(c.m.fd, &m, NULL, 0, &p);

    wire_packet_close_fds(&p);
    wire_reply_free(reply);
}

/* ---- connecting and verifying ---- */

/* The connection has ended: held pages stay held, but no message can name their leases. */
static void leave(void)
{
    if (!c.connected)
        return;
    c.connected = false;
    for (size_t i = 0; i < c.n_held; i++)
        c.held[i].lease = 0;
    raw_close_model(&c.m);
}

static void say_bye(void)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_BYE, &bye);

    forget_leases();
    (void) raw_errno(c.m.fd, &m);
    leave();
}

static void come(void)
{
    int fd = raw_connect(raw_daemon.socket), r;

    c.m = (struct raw_model){.fd = fd};
    r = raw_hello(fd);
    if (r == 0)
        r = raw_confirm(fd);
    if (r == 0)
        r = raw_open_model(fd, &raw_geometry, random_table_model_digest, &c.m);
    expect("open_model", r);
    if (r < 0) {
        (void) close(fd);
        (void) poll(NULL, 0, 5); /* a pause, so that the next attempt may succeed */
        return;
    }
    for (c.table = 0; c.table < STRESS_TABLES; c.table++)
        if (memcmp(stress_tables[c.table]->digest, c.m.table_digest, 32) == 0)
            break;
    if (c.table == STRESS_TABLES)
        broken("the active table was never staged");
    c.connected = true;
}

static void act(void)
{
    static void (*const acts[])(void) = {
        publish,     publish,    publish,     publish,     publish,     publish,
        publish,     publish,    release_one, release_one, release_one, lease_again,
        lease_again, check_some, odd_request, odd_request, odd_request, odd_request,
    };
    static void (*const rare[])(void) = {
        garbage, mutated, mutated, with_descriptors, flood, forked_child_speaks, leave, say_bye,
    };

    if (!c.connected)
        come();
    else if (below(24) == 0)
        rare[below(sizeof(rare) / sizeof(rare[0]))]();
    else
        acts[below(sizeof(acts) / sizeof(acts[0]))]();
}

static void on_loss(void)
{
    longjmp(c.lost, 1);
}

uint64_t stress_verify(unsigned *ret_found)
{
    *ret_found = 0;
    c.last_generation = 0;
    come();
    if (!c.connected)
        broken("the only client is not served");
    for (unsigned n = 0; n < STRESS_KEYS; n++) {
        struct chunk_key key = raw_key(stress_key(c.table, n));
        struct raw_slot s = raw_reserve(&c.m, &key, PAGE_REST);
        uint64_t lease;

        if (s.err < 0)
            broken("the only client finds no room");
        if (s.exists) {
            if (raw_commit(&c.m, &s, &key, 0, &lease) != 0)
                broken("an existing page is not leased");
            hold(lease, n, &s);
            release_one();
            *ret_found += 1;
        } else {
            c.last_generation = s.generation;
            if (raw_abort(&c.m, &s) != 0)
                broken("a reservation cannot be aborted");
        }
    }
    for (size_t i = 0; i < c.n_maps; i++)
        (void) munmap(c.maps[i].data, c.maps[i].bytes);
    c.n_maps = 0;
    say_bye();
    return c.last_generation;
}

_Noreturn void stress_client(uint64_t seed)
{
    c.random = seed;
    raw_on_loss = on_loss;
    for (;;) {
        if (setjmp(c.lost) != 0) {
            for (size_t i = 0; i < c.n_held; i++)
                check_page(&c.held[i]);
            if (c.connected)
                leave();
            else
                (void) close(c.m.fd);
        }
        for (;;) {
            act();
            if (CU_get_number_of_failure_records() != 0)
                broken(CU_get_failure_list()->strCondition);
        }
    }
}
