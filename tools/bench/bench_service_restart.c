/*
 * A daemon with many held pages is killed and started again, under a supervisor that keeps its descriptors
 * (fd_store.h).
 *
 * The clients are connections of this process, which stays: their holds must outlive the daemon. After each
 * restart another connection looks every page up in the new index and leases it, with the generation that it
 * had; a sample is compared byte by byte with what was written, in mappings of what the new daemon hands out;
 * nothing can be evicted; and what is reserved anew has a generation above all before. On a GPU the sessions
 * write the payloads and the daemon's mover checks them before a lease.
 */
#include "tools/bench/bench_service.h"

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
#include "client/kvcobra-operator.h"
#include "proto/index.h"
#include "tools/bench/bench_service_link.h"
#include "tools/bench/bench_service_model.h"
#include "tools/bench/bench_service_device.h"
#include "tools/command/clock.h"
#include "tools/bench/fd_store.h"
#include "tools/command/handles.h"
#include "tools/command/temp_folder.h"

enum { HOLDERS = 8, SAMPLE_EVERY = 500, RESTARTS_MAX = 8 };

/* Pages of 128 + 4096 bytes. */
static const struct bench_shape shape = {.n_layers = 2, .n_kv_heads = 2, .d = 32, .n_bands = 4, .bits = 2};

struct service_restart_bench {
    const struct service_options *options;
    const struct bench_model *model;
    struct place place;
    char folder[64], socket[96], operator_socket[96], state[96];
    struct fd_store *store;
    pid_t pid; /* 0: the daemon does not run */
    uint64_t n_pages;
    struct link holders[HOLDERS];
    struct link_page *pages; /* [n_pages] */
    uint64_t newest;         /* generation */
};

/* ---- the daemon ---- */

static int service_restart_start(struct service_restart_bench *b, struct errmsg *e)
{
    const char *argv[20] = {"kvcobrad",         "--keep-pool=yes", "--state-dir",
                            b->state,           "--pool-bytes=1G", "--quota-bytes=2G",
                            "--arena-bytes=4M", "--log-level=4",   "--lease-ms=600000"};
    struct place_arguments more;

    place_arguments(b->options, &more);
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

struct service_restart_moments { /* seconds */
    double exit, serving, gpu;
};

static int service_restart_first_lease(struct service_restart_bench *b, struct link *l, struct errmsg *e)
{
    struct geometry g = bench_geometry(&shape);
    struct chunk_key key = link_key(0);
    uint64_t lease;
    int r = link_open(b->socket, &b->place, l, e);

    if (r == 0)
        r = link_open_model(l, &g, bench_model_digest, e);
    if (r == 0)
        r = link_lease(l, &key, b->pages, 1, &lease, e);
    return r < 0 ? r : link_release(l, lease, e);
}

/* From SIGKILL until it is gone; from the next start to the first answer, to a new client, and to the first
 * page on a GPU. */
static int restart(struct service_restart_bench *b, struct service_restart_moments *ret, struct errmsg *e)
{
    _cleanup_(link_close) struct link first = {.fd = -1}, gpu = {.fd = -1};
    double began = clock_seconds(), gone;
    int r;

    (void) service_restart_end(b, SIGKILL);
    gone = clock_seconds();
    if (!fd_store_settle(b->store)) /* pid 1 has read everything by then, too */
        return fail(e, -EIO, "the supervisor of the bench does not answer");
    ret->exit = gone - began;
    began = clock_seconds();
    r = service_restart_start(b, e);
    if (r == 0)
        r = link_open(b->socket, NULL, &first, e);
    ret->serving = clock_seconds() - began;
    if (r == 0 && place_is_gpu(&b->place))
        r = service_restart_first_lease(b, &gpu, e);
    ret->gpu = clock_seconds() - began;
    return r;
}

/* ---- before ---- */

static int service_restart_publish_held(struct service_restart_bench *b, struct errmsg *e)
{
    struct geometry g = bench_geometry(&shape);
    int r = 0;

    for (unsigned i = 0; r == 0 && i < HOLDERS; i++) {
        r = link_open(b->socket, &b->place, &b->holders[i], e);
        if (r == 0)
            r = link_open_model(&b->holders[i], &g, bench_model_digest, e);
    }
    for (uint64_t n = 0, i = 0; r == 0 && n < b->n_pages; i++) {
        uint64_t count = b->n_pages - n < LINK_ITEMS_MAX ? b->n_pages - n : LINK_ITEMS_MAX, lease;

        r = link_publish(&b->holders[i % HOLDERS], &b->model->layout, n, count, b->pages + n, &lease, e);
        n += count;
    }
    for (uint64_t n = 0; n < b->n_pages; n++)
        if (b->pages[n].generation > b->newest)
            b->newest = b->pages[n].generation;
    return r;
}

/* ---- after ---- */

/* The page is at the slot where it was, with the generation that it had. */
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

/* By messages of @l, which checks every checksum. Pages of a message that is refused count as lost. */
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
    size_t skip = place_is_gpu(&b->place) ? PAGE_HEADER_BYTES : 0; /* which the slots of a GPU do not have */
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
    place_forget(&b->place); /* what the daemon has now is compared, not what was mapped before */
    for (uint64_t n = 0; r == 0 && n < b->n_pages; n += SAMPLE_EVERY) {
        bool same;

        r = service_restart_is_identical(b, l, n, &same, e);
        *ret_sampled += r == 0;
        *ret_identical += r == 0 && same;
    }
    return r;
}

