/* See extents.h. */
#include "client/connection/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/connection/connection.h"
#include "gpu/device.h"

/* ---- host memory ---- */

static int extents_import_host(struct extent_cache *cache, int fd, size_t bytes, struct mapped_extent *x,
                               struct errmsg *e)
{
    int r = extent_import(fd, bytes, EXTENT_READ, &x->host_extent, e);

    (void) cache;
    if (r < 0)
        return r;

    x->host = extent_data(x->host_extent);
    x->bytes = bytes;
    return 0;
}

static void extents_unmap_host(struct mapped_extent *x)
{
    x->host_extent = extent_free(x->host_extent);
}

static const struct extent_ops extents_host_ops = {
    .import = extents_import_host,
    .unmap = extents_unmap_host,
    .unmaps_at_once = true,
};

/* ---- the list ---- */

void extents_init(struct extent_cache *cache)
{
    *cache = (struct extent_cache){.ops = &extents_host_ops};
}

static struct mapped_extent *extents_unlink_at(struct mapped_extent **at)
{
    struct mapped_extent *x = *at;

    *at = x->next;
    return x;
}

static struct mapped_extent *extents_unlink(struct extent_cache *cache, uint64_t id)
{
    for (struct mapped_extent **at = &cache->first; *at; at = &(*at)->next)
        if ((*at)->id == id)
            return extents_unlink_at(at);
    return NULL;
}

static void extents_free(struct extent_cache *cache, struct mapped_extent *x)
{
    cache->ops->unmap(x);
    free(x);
}

/* ---- importing ---- */

/*
 * Checks before the request that the process has free descriptor numbers: without one for the reply's
 * descriptor, the packet would be lost, and the connection with it. The CUDA driver takes one more.
 */
static int extents_check_descriptors(const struct connection *c, uint64_t id, struct errmsg *e)
{
    _cleanup_(closep) int first = fcntl(c->fd, F_DUPFD_CLOEXEC, 3);
    _cleanup_(closep) int second = first < 0 ? -1 : fcntl(c->fd, F_DUPFD_CLOEXEC, 3);

    if (second < 0 && errno == EMFILE)
        return fail(e, -EMFILE,
                    "this process has no file descriptor left to map extent %" PRIu64 ": raise RLIMIT_NOFILE",
                    id);
    return 0;
}

static int extents_import(struct extent_cache *cache, struct connection *c, struct mapped_extent *x,
                          struct errmsg *e)
{
    Kvcobra__GetExtent get = KVCOBRA__GET_EXTENT__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    _cleanup_(closep) int fd = -1;
    const Kvcobra__GetExtentReply *got;
    int r;

    r = connection_is_open(c) ? extents_check_descriptors(c, x->id, e) : 0;
    if (r < 0)
        return r;

    get.extent = x->id;
    r = connection_call(c, KVCOBRA__REQUEST__BODY_GET_EXTENT, &get, KVCOBRA__REPLY__BODY_GET_EXTENT, &reply,
                        e);
    if (r < 0)
        return r;

    got = reply.message->get_extent;
    fd = reply_take_fd(&reply, 0);
    if (fd < 0 || got->bytes == 0 || got->bytes > SIZE_MAX)
        return fail(e, -EPROTO, "kvcobrad sent no usable descriptor for extent %" PRIu64, x->id);

    return cache->ops->import(cache, take_fd(&fd), (size_t) got->bytes, x, e);
}

int extents_get(struct extent_cache *cache, struct connection *c, uint64_t id, struct mapped_extent **ret,
                struct errmsg *e)
{
    struct mapped_extent *x = extents_unlink(cache, id);

    if (!x) {
        int r;

        x = calloc(1, sizeof(*x));
        if (!x)
            return fail(e, -ENOMEM, "out of memory while mapping extent %" PRIu64, id);

        x->id = id;
        r = extents_import(cache, c, x, e);
        if (r < 0) {
            free(x);
            return r;
        }
    }

    x->next = cache->first;
    x->unwanted = false;
    cache->first = x;
    x->n_pages++;
    *ret = x;
    return 0;
}

/* ---- unmapping ---- */

void extents_unwant(struct extent_cache *cache, uint64_t id)
{
    for (struct mapped_extent *x = cache->first; x; x = x->next)
        x->unwanted |= x->id == id;
}

/* Whether an idle extent can be unmapped; it is the @nth idle one of the list, which ends
 * with the least recently used. */
static bool extents_is_unused(const struct mapped_extent *x, size_t nth)
{
    return x->n_pages == 0 && (x->unwanted || nth > EXTENTS_IDLE_MAX);
}

bool extents_have_unused(const struct extent_cache *cache)
{
    size_t idle = 0;

    for (const struct mapped_extent *x = cache->first; x; x = x->next) {
        idle += x->n_pages == 0;
        if (extents_is_unused(x, idle))
            return true;
    }
    return cache->retired;
}

void extents_trim(struct extent_cache *cache)
{
    size_t idle = 0;

    while (cache->retired)
        extents_free(cache, extents_unlink_at(&cache->retired));

    for (struct mapped_extent **at = &cache->first; *at;) {
        idle += (*at)->n_pages == 0;
        if (extents_is_unused(*at, idle))
            extents_free(cache, extents_unlink_at(at));
        else
            at = &(*at)->next;
    }
}

static void extents_retire(struct extent_cache *cache, struct mapped_extent *orphan)
{
    orphan->next = cache->retired;
    cache->retired = orphan;
}

void extents_put(struct extent_cache *cache, struct mapped_extent *x)
{
    if (--x->n_pages > 0)
        return;

    if (x->orphan)
        extents_retire(cache, x);
    if (cache->ops->unmaps_at_once)
        extents_trim(cache);
}

void extents_orphan(struct extent_cache *cache)
{
    while (cache->first) {
        struct mapped_extent *x = extents_unlink_at(&cache->first);

        x->next = NULL;
        x->orphan = true;
        if (x->n_pages == 0)
            extents_retire(cache, x);
    }

    if (cache->ops->unmaps_at_once)
        extents_trim(cache);
}

void extents_deinit(struct extent_cache *cache)
{
    while (cache->first)
        extents_free(cache, extents_unlink_at(&cache->first));
    extents_trim(cache);
}
