/*
 * A daemon with many held pages is killed and started again, under a supervisor that stores its descriptors
 * (fd_store.h).
 *
 * The clients are connections of this process, which stays alive: their holds must survive the daemon. After
 * each restart a new connection finds every page in the new index and leases it with its old generation; a
 * sample is compared byte by byte with the written pages, through new mappings; no page can be evicted; and
 * new reservations have generations above all earlier ones. On a GPU the sessions write the payloads, and the
 * daemon's mover checks them before a lease.
 */
#include "lab/bench/bench_service.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/index.h"
#include "lab/bench/bench_service_device.h"
#include "lab/bench/bench_service_link.h"
#include "tools/bench/bench_service_model.h"
#include "lab/bench/fd_store.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_pages.h"
#include "tools/command/clock.h"
#include "tools/command/temp_folder.h"

enum { HOLDERS = 8, SAMPLE_EVERY = 500, RESTARTS_MAX = 8 };

/* Pages of 128 + 4096 bytes. */
static const struct bench_shape shape = {.n_layers = 2, .n_kv_heads = 2, .d = 32, .n_bands = 4, .bits = 2};

struct service_restart_bench {
    const struct service_options *options;
    const struct bench_model *model;
    struct bench_device device;
    char folder[64], socket[96], operator_socket[96], state[96];
    struct fd_store *store;
    pid_t pid; /* 0: the daemon does not run */
    uint64_t n_pages;
    struct link holders[HOLDERS];
    struct link_page *pages; /* [n_pages] */
    uint64_t newest;         /* highest generation */
};

/* ---- the daemon ---- */

static int service_restart_start(struct service_restart_bench *b, struct errmsg *e)
{
    const char *argv[20] = {"kvcobrad",         "--keep-pool=yes", "--state-dir",
                            b->state,           "--pool-bytes=1G", "--quota-bytes=2G",
                            "--arena-bytes=4M", "--log-level=4",   "--lease-ms=600000"};
    struct bench_device_arguments more;

    bench_device_arguments(b->options, &more);
    memcpy(argv + 9, more.list, sizeof(more.list));
    return fd_store_start(b->store, b->options->daemon, argv, -1, &b->pid, e);
}

static int service_restart_end(struct service_restart_bench *b, int signal)
{
    int status = 0;

    if (b->pid > 0) {
        (void) kill(b->pid, signal);
        while (waitpid(b->pid, &status, 0) < 0 && errno == EINTR)
            ;
        b->pid = 0;
    }

    return status;
}

struct service_restart_times { /* seconds */
    double exit, serving, gpu;
};

static int service_restart_first_lease(struct service_restart_bench *b, struct link *l, struct errmsg *e)
{
    struct geometry g = bench_geometry(&shape);
    struct chunk_key key = link_key(0);
    uint64_t lease;
    int r = link_open(b->socket, &b->device, l, e);

    if (r < 0)
        return r;

    r = link_open_model(l, &g, bench_model_digest, e);
    if (r < 0)
        return r;

    r = link_lease(l, &key, b->pages, 1, &lease, e);
    return r < 0 ? r : link_release(l, lease, e);
}

/* Times from SIGKILL to exit, from the next start to the first reply to a new client, and to the first page
 * on a GPU. */
static int service_restart_once(struct service_restart_bench *b, struct service_restart_times *ret,
                                struct errmsg *e)
{
    _cleanup_(link_close) struct link first = {.fd = -1}, gpu = {.fd = -1};
    double began = clock_seconds(), gone;
    int r;

    (void) service_restart_end(b, SIGKILL);
    gone = clock_seconds();
    if (!fd_store_settle(b->store)) /* systemd would have read all messages by then, too */
        return fail(e, -EIO, "the supervisor of the bench does not answer");

    ret->exit = gone - began;
    began = clock_seconds();
    r = service_restart_start(b, e);
    if (r < 0)
        return r;

    r = link_open(b->socket, NULL, &first, e);
    if (r < 0)
        return r;

    ret->serving = clock_seconds() - began;
    if (!bench_device_is_gpu(&b->device))
        return 0;

    r = service_restart_first_lease(b, &gpu, e);
    ret->gpu = clock_seconds() - began;
    return r;
}

/* ---- before the restart ---- */

static int service_restart_publish_held(struct service_restart_bench *b, struct errmsg *e)
{
    struct geometry g = bench_geometry(&shape);
    int r;

    for (unsigned i = 0; i < HOLDERS; i++) {
        r = link_open(b->socket, &b->device, &b->holders[i], e);
        if (r < 0)
            return r;

        r = link_open_model(&b->holders[i], &g, bench_model_digest, e);
        if (r < 0)
            return r;
    }

    for (uint64_t n = 0, i = 0; n < b->n_pages; i++) {
        uint64_t count = b->n_pages - n < LINK_ITEMS_MAX ? b->n_pages - n : LINK_ITEMS_MAX, lease;

        r = link_publish(&b->holders[i % HOLDERS], &b->model->layout, n, count, b->pages + n, &lease, e);
        if (r < 0)
            return r;

        n += count;
    }

    for (uint64_t n = 0; n < b->n_pages; n++)
        if (b->pages[n].generation > b->newest)
            b->newest = b->pages[n].generation;
    return 0;
}

