/*
 * Load on a daemon, and what it costs: see bench_service.h.
 *
 * Each client is a process. In one round it exchanges a packet with an echo process (one thread that polls, as the daemon
 * does), leases a published page and commits a page of its own, so that all three meet the same load; beside them it copies
 * a page and computes its CRC. Samples lie in memory that the processes share.
 */
#include "tools/bench_service.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/quant.h"
#include "alloc/table_build.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/clock.h"

enum { LAYERS = 4, KV_HEADS = 4, DIM = 64, BANDS = DIM / 8, BITS = 3, PACKET_BYTES = 128, CLIENTS_MAX = 64 };

static const uint8_t model_digest[DIGEST_BYTES] = "the model of the service's bench";

enum { PING, LEASE, COMMIT, COPY, N_KINDS };

struct shared { /* between the processes of a measurement */
    _Atomic unsigned n_ready;
    _Atomic unsigned go;
    struct errmsg error; /* of whoever failed first */
    _Atomic unsigned failed;
    double samples[];    /* [N_KINDS][clients * rounds] */
};

/* ---- a table that needs no model --------------------------------------------------------------------------------- */

static struct geometry geometry(void)
{
    struct geometry g = { .n_layers = LAYERS, .n_heads = KV_HEADS, .n_kv_heads = KV_HEADS, .d = DIM, .n_rot = DIM,
                          .attn_scale = 1 / sqrt(DIM) };

    for (unsigned i = 0; i < DIM / 2; i++)
        g.freq[i] = pow(10000, -2.0 * i / DIM);
    return g;
}

/* Coordinates are the dimensions themselves, 3 bits each: what is timed does not depend on values. */
static int make_table(struct table **ret, struct errmsg *e)
{
    static struct levels levels[2][TABLE_BITS_MAX + 1];
    static double mean[DIM], enc[BANDS][8 * DIM], dec[BANDS][DIM * 8];
    struct band_spec bands[BANDS];
    struct codec_spec codecs[2 * LAYERS * KV_HEADS];
    struct geometry g = geometry();
    _cleanup_(freep) void *bytes = NULL;
    size_t n_bytes;
    int r = 0;

    for (unsigned i = 0; i < BANDS; i++) {
        for (unsigned c = 0; c < 8; c++)
            enc[i][c * DIM + i * 8 + c] = dec[i][(i * 8 + c) * 8 + c] = 1;
        bands[i] = (struct band_spec) { .bits = BITS, .n_coords = 8, .enc = enc[i], .dec = dec[i] };
    }
    for (unsigned i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
        codecs[i] = (struct codec_spec) { .mean = mean, .n_bands = BANDS, .bands = bands };
    for (unsigned i = 0; r == 0 && i < 2 * TABLE_BITS_MAX; i++)
        r = levels_normal(QUANT_LLOYD_MAX, i % TABLE_BITS_MAX + 1, &levels[i / TABLE_BITS_MAX][i % TABLE_BITS_MAX + 1]);
    if (r == 0)
        r = table_build(&(struct table_spec) { .geometry = &g, .model_digest = model_digest, .n_sink = 4,
                                               .levels = (const struct levels (*)[TABLE_BITS_MAX + 1]) levels,
                                               .codecs = codecs, .provenance = "{\"made_by\": \"bench service\"}" },
                        &bytes, &n_bytes, e);
    return r < 0 ? r : table_parse(bytes, n_bytes, ret, e);
}

static struct chunk_key key_of(uint64_t n)
{
    struct chunk_key k;

    n = (n + 1) * 0x9e3779b97f4a7c15u; /* real keys are uniform; buckets are chosen by the first bytes */
    memcpy(k.bytes, &n, sizeof(n));
    n = ~n;
    memcpy(k.bytes + 8, &n, sizeof(n));
    return k;
}

/* ---- one client -------------------------------------------------------------------------------------------------- */

struct client {
    const struct service_options *o;
    const struct page_layout *layout;
    struct shared *shared;
    unsigned number;
    int echo;
    struct link link;
    uint8_t *copy;
};

static int exchange(struct client *c, struct errmsg *e)
{
    char packet[PACKET_BYTES] = { 0 };

    if (send(c->echo, packet, sizeof(packet), 0) != sizeof(packet) || recv(c->echo, packet, sizeof(packet), 0) <= 0)
        return fail(e, -EIO, "the echo process is gone");
    return 0;
}

/* A page of this client's own: reserved and written untimed, committed timed, and copied here beside that. */
static int commit_one(struct client *c, uint64_t n, double *ret_commit, double *ret_copy, struct errmsg *e)
{
    struct chunk_key key = key_of(n);
    size_t bytes = c->layout->page_bytes[PAGE_REST];
    struct page_header header;
    struct link_page page;
    uint32_t crc;
    double began;
    int r = link_reserve(&c->link, &key, PAGE_REST, &page, e);

    if (r < 0)
        return r;
    link_write_page(&c->link, c->layout, &key);
    began = clock_seconds();
    r = link_commit(&c->link, &key, 0, &page, e);
    *ret_commit = clock_seconds() - began;
    if (r == 0)
        r = link_release(&c->link, page.lease, e);
    began = clock_seconds();
    memcpy(c->copy, c->link.arena, bytes);
    crc = crc32c(c->copy + PAGE_HEADER_BYTES, bytes - PAGE_HEADER_BYTES);
    *ret_copy = clock_seconds() - began;
    if (r == 0)
        r = page_header_load(c->copy, &header, e);
    return r == 0 && header.payload_crc32c != crc ? fail(e, -EIO, "the copy of a page is not the page") : r;
}

static int rounds(struct client *c, const struct link_page *page, const struct chunk_key *key, struct errmsg *e)
{
    size_t n = (size_t) c->o->n_clients * c->o->n_rounds;
    double *samples = c->shared->samples + (size_t) c->number * c->o->n_rounds;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < c->o->n_rounds; i++) {
        uint64_t lease = 0;
        double began = clock_seconds();

        r = exchange(c, e);
        samples[PING * n + i] = clock_seconds() - began;
        began = clock_seconds();
        if (r == 0)
            r = link_lease(&c->link, key, page, &lease, e);
        samples[LEASE * n + i] = clock_seconds() - began;
        if (r == 0)
            r = link_release(&c->link, lease, e);
        if (r == 0)
            r = commit_one(c, (uint64_t) (c->number + 1) << 40 | i, &samples[COMMIT * n + i], &samples[COPY * n + i], e);
    }
    return r;
}

