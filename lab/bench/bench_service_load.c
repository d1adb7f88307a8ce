/*
 * Leases and commits under load, and the lookup of a prefix. See bench_service.h.
 *
 * Each client is a process. In one round it exchanges a packet with an echo process (one thread that polls,
 * like the daemon), leases a published page and commits a page of its own, so that all three run under the
 * same load. It also copies a page and computes its CRC, for comparison. Samples are in shared memory.
 */
#include "lab/bench/bench_service.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/index.h"
#include "lab/bench/bench_service_clients.h"
#include "tools/bench/bench_service_daemon.h"
#include "lab/bench/bench_service_link.h"
#include "tools/bench/bench_service_model.h"
#include "tools/command/clock.h"

enum { PACKET_BYTES = 128, CLIENTS_MAX = SERVICE_CLIENTS_MAX };

static const struct bench_shape shape = {.n_layers = 4, .n_kv_heads = 4, .d = 64, .n_bands = 8, .bits = 3};

enum { PING, LEASE, COMMIT, COPY, N_KINDS };

struct load {
    const struct service_options *options;
    const struct page_layout *layout;
    const char *socket;
    struct bench_clients clients;
    double *samples;                         /* [N_KINDS][clients * rounds], shared between the processes */
    int near[CLIENTS_MAX], far[CLIENTS_MAX]; /* both ends of the socket pairs */
};

/* ---- one client ---- */

struct service_load_client {
    struct load *load;
    unsigned number;
    int echo;
    struct link link;
    uint8_t *copy;
};

static int service_load_exchange(struct service_load_client *c, struct errmsg *e)
{
    char packet[PACKET_BYTES] = {0};

    if (send(c->echo, packet, sizeof(packet), 0) != sizeof(packet) ||
        recv(c->echo, packet, sizeof(packet), 0) <= 0)
        return fail(e, -EIO, "the echo process is gone");

    return 0;
}

/* Reserves and writes a page, times its commit, and times a copy of the page here. */
static int service_load_commit_one(struct service_load_client *c, uint64_t n, double *ret_commit,
                                   double *ret_copy, struct errmsg *e)
{
    const struct page_layout *layout = c->load->layout;
    struct chunk_key key = link_key(n);
    size_t bytes = layout->page_bytes[PAGE_REST];
    struct page_header header;
    struct link_page page;
    uint64_t lease;
    uint32_t crc;
    double began;
    int r = link_reserve(&c->link, &key, 1, PAGE_REST, &page, e);

    if (r < 0)
        return r;

    link_write_page(layout, &key, c->link.arena);
    began = clock_seconds();
    r = link_commit(&c->link, &key, &page, 1, bytes, &lease, e);
    *ret_commit = clock_seconds() - began;
    if (r < 0)
        return r;

    r = link_release(&c->link, lease, e);
    if (r < 0)
        return r;

    began = clock_seconds();
    memcpy(c->copy, c->link.arena, bytes);
    crc = crc32c(c->copy + PAGE_HEADER_BYTES, bytes - PAGE_HEADER_BYTES);
    *ret_copy = clock_seconds() - began;
    r = page_header_load(c->copy, &header, e);
    if (r < 0)
        return r;

    return header.payload_crc32c == crc ? 0 : fail(e, -EIO, "the copy of a page differs from the page");
}

static int service_load_rounds(struct service_load_client *c, const struct link_page *page,
                               const struct chunk_key *key, struct errmsg *e)
{
    unsigned n_rounds = c->load->options->n_rounds;
    size_t n = (size_t) c->load->options->n_clients * n_rounds;
    double *samples = c->load->samples + (size_t) c->number * n_rounds;
    int r;

    for (unsigned i = 0; i < n_rounds; i++) {
        uint64_t lease = 0;
        double began = clock_seconds();

        r = service_load_exchange(c, e);
        if (r < 0)
            return r;

        samples[PING * n + i] = clock_seconds() - began;
        began = clock_seconds();
        r = link_lease(&c->link, key, page, 1, &lease, e);
        if (r < 0)
            return r;

        samples[LEASE * n + i] = clock_seconds() - began;
        r = link_release(&c->link, lease, e);
        if (r < 0)
            return r;

        r = service_load_commit_one(c, (uint64_t) (c->number + 1) << 40 | i, &samples[COMMIT * n + i],
                                    &samples[COPY * n + i], e);
        if (r < 0)
            return r;
    }

    return 0;
}