/* Held pages as the daemon counts them, after everything that may go was told to. */
static int service_restart_count_held(struct service_restart_bench *b, uint64_t *ret, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *operator= NULL;
    const kvc_status_sizes sizes = KVC_STATUS_SIZES;
    kvc_status *s = NULL;
    int r = client_open(b->operator_socket, &operator, e);

    if (r < 0)
        return r;
    r = kvc_evict(operator, NULL, NULL, NULL, NULL);
    if (r == 0)
        r = kvc_status_get(operator, & sizes, &s);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(operator));
    *ret = s->held_pages;
    s = kvc_status_free(s);
    return 0;
}

/* What is given out now is above everything before; it is left as a page that nobody holds, and evicted next
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

static int service_restart_check(struct service_restart_bench *b, unsigned round, struct restart_figures *f,
                                 struct errmsg *e)
{
    _cleanup_(link_close) struct link l = {.fd = -1};
    struct geometry g = bench_geometry(&shape);
    uint64_t held = 0, found = 0, sampled = 0, identical = 0;
    int r = link_open(b->socket, &b->place, &l, e);

    if (r == 0)
        r = link_open_model(&l, &g, bench_model_digest, e);
    if (r == 0)
        r = service_restart_count_held(b, &held, e);
    if (r == 0)
        r = service_restart_find_all(b, &l, &found, e);
    if (r == 0)
        r = service_restart_compare_sample(b, &l, &sampled, &identical, e);
    if (r == 0)
        r = service_restart_reserve_anew(b, &l, round, &f->n_lower, e);
    f->n_held = service_restart_least(f->n_held, held);
    f->n_found = service_restart_least(f->n_found, found);
    f->n_sampled = sampled;
    f->n_identical = service_restart_least(f->n_identical, identical);
    return r;
}

/* ---- all of it ---- */

static int service_restart_measure(struct service_restart_bench *b, struct restart_figures *f,
                                   struct errmsg *e)
{
    double exits[RESTARTS_MAX], serving[RESTARTS_MAX], gpu[RESTARTS_MAX];
    int r = service_restart_publish_held(b, e);

    for (unsigned i = 0; r == 0 && i < f->n_restarts; i++) {
        struct service_restart_moments m = {0};

        r = restart(b, &m, e);
        exits[i] = m.exit;
        serving[i] = m.serving;
        gpu[i] = m.gpu;
        if (r == 0)
            r = service_restart_check(b, i, f, e);
    }
    if (r < 0)
        return r;
    f->exit = timing_of(exits, f->n_restarts);
    f->serving = timing_of(serving, f->n_restarts);
    if (place_is_gpu(&b->place))
        f->gpu = timing_of(gpu, f->n_restarts);
    return 0;
}

static int service_restart_prepare(struct service_restart_bench *b, struct errmsg *e)
{
    int r = temp_folder_make("/tmp", "bench", b->folder, sizeof(b->folder),
                             e); /* $TMPDIR may be too long for a socket */

    if (r < 0)
        return r;
    (void) snprintf(b->socket, sizeof(b->socket), "%s/kvcobra.sock", b->folder);
    (void) snprintf(b->operator_socket, sizeof(b->operator_socket), "%s/operator.sock", b->folder);
    (void) snprintf(b->state, sizeof(b->state), "%s/state", b->folder);
    r = fd_store_new(b->folder, &b->store, e);
    if (r == 0)
        r = service_restart_start(b, e);
    return r == 0 && !fd_store_wait_ready(b->store) ? fail(e, -ECANCELED, "kvcobrad does not start") : r;
}

static void service_restart_clean_up(struct service_restart_bench *b)
{
    for (unsigned i = 0; i < HOLDERS; i++)
        link_close(&b->holders[i]);
    place_close(&b->place);
    (void) service_restart_end(b, SIGTERM);
    b->store = fd_store_free(b->store);
    temp_folder_remove(b->folder);
    free(b->pages);
}

int service_restart(const struct service_options *o, struct restart_figures *ret, struct errmsg *e)
{
    _cleanup_(bench_model_deinit) struct bench_model m = {.table = NULL};
    struct restart_figures f = {.n_restarts = o->quick ? 2 : 5,
                                .n_found = UINT64_MAX,
                                .n_identical = UINT64_MAX,
                                .n_held = UINT64_MAX};
    struct service_restart_bench b = {.options = o, .model = &m, .n_pages = o->quick ? 2000 : 100000};
    int r = bench_model_init(&m, &shape, 1, e);

    for (unsigned i = 0; i < HOLDERS; i++)
        b.holders[i].fd = -1;
    b.pages = calloc(b.n_pages, sizeof(*b.pages));
    if (r == 0 && !b.pages)
        r = fail(e, -ENOMEM, "out of memory for %" PRIu64 " pages", b.n_pages);
    if (r == 0)
        r = place_open(&b.place, o->device, e);
    if (r == 0)
        r = service_restart_prepare(&b, e);
    if (r == 0)
        r = link_stage_and_activate(b.operator_socket, m.table->bytes, m.table->n_bytes, e);
    if (r == 0)
        r = service_restart_measure(&b, &f, e);
    service_restart_clean_up(&b);
    if (r < 0)
        return r;
    f.n_pages = b.n_pages;
    f.page_bytes = m.layout.page_bytes[PAGE_REST];
    *ret = f;
    return 0;
}