/* ---- after the restart ---- */

/* The page is in its old slot with its old generation. */
static bool service_restart_is_found(const struct service_restart_bench *b, const struct index_reader *reader,
                                     uint64_t n, struct link_page *ret)
{
    struct chunk_key key = link_key(n);
    struct index_hit hit;

    if (index_lookup(reader, &key, &hit) != INDEX_FOUND)
        return false;

    *ret = (struct link_page){.slot = hit.slot, .generation = hit.generation};
    return hit.slot == b->pages[n].slot && hit.generation == b->pages[n].generation;
}

/* Leases all pages over @l; the daemon checks their checksums. Pages of a refused message count as lost. */
static int service_restart_find_all(struct service_restart_bench *b, struct link *l, uint64_t *ret_found,
                                    struct errmsg *e)
{
    struct index_reader reader;
    int r = index_reader_init(&reader, l->index, l->index_bytes, e);

    *ret_found = 0;
    for (uint64_t n = 0; r == 0 && n < b->n_pages;) {
        struct chunk_key keys[LINK_ITEMS_MAX];
        struct link_page pages[LINK_ITEMS_MAX];
        struct errmsg why = {""};
        uint64_t lease;
        size_t count = 0;

        for (; n < b->n_pages && count < LINK_ITEMS_MAX; n++) {
            keys[count] = link_key(n);
            count += service_restart_is_found(b, &reader, n, &pages[count]);
        }

        if (count > 0 && link_lease(l, keys, pages, count, &lease, &why) == 0) {
            *ret_found += count;
            r = link_release(l, lease, e);
        }
    }

    return r;
}

static int service_restart_is_identical(struct service_restart_bench *b, struct link *l, uint64_t n,
                                        bool *ret, struct errmsg *e)
{
    struct chunk_key key = link_key(n);
    const struct page_layout *layout = &b->model->layout;
    size_t skip = bench_device_is_gpu(&b->device) ? PAGE_HEADER_BYTES : 0; /* slots of a GPU have no header */
    size_t bytes = layout->page_bytes[PAGE_REST] - skip;
    _cleanup_(freep) uint8_t *found = malloc(bytes);
    int r = found ? link_read_page(l, &b->pages[n], skip, bytes, found, e)
                  : fail(e, -ENOMEM, "out of memory for a page");

    if (r < 0)
        return r;

    link_write_page(layout, &key, l->arena);
    *ret = memcmp(found, l->arena + skip, bytes) == 0;
    return 0;
}

static int service_restart_compare_sample(struct service_restart_bench *b, struct link *l,
                                          uint64_t *ret_sampled, uint64_t *ret_identical, struct errmsg *e)
{
    int r = 0;

    *ret_sampled = *ret_identical = 0;
    bench_device_forget(&b->device); /* compare through new mappings, not through those of the old daemon */
    for (uint64_t n = 0; r == 0 && n < b->n_pages; n += SAMPLE_EVERY) {
        bool same;

        r = service_restart_is_identical(b, l, n, &same, e);
        *ret_sampled += r == 0;
        *ret_identical += r == 0 && same;
    }

    return r;
}

/* Held pages by the daemon's count, after the eviction of all unheld pages. */
static int service_restart_count_held(struct service_restart_bench *b, uint64_t *ret, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *control = NULL;
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    int r = client_open(b->operator_socket, &control, e);

    if (r < 0)
        return r;

    r = operator_evict(control, NULL, NULL, NULL, e);
    if (r == 0)
        r = operator_get_status(control, &s, e);
    if (r == 0)
        *ret = s->held_pages;
    return r;
}

/* Counts a new generation that is not above all earlier ones. The new page stays unheld and is evicted next
 * time. */
static int service_restart_reserve_anew(struct service_restart_bench *b, struct link *l, unsigned round,
                                        uint64_t *ret_lower, struct errmsg *e)
{
    struct link_page page;
    uint64_t lease;
    int r = link_publish(l, &b->model->layout, (uint64_t) 1 << 62 | round, 1, &page, &lease, e);

    if (r < 0)
        return r;

    *ret_lower += page.generation <= b->newest;
    b->newest = page.generation > b->newest ? page.generation : b->newest;
    return link_release(l, lease, e);
}

