/*
 * Memory of a daemon beside its pages: a pool full of the smallest pages, many clients, ten leases of each.
 *
 * Clients are connections of this process, each with its own session. They publish in turn, 512 pages per
 * message, until the pool is full; each keeps ten leases of one page each, of its last pages. Then they
 * publish again over the full pool: every page evicts another and every lease is replaced, and the memory
 * must not grow.
 */
#include "lab/bench/bench_service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/bench/bench_service_daemon.h"
#include "lab/bench/bench_service_link.h"
#include "tools/bench/bench_service_model.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_pages.h"
#include "tools/command/clock.h"

enum { LEASES_EACH = 10, FDS_BESIDE = 64 };

/* Two half-tiles of one bit: header and payload are 256 bytes, the smallest page that has keys and values. */
static const struct bench_shape shape = {.n_layers = 1, .n_kv_heads = 1, .d = 32, .n_bands = 1, .bits = 1};

struct service_memory_size {
    unsigned n_clients;
    uint64_t pool_bytes, extent_bytes; /* pages of 256 bytes fill it */
};

static const struct service_memory_size whole = {1000, UINT64_C(256) << 20, UINT64_C(64) << 20};
static const struct service_memory_size quick = {20, UINT64_C(8) << 20, UINT64_C(2) << 20};

struct service_memory_client {
    struct link link;
    uint64_t leases[LEASES_EACH];
    unsigned n_leases;
};

struct service_memory_bench {
    const struct service_memory_size *size;
    const struct bench_model *model;
    struct bench_daemon *daemon;
    struct service_memory_client *clients;
    uint64_t next;       /* key to publish */
    uint64_t n_messages; /* that fill the pool */
};

/* ---- memory of the daemon ---- */

/* Whether a line of smaps is memory of pages or arenas, by the names of the daemon's memfds. */
static bool service_memory_is_shared(const char *line)
{
    return strstr(line, "kvcobra-pages") || strstr(line, "kvcobra-arena");
}

/* Resident memory without pages and arenas, from the kernel. */
static int service_memory_resident_bytes(pid_t pid, uint64_t *ret, struct errmsg *e)
{
    _cleanup_(fclosep) FILE *f = NULL;
    char path[64], line[512];
    uint64_t sum = 0, kib;
    bool counts = false;
    unsigned long from, to;

    (void) snprintf(path, sizeof(path), "/proc/%ld/smaps", (long) pid);
    f = fopen(path, "re");
    if (!f)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));

    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            counts = !service_memory_is_shared(line);
        else if (counts && sscanf(line, "Rss: %" SCNu64 " kB", &kib) == 1)
            sum += kib * 1024;
    }

    *ret = sum;
    return 0;
}

static int service_memory_read_state(const struct service_memory_bench *b, struct memory_state *ret,
                                     struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *control = NULL;
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    int r = client_open(b->daemon->operator_socket, &control, e);

    if (r < 0)
        return r;

    r = operator_get_status(control, &s, e);
    if (r < 0)
        return r;

    *ret = (struct memory_state){
        .n_sessions = s->sessions,
        .n_leases = s->leases,
        .n_evicted = s->evictions,
        .slot_records = s->slot_record_bytes,
        .index = s->index_bytes,
        .holds = s->hold_bytes,
        .heap = s->heap_bytes,
    };
    for (size_t i = 0; i < s->n_spaces; i++)
        ret->n_pages += s->spaces[i]->pages;
    r = service_memory_resident_bytes((pid_t) s->pid, &ret->resident, e);
    if (r == 0 && (ret->n_sessions < b->size->n_clients ||
                   ret->n_leases != (uint64_t) b->size->n_clients * LEASES_EACH))
        return fail(e, -EIO, "the daemon counts %" PRIu64 " sessions and %" PRIu64 " leases", ret->n_sessions,
                    ret->n_leases);

    return r;
}

/* ---- clients ---- */

static int service_memory_release_leases(struct service_memory_client *c, struct errmsg *e)
{
    int r = 0;

    while (r == 0 && c->n_leases > 0)
        r = link_release(&c->link, c->leases[--c->n_leases], e);
    return r;
}

/* Publishes one message of pages. @keep: replaces the client's leases by leases of ten of them. */
static int service_memory_publish(struct service_memory_bench *b, struct service_memory_client *c, bool keep,
                                  struct errmsg *e)
{
    struct link_page pages[LINK_ITEMS_MAX];
    uint64_t lease, first = b->next;
    int r = link_publish(&c->link, &b->model->layout, first, LINK_ITEMS_MAX, pages, &lease, e);

    b->next += LINK_ITEMS_MAX;
    if (r == 0 && keep)
        r = service_memory_release_leases(c, e);
    while (r == 0 && keep && c->n_leases < LEASES_EACH) {
        struct chunk_key key = link_key(first + c->n_leases);

        r = link_lease(&c->link, &key, &pages[c->n_leases], 1, &c->leases[c->n_leases], e);
        c->n_leases += r == 0;
    }