static int client(struct client *c, struct errmsg *e)
{
    struct geometry g = geometry();
    struct chunk_key key = key_of((uint64_t) 1 << 60 | c->number);
    struct link_page page;
    int r = link_open(c->o->socket, &c->link, e);

    if (r == 0)
        r = link_open_model(&c->link, &g, model_digest, e);
    if (r == 0)
        r = link_reserve(&c->link, &key, PAGE_REST, &page, e);
    if (r < 0)
        return r;
    c->copy = malloc(c->layout->page_bytes[PAGE_REST]);
    if (!c->copy)
        return fail(e, -ENOMEM, "out of memory");
    link_write_page(&c->link, c->layout, &key);
    r = link_commit(&c->link, &key, 0, &page, e);
    c->shared->n_ready++;
    while (r == 0 && !c->shared->go && !c->shared->failed) /* all begin together */
        (void) poll(NULL, 0, 1);
    return r < 0 ? r : rounds(c, &page, &key, e);
}

/* ---- the load ---------------------------------------------------------------------------------------------------- */

/* Answers each packet with itself, on one thread, until every client is gone. */
static void echo(const int *fds, unsigned n)
{
    struct pollfd p[CLIENTS_MAX];
    unsigned left = n;
    char packet[PACKET_BYTES];

    for (unsigned i = 0; i < n; i++)
        p[i] = (struct pollfd) { .fd = fds[i], .events = POLLIN };
    while (left > 0 && poll(p, n, -1) > 0)
        for (unsigned i = 0; i < n; i++) {
            ssize_t bytes;

            if (!p[i].revents)
                continue;
            bytes = recv(p[i].fd, packet, sizeof(packet), 0);
            if (bytes <= 0 || send(p[i].fd, packet, (size_t) bytes, MSG_NOSIGNAL) < 0) {
                p[i].fd = -1;
                left--;
            }
        }
}

static void report_failure(struct shared *s, const struct errmsg *e)
{
    if (atomic_fetch_add(&s->failed, 1) == 0)
        s->error = *e;
}

/* The processes of a load: children 0 .. n - 1 are clients, child n the echo. Return: their number that was started. */
static unsigned start(const struct service_options *o, const struct page_layout *l, struct shared *s, pid_t *pids)
{
    int near[CLIENTS_MAX], far[CLIENTS_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < o->n_clients; i++) {
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            return 0;
        near[i] = pair[0];
        far[i] = pair[1];
    }
    for (; n <= o->n_clients; n++) {
        pids[n] = fork();
        if (pids[n] < 0)
            break;
        if (pids[n] > 0)
            continue;
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (unsigned i = 0; i < o->n_clients; i++) { /* an end that is left open would keep the echo waiting */
            if (i != n)
                (void) close(near[i]);
            if (n < o->n_clients)
                (void) close(far[i]);
        }
        if (n == o->n_clients) {
            echo(far, n);
        } else {
            struct client c = { .o = o, .layout = l, .shared = s, .number = n, .echo = near[n], .link = { .fd = -1 } };
            struct errmsg e = { "" };

            if (client(&c, &e) < 0)
                report_failure(s, &e);
        }
        _exit(0);
    }
    for (unsigned i = 0; i < o->n_clients; i++) {
        (void) close(near[i]);
        (void) close(far[i]);
    }
    return n;
}

static int run_load(const struct service_options *o, const struct page_layout *l, struct shared *s, struct errmsg *e)
{
    pid_t pids[CLIENTS_MAX + 1];
    unsigned n = start(o, l, s, pids);

    if (n <= o->n_clients)
        report_failure(s, &(struct errmsg) { "cannot start the clients" });
    while (s->n_ready < o->n_clients && !s->failed)
        (void) poll(NULL, 0, 1);
    s->go = 1;
    for (unsigned i = 0; i < n; i++) {
        int status;

        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            report_failure(s, &(struct errmsg) { "a client of the bench died" });
    }
    return s->failed ? fail(e, -EIO, "%s", s->error.text) : 0;
}

