/* See workers.h. */
#include "client/connection/workers.h"

#include <errno.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/errmsg.h"
#include "base/options.h"
#include "base/threads.h"
#include "client/connection/client.h"
#include "client/connection/client_ops.h"

enum { SCRATCH_ALIGN = 64 };

void workers_init(struct workers *w)
{
    *w = (struct workers){.n = 1};
}

static void workers_free_memory(struct workers *w)
{
    free(w->scratch);
    free(w->items);
    free(w->partials);
    w->scratch = w->items = NULL;
    w->partials = NULL;
    w->scratch_bytes = w->items_bytes = w->n_partials = 0;
}

void workers_deinit(struct workers *w)
{
    (void) threads_free(w->threads);
    workers_free_memory(w);
    workers_init(w);
}

/* Replaces *@at, whose contents are not needed, by @n pieces of @bytes. */
static int workers_grow(void **at, size_t *have, size_t bytes, size_t n)
{
    size_t rounded, total;
    void *p;

    if (bytes <= *have)
        return 0;
    if (!checked_add(bytes, SCRATCH_ALIGN - 1, &rounded) ||
        !checked_mul(rounded / SCRATCH_ALIGN * SCRATCH_ALIGN, n, &total))
        return -ENOMEM;

    p = aligned_alloc(SCRATCH_ALIGN, total);
    if (!p)
        return -ENOMEM;

    free(*at);
    *at = p;
    *have = rounded / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return 0;
}

int workers_reserve(struct workers *w, size_t scratch_bytes, size_t items_bytes, size_t n_partials)
{
    size_t have = w->n_partials * sizeof(float), want;
    void *partials = w->partials;
    int r = checked_mul(n_partials, sizeof(float), &want) ? workers_grow(&partials, &have, want, 1) : -ENOMEM;

    w->partials = partials;
    w->n_partials = have / sizeof(float);
    if (r < 0)
        return r;

    r = workers_grow(&w->scratch, &w->scratch_bytes, scratch_bytes, w->n);
    if (r < 0)
        return r;

    return workers_grow(&w->items, &w->items_bytes, items_bytes, 1);
}

void workers_run(const struct workers *w, void (*task)(void *arg, size_t i, unsigned worker), void *arg,
                 size_t n)
{
    if (w->executor.run && n > 1) {
        w->executor.run(w->executor.ctx, task, arg, n);
        return;
    }
    threads_run(w->threads, task, arg, n);
}

/* Replaces the threads of both kinds. @threads is transferred. */
static void workers_replace(struct workers *w, const kvc_executor *x, struct threads *threads, unsigned n)
{
    if (n != w->n)
        workers_free_memory(w); /* scratch is per worker */
    (void) threads_free(w->threads);
    w->executor = *x;
    w->threads = threads;
    w->n = n;
}

/* First statement of both calls. @wants: whether the caller requests threads. */
static int workers_enter(kvc_client *c, bool wants)
{
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r < 0)
        return r;
    if (wants && !c->ops->uses_threads)
        return fail(&c->error, -EOPNOTSUPP, "this client's attention runs on its GPU: it uses no threads");

    return 0;
}

int kvc_client_set_executor(kvc_client *c, const kvc_executor *x)
{
    kvc_executor executor = {.n_workers = 1};
    int r = workers_enter(c, x);

    if (r < 0)
        return r;

    r = x ? options_read(&executor, sizeof(executor), x, sizeof(executor), "kvc_executor", &c->error) : 0;
    if (r < 0)
        return r;
    if (x && !executor.run)
        return fail(&c->error, -EINVAL, "kvc_executor.run is NULL");
    if (executor.n_workers < 1 || executor.n_workers > WORKERS_MAX)
        return fail(&c->error, -EINVAL, "kvc_executor.n_workers is %u: 1 to %d", executor.n_workers,
                    WORKERS_MAX);

    workers_replace(&c->workers, &executor, NULL, executor.n_workers);
    return 0;
}

int kvc_client_set_threads(kvc_client *c, unsigned n)
{
    const kvc_executor none = {.n_workers = 1};
    struct threads *threads = NULL;
    int r = workers_enter(c, n != 1);

    if (r < 0)
        return r;
    if (n < 1 || n > WORKERS_MAX)
        return fail(&c->error, -EINVAL, "kvc_client_set_threads: %u threads, must be 1 to %d", n,
                    WORKERS_MAX);
    if (c->workers.threads && n == c->workers.n)
        return 0;

    r = n > 1 ? threads_new(n, &threads, &c->error) : 0;
    if (r < 0)
        return r;

    workers_replace(&c->workers, &none, threads, n);
    return 0;
}