    return r < 0 ? r : link_release(&c->link, lease, e);
}

/* Messages of all clients in turn; leases remain from the last message of each. */
static int service_memory_publish_all(struct service_memory_bench *b, uint64_t n_messages, struct errmsg *e)
{
    int r = 0;

    for (uint64_t i = 0; r == 0 && i < n_messages; i++)
        r = service_memory_publish(b, &b->clients[i % b->size->n_clients],
                                   n_messages - i <= b->size->n_clients, e);
    return r;
}

static int service_memory_connect_all(struct service_memory_bench *b, struct errmsg *e)
{
    struct geometry g = bench_geometry(&shape);
    int r;

    for (unsigned i = 0; i < b->size->n_clients; i++) {
        r = link_open(b->daemon->socket, NULL, &b->clients[i].link, e);
        if (r < 0)
            return r;

        r = link_open_model(&b->clients[i].link, &g, bench_model_digest, e);
        if (r < 0)
            return r;
    }

    return 0;
}

static int service_memory_measure(struct service_memory_bench *b, struct memory_metrics *ret,
                                  struct errmsg *e)
{
    double began = clock_seconds();
    uint64_t n = b->size->n_clients > b->n_messages / 10 ? b->size->n_clients : b->n_messages / 10;
    int r;

    r = service_memory_connect_all(b, e);
    if (r < 0)
        return r;

    r = service_memory_publish_all(b, b->n_messages, e);
    if (r < 0)
        return r;

    ret->seconds = clock_seconds() - began;
    r = service_memory_read_state(b, &ret->filled, e);
    if (r < 0)
        return r;

    r = service_memory_publish_all(b, n, e);
    if (r < 0)
        return r;

    r = service_memory_read_state(b, &ret->churned, e);
    if (r < 0)
        return r;

    ret->n_churned = n * LINK_ITEMS_MAX;
    ret->page_bytes = b->model->layout.page_bytes[PAGE_REST];
    if (ret->filled.n_pages != b->n_messages * LINK_ITEMS_MAX)
        return fail(e, -EIO, "the full pool has %" PRIu64 " pages instead of %" PRIu64, ret->filled.n_pages,
                    b->n_messages * LINK_ITEMS_MAX);

    return 0;
}

/* ---- scenario ---- */

/* One descriptor per connection here, five in the daemon, which raises its own limit. */
static int service_memory_raise_limit(unsigned n, struct errmsg *e)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return fail(e, -errno, "getrlimit: %s", strerror(errno));
    if (limit.rlim_max < 5 * (rlim_t) n + FDS_BESIDE)
        return fail(e, -EMFILE, "%u clients need %u descriptors in the daemon, and ulimit -Hn is %llu", n,
                    5 * n + FDS_BESIDE, (unsigned long long) limit.rlim_max);

    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? fail(e, -errno, "setrlimit: %s", strerror(errno)) : 0;
}

int service_memory(const struct service_options *o, struct memory_metrics *ret, struct errmsg *e)
{
    const struct service_memory_size *size = o->quick ? &quick : &whole;
    _cleanup_(bench_daemon_deinit) struct bench_daemon daemon = BENCH_DAEMON_INIT;
    _cleanup_(bench_model_deinit) struct bench_model m = {.table = NULL};
    _cleanup_(freep) struct service_memory_client *clients = calloc(size->n_clients, sizeof(*clients));
    struct service_memory_bench b = {.size = size, .model = &m, .daemon = &daemon, .clients = clients};
    char pool[40], extent[40];
    const char *const options[] = {pool,
                                   extent,
                                   "--arena-bytes=128K",
                                   "--quota-bytes=4G",
                                   "--connections=1100",
                                   "--connections-per-tenant=1100",
                                   "--sessions-per-tenant=1100",
                                   "--lease-ms=600000",
                                   NULL};
    int r;

    if (!clients)
        return fail(e, -ENOMEM, "out of memory for %u clients", size->n_clients);

    for (unsigned i = 0; i < size->n_clients; i++)
        clients[i].link.fd = -1;
    (void) snprintf(pool, sizeof(pool), "--pool-bytes=%" PRIu64, size->pool_bytes);
    (void) snprintf(extent, sizeof(extent), "--extent-bytes=%" PRIu64, size->extent_bytes);
    r = service_memory_raise_limit(size->n_clients, e);
    if (r < 0)
        return r;

    r = bench_model_init(&m, &shape, 1, e);
    if (r < 0)
        return r;

    r = bench_daemon_init(&daemon, o->daemon, options, e);
    if (r < 0)
        return r;

    r = link_stage_and_activate(daemon.operator_socket, m.table->bytes, m.table->n_bytes, e);
    if (r < 0)
        return r;

    b.n_messages = size->pool_bytes / m.layout.slot_bytes[PAGE_REST] / LINK_ITEMS_MAX;
    r = service_memory_measure(&b, ret, e);
    for (unsigned i = 0; i < size->n_clients; i++)
        link_close(&clients[i].link);
    return r;
}