static uint64_t service_restart_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int service_restart_check(struct service_restart_bench *b, unsigned round, struct restart_metrics *f,
                                 struct errmsg *e)
{
    _cleanup_(link_close) struct link l = {.fd = -1};
    struct geometry g = bench_geometry(&shape);
    uint64_t held = 0, found = 0, sampled = 0, identical = 0;
    int r;

    r = link_open(b->socket, &b->device, &l, e);
    if (r < 0)
        return r;

    r = link_open_model(&l, &g, bench_model_digest, e);
    if (r < 0)
        return r;

    r = service_restart_count_held(b, &held, e);
    if (r < 0)
        return r;

    r = service_restart_find_all(b, &l, &found, e);
    if (r < 0)
        return r;

    r = service_restart_compare_sample(b, &l, &sampled, &identical, e);
    if (r < 0)
        return r;

    r = service_restart_reserve_anew(b, &l, round, &f->n_lower, e);
    if (r < 0)
        return r;

    f->n_held = service_restart_least(f->n_held, held);
    f->n_found = service_restart_least(f->n_found, found);
    f->n_sampled = sampled;
    f->n_identical = service_restart_least(f->n_identical, identical);
    return 0;
}

/* ---- scenario ---- */

static int service_restart_measure(struct service_restart_bench *b, struct restart_metrics *f,
                                   struct errmsg *e)
{
    double exits[RESTARTS_MAX], serving[RESTARTS_MAX], gpu[RESTARTS_MAX];
    int r;

    r = service_restart_publish_held(b, e);
    if (r < 0)
        return r;

    for (unsigned i = 0; i < f->n_restarts; i++) {
        struct service_restart_times m = {0};

        r = service_restart_once(b, &m, e);
        if (r < 0)
            return r;

        exits[i] = m.exit;
        serving[i] = m.serving;
        gpu[i] = m.gpu;
        r = service_restart_check(b, i, f, e);
        if (r < 0)
            return r;
    }

    f->exit = timing_of(exits, f->n_restarts);
    f->serving = timing_of(serving, f->n_restarts);
    if (bench_device_is_gpu(&b->device))
        f->gpu = timing_of(gpu, f->n_restarts);
    return 0;
}

static int service_restart_prepare(struct service_restart_bench *b, struct errmsg *e)
{
    /* in /tmp: $TMPDIR may be too long for a socket */
    int r = temp_folder_make("/tmp", "bench", b->folder, sizeof(b->folder), e);

    if (r < 0)
        return r;

    (void) snprintf(b->socket, sizeof(b->socket), "%s/kvcobra.sock", b->folder);
    (void) snprintf(b->operator_socket, sizeof(b->operator_socket), "%s/operator.sock", b->folder);
    (void) snprintf(b->state, sizeof(b->state), "%s/state", b->folder);
    r = fd_store_new(b->folder, &b->store, e);
    if (r < 0)
        return r;

    r = service_restart_start(b, e);
    if (r < 0)
        return r;

    return fd_store_wait_ready(b->store, b->pid) ? 0 : fail(e, -ECANCELED, "kvcobrad does not start");
}

static void service_restart_deinit(struct service_restart_bench *b)
{
    for (unsigned i = 0; i < HOLDERS; i++)
        link_close(&b->holders[i]);
    bench_device_close(&b->device);
    (void) service_restart_end(b, SIGTERM);
    b->store = fd_store_free(b->store);
    temp_folder_remove(b->folder);
    free(b->pages);
}

int service_restart(const struct service_options *o, struct restart_metrics *ret, struct errmsg *e)
{
    _cleanup_(bench_model_deinit) struct bench_model m = {.table = NULL};
    struct restart_metrics f = {.n_restarts = o->quick ? 2 : 5,
                                .n_found = UINT64_MAX,
                                .n_identical = UINT64_MAX,
                                .n_held = UINT64_MAX};
    _cleanup_(service_restart_deinit) struct service_restart_bench b = {
        .options = o, .model = &m, .n_pages = o->quick ? 2000 : 100000};
    int r;

    for (unsigned i = 0; i < HOLDERS; i++)
        b.holders[i].fd = -1;
    r = bench_model_init(&m, &shape, 1, e);
    if (r < 0)
        return r;

    b.pages = calloc(b.n_pages, sizeof(*b.pages));
    if (!b.pages)
        return fail(e, -ENOMEM, "out of memory for %" PRIu64 " pages", b.n_pages);

    r = bench_device_open(&b.device, o->device, e);
    if (r < 0)
        return r;

    r = service_restart_prepare(&b, e);
    if (r < 0)
        return r;

    r = link_stage_and_activate(b.operator_socket, m.table->bytes, m.table->n_bytes, e);
    if (r < 0)
        return r;

    r = service_restart_measure(&b, &f, e);
    if (r < 0)
        return r;

    f.n_pages = b.n_pages;
    f.page_bytes = m.layout.page_bytes[PAGE_REST];
    *ret = f;
    return 0;
}