/* ---- the lookup -------------------------------------------------------------------------------------------------- */

static unsigned look_up(const struct index_reader *reader, const struct chunk_key *keys)
{
    unsigned found = 0;
    struct index_hit hit;

    for (unsigned k = 0; k < SERVICE_LOOKUPS; k++)
        found += index_lookup(reader, &keys[k], &hit) == INDEX_FOUND;
    return found;
}

/*
 * In a child that may do nothing but read, write and exit (seccomp's strict mode): a lookup that made a system call would be
 * killed. The clock is not read there: on some machines that is a system call.
 */
static int prove_no_calls(const struct index_reader *reader, const struct chunk_key *keys, struct errmsg *e)
{
    pid_t pid = fork();
    int status = -1;

    if (pid == 0) {
        unsigned found = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0 ? 0 : look_up(reader, keys);

        (void) syscall(SYS_exit, found == SERVICE_LOOKUPS ? 0 : 1); /* exit_group is not allowed any more */
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return fail(e, -errno, "cannot start the lookup: %s", strerror(errno));
    if (!WIFEXITED(status))
        return fail(e, -EIO, "the prefix lookup made a system call");
    return WEXITSTATUS(status) == 0 ? 0 : fail(e, -EIO, "the prefix that was published is not found whole");
}

static int publish_prefix(struct link *l, const struct page_layout *layout, struct chunk_key *keys, struct errmsg *e)
{
    int r = 0;

    for (uint64_t i = 0; r == 0 && i < SERVICE_LOOKUPS; i++) {
        struct link_page page;

        keys[i] = key_of((uint64_t) 1 << 61 | i);
        r = link_reserve(l, &keys[i], PAGE_REST, &page, e);
        if (r < 0)
            return r;
        link_write_page(l, layout, &keys[i]);
        r = link_commit(l, &keys[i], 0, &page, e);
    }
    return r;
}

static int measure_lookup(const struct service_options *o, const struct page_layout *layout, struct shared *s,
                          struct timing *ret, struct errmsg *e)
{
    _cleanup_(link_close) struct link before = { .fd = -1 }, l = { .fd = -1 };
    struct chunk_key keys[SERVICE_LOOKUPS];
    struct geometry g = geometry();
    struct index_reader reader;
    unsigned n = o->n_rounds;
    int r = link_open(o->socket, &before, e);

    if (r == 0)
        r = link_open_model(&before, &g, model_digest, e);
    if (r == 0)
        r = publish_prefix(&before, layout, keys, e);
    if (r == 0)
        r = link_open(o->socket, &l, e);
    if (r == 0)
        r = link_open_model(&l, &g, model_digest, e); /* publishing may have built a larger index */
    if (r == 0)
        r = index_reader_init(&reader, l.index, l.index_bytes, e);
    if (r < 0)
        return r;
    r = prove_no_calls(&reader, keys, e);
    for (unsigned i = 0; r == 0 && i < n; i++) {
        double began = clock_seconds();

        if (look_up(&reader, keys) != SERVICE_LOOKUPS)
            r = fail(e, -EIO, "a chunk that was published is not found");
        s->samples[i] = (clock_seconds() - began) / SERVICE_LOOKUPS;
    }
    if (r < 0)
        return r;
    *ret = timing_of(s->samples, n);
    return 0;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static int measure(const struct service_options *o, const struct page_layout *l, struct service_figures *ret,
                   struct errmsg *e)
{
    size_t n = (size_t) o->n_clients * o->n_rounds, bytes = sizeof(struct shared) + N_KINDS * n * sizeof(double);
    struct shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int r;

    if (s == MAP_FAILED)
        return fail(e, -ENOMEM, "out of memory for %zu samples", n);
    r = run_load(o, l, s, e);
    if (r == 0) {
        ret->ping = timing_of(s->samples + PING * n, n);
        ret->lease = timing_of(s->samples + LEASE * n, n);
        ret->commit = timing_of(s->samples + COMMIT * n, n);
        ret->copy = timing_of(s->samples + COPY * n, n);
        ret->page_bytes = l->page_bytes[PAGE_REST];
        ret->n_samples = (unsigned) n;
        r = measure_lookup(o, l, s, &ret->lookup, e);
    }
    (void) munmap(s, bytes);
    return r;
}

int service_measure(const struct service_options *o, struct service_figures *ret, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct page_layout layout;
    int r = make_table(&t, e);

    if (r == 0)
        r = page_layout_init(&layout, t, (struct shard) { 0, KV_HEADS });
    if (r < 0)
        return r;
    r = link_stage_and_activate(o->operator_socket, t->bytes, t->n_bytes, e);
    if (r == 0)
        r = measure(o, &layout, ret, e);
    page_layout_deinit(&layout);
    return r;
}