static int service_load_client(struct service_load_client *c, struct errmsg *e)
{
    const struct load *load = c->load;
    struct geometry g = bench_geometry(&shape);
    uint64_t number = (uint64_t) 1 << 60 | c->number, lease;
    struct chunk_key key = link_key(number);
    struct link_page page;
    int r = link_open(load->socket, NULL, &c->link, e);

    if (r < 0)
        return r;

    r = link_open_model(&c->link, &g, bench_model_digest, e);
    if (r < 0)
        return r;

    r = link_publish(&c->link, load->layout, number, 1, &page, &lease, e);
    if (r < 0)
        return r;

    c->copy = malloc(load->layout->page_bytes[PAGE_REST]);
    if (!c->copy)
        return fail(e, -ENOMEM, "out of memory");

    return bench_clients_wait_go(&c->load->clients) ? service_load_rounds(c, &page, &key, e) : 0;
}

/* ---- the load ---- */

/* Returns each packet, on one thread, until all clients have exited. */
static void service_load_echo(const int *fds, unsigned n)
{
    struct pollfd p[CLIENTS_MAX];
    unsigned left = n;
    char packet[PACKET_BYTES];

    for (unsigned i = 0; i < n; i++)
        p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
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

/* Process 0 .. n - 1: a client. Process n: the echo, which ends when all other ends are closed. */
static int service_load_run_process(void *ctx, unsigned number, struct errmsg *e)
{
    struct load *load = ctx;
    unsigned n = load->options->n_clients;
    struct service_load_client c = {
        .load = load, .number = number, .echo = load->near[number % n], .link = {.fd = -1}};

    for (unsigned i = 0; i < n; i++) {
        if (i != number)
            (void) close(load->near[i]);
        if (number < n)
            (void) close(load->far[i]);
    }

    if (number < n)
        return service_load_client(&c, e);

    service_load_echo(load->far, n);
    return 0;
}

static int service_load_run_clients(struct load *load, struct errmsg *e)
{
    unsigned n = load->options->n_clients;
    int r = 0;

    for (unsigned i = 0; i < n; i++) {
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            return fail(e, -errno, "cannot connect the clients with the echo: %s", strerror(errno));

        load->near[i] = pair[0];
        load->far[i] = pair[1];
    }

    for (unsigned i = 0; r == 0 && i <= n; i++)
        r = bench_clients_add(&load->clients, service_load_run_process, load, e);
    for (unsigned i = 0; i < n; i++) {
        (void) close(load->near[i]);
        (void) close(load->far[i]);
    }

    if (r < 0)
        return r;

    bench_clients_go(&load->clients, n);
    return bench_clients_finish(&load->clients, e);
}

/* ---- the lookup ---- */

static unsigned service_load_look_up(const struct index_reader *reader, const struct chunk_key *keys)
{
    unsigned found = 0;
    struct index_hit hit;

    for (unsigned k = 0; k < SERVICE_LOOKUPS; k++)
        found += index_lookup(reader, &keys[k], &hit) == INDEX_FOUND;
    return found;
}

/*
 * Runs the lookup in a child that may only read, write and exit (seccomp's strict mode): any other system
 * call kills it. The clock is not read there: on some machines that is a system call.
 */
static int service_load_check_no_calls(const struct index_reader *reader, const struct chunk_key *keys,
                                       struct errmsg *e)
{
    pid_t pid = fork();
    int status = -1;

    if (pid == 0) {
        unsigned found =
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0 ? 0 : service_load_look_up(reader, keys);

        (void) syscall(SYS_exit, found == SERVICE_LOOKUPS ? 0 : 1); /* the mode does not allow exit_group */
    }

    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return fail(e, -errno, "cannot start the lookup: %s", strerror(errno));
    if (!WIFEXITED(status))
        return fail(e, -EIO, "the prefix lookup made a system call");

    return WEXITSTATUS(status) == 0 ? 0 : fail(e, -EIO, "the published prefix is not found completely");
}

static int service_load_measure_lookup(struct load *load, struct timing *ret, struct errmsg *e)
{
    _cleanup_(link_close) struct link before = {.fd = -1}, l = {.fd = -1};
    uint64_t first = (uint64_t) 1 << 61, lease;
    struct chunk_key keys[SERVICE_LOOKUPS];
    struct geometry g = bench_geometry(&shape);
    struct index_reader reader;
    struct link_page page;
    unsigned n = load->options->n_rounds;
    int r;

    r = link_open(load->socket, NULL, &before, e);
    if (r < 0)
        return r;

    r = link_open_model(&before, &g, bench_model_digest, e);
    if (r < 0)
        return r;

    for (uint64_t i = 0; i < SERVICE_LOOKUPS; i++) {
        keys[i] = link_key(first + i);
        r = link_publish(&before, load->layout, first + i, 1, &page, &lease, e);
        if (r < 0)
            return r;
    }

    /* a new link: publishing may have enlarged the index */
    r = link_open(load->socket, NULL, &l, e);
    if (r < 0)
        return r;

    r = link_open_model(&l, &g, bench_model_digest, e);
    if (r < 0)
        return r;

    r = index_reader_init(&reader, l.index, l.index_bytes, e);
    if (r < 0)
        return r;

    r = service_load_check_no_calls(&reader, keys, e);
    if (r < 0)
        return r;

    for (unsigned i = 0; i < n; i++) {
        double began = clock_seconds();

        if (service_load_look_up(&reader, keys) != SERVICE_LOOKUPS)
            return fail(e, -EIO, "a published chunk is not found");

        load->samples[i] = (clock_seconds() - began) / SERVICE_LOOKUPS;
    }

    *ret = timing_of(load->samples, n);
    return 0;
}

/* ---- scenario ---- */

static int service_load_measure(struct load *load, struct load_metrics *ret, struct errmsg *e)
{
    size_t n = (size_t) load->options->n_clients * load->options->n_rounds,
           bytes = N_KINDS * n * sizeof(double);
    int r;

    load->samples = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (load->samples == MAP_FAILED)
        return fail(e, -ENOMEM, "out of memory for %zu samples", n);

    r = service_load_run_clients(load, e);
    if (r == 0) {
        ret->ping = timing_of(load->samples + PING * n, n);
        ret->lease = timing_of(load->samples + LEASE * n, n);
        ret->commit = timing_of(load->samples + COMMIT * n, n);
        ret->copy = timing_of(load->samples + COPY * n, n);
        ret->page_bytes = load->layout->page_bytes[PAGE_REST];
        ret->n_samples = n;
        r = service_load_measure_lookup(load, &ret->lookup, e);
    }

    (void) munmap(load->samples, bytes);
    return r;
}

static void service_load_deinit(struct load *load)
{
    bench_clients_deinit(&load->clients);
}

int service_load(const struct service_options *o, struct load_metrics *ret, struct errmsg *e)
{
    static const char *const options[] = {"--pool-bytes=1G", "--quota-bytes=2G", "--arena-bytes=8M", NULL};
    _cleanup_(bench_daemon_deinit) struct bench_daemon daemon = BENCH_DAEMON_INIT;
    _cleanup_(bench_model_deinit) struct bench_model m = {.table = NULL};
    _cleanup_(service_load_deinit) struct load load = {
        .options = o, .layout = &m.layout, .socket = daemon.socket};
    int r;

    r = bench_model_init(&m, &shape, 1, e);
    if (r < 0)
        return r;

    r = bench_daemon_init(&daemon, o->daemon, options, e);
    if (r < 0)
        return r;

    r = link_stage_and_activate(daemon.operator_socket, m.table->bytes, m.table->n_bytes, e);
    if (r < 0)
        return r;

    r = bench_clients_init(&load.clients, e);
    if (r < 0)
        return r;

    return service_load_measure(&load, ret, e);
}
