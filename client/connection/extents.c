/* Mapped extents; see extents.h. */
#include "client/connection/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/connection/connection.h"
#include "client/gpu/gpu.h"

static struct mapped_extent *extents_unlink_at(struct mapped_extent **at)
{
    struct mapped_extent *x = *at;

    *at = x->next;
    return x;
}

static void extents_drop(struct mapped_extent *x)
{
    (void) extent_free(x->extent);
    (void) cuda_extent_free(x->device);
    free(x);
}

/*
 * A packet whose descriptor finds no room is lost, and the connection with it: looked at before. The CUDA
 * driver takes one more for itself.
 */
static int extents_check_descriptors(const struct connection *c, uint64_t id, struct errmsg *e)
{
    _cleanup_(closep) int first = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    _cleanup_(closep) int second = first < 0 ? -1 : fcntl(c->fd, F_DUPFD_CLOEXEC, 0);

    if (second < 0 && errno == EMFILE)
        return fail(e, -EMFILE,
                    "this process has no file descriptor left to map extent %" PRIu64 ": raise RLIMIT_NOFILE",
                    id);
    return 0;
}

static const struct lent_memory *extents_find_lent(const struct extent_cache *cache, const uint8_t *handle)
{
    for (const struct lent_memory *l = cache->lent; l; l = l->next)
        if (memcmp(l->handle.bytes, handle, sizeof(l->handle.bytes)) == 0)
            return l;
    return NULL;
}

/* By the handle, never by an address: that may be another allocation's by now. No process opens the handle of
 * its own memory. */
static int extents_import_lent(struct extent_cache *cache, const Kvcobra__GetExtentReply *reply,
                               struct mapped_extent *x, struct errmsg *e)
{
    const struct lent_memory *own;
    struct cu_ipc_mem_handle handle;
    int r;

    if (!cache->gpu || !bytes_are(reply->ipc_handle, sizeof(handle.bytes)) || reply->bytes == 0 ||
        reply->bytes > SIZE_MAX)
        return fail(e, -EPROTO, "kvcobrad sent no usable handle for extent %" PRIu64, x->id);
    own = extents_find_lent(cache, reply->ipc_handle.data);
    x->lent = true;
    x->own = own != NULL;
    if (own && own->bytes != reply->bytes)
        return fail(e, -EPROTO,
                    "kvcobrad has extent %" PRIu64 " of %" PRIu64
                    " bytes in memory of this client that has %zu",
                    x->id, reply->bytes, own->bytes);
    if (own)
        return cuda_extent_borrow(cache->gpu->space, own->at, own->bytes, &x->device, e);
    memcpy(handle.bytes, reply->ipc_handle.data, sizeof(handle.bytes));
    r = gpu_result(cache->gpu,
                   cuda_extent_open(cache->gpu->space, &handle, (size_t) reply->bytes, &x->device, e), e);
    return r == -ESTALE ? -EXDEV : r;
}

static int extents_import(struct extent_cache *cache, struct connection *c, struct mapped_extent *x,
                          struct errmsg *e)
{
    struct gpu *g = cache->gpu;
    Kvcobra__GetExtent get = KVCOBRA__GET_EXTENT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    uint64_t bytes;
    int fd, r;

    get.extent = x->id;
    request.body_case = KVCOBRA__REQUEST__BODY_GET_EXTENT;
    request.get_extent = &get;
    r = connection_is_open(c) ? extents_check_descriptors(c, x->id, e) : 0;
    if (r < 0)
        return r;
    r = connection_request(c, &request, NULL, 0, KVCOBRA__REPLY__BODY_GET_EXTENT, &reply, e);
    if (r < 0)
        return r == -ESTALE || r == -ENOENT ? -EXDEV
                                            : r; /* its lender is gone, and with it perhaps the extent */
    if (reply.message->get_extent->ipc_handle.len > 0) {
        r = extents_import_lent(cache, reply.message->get_extent, x, e);
        reply_free(&reply);
        return r;
    }
    bytes = reply.message->get_extent->bytes;
    fd = reply_take_fd(&reply, 0);
    reply_free(&reply);
    if (fd < 0 || bytes == 0 || bytes > SIZE_MAX) {
        if (fd >= 0)
            (void) close(fd);
        return fail(e, -EPROTO, "kvcobrad sent no usable descriptor for extent %" PRIu64, x->id);
    }
    if (g && bytes % g->device.granularity != 0) {
        (void) close(fd);
        return fail(e, -EPROTO,
                    "kvcobrad sent an extent of %" PRIu64 " bytes: the GPU has memory in units of %zu", bytes,
                    g->device.granularity);
    }
    if (!g)
        return extent_import(fd, (size_t) bytes, EXTENT_READ, &x->extent, e);
    return gpu_result(g, cuda_extent_import(g->space, fd, (size_t) bytes, CU_ACCESS_READ, &x->device, e), e);
}

int extents_get(struct extent_cache *cache, struct connection *c, uint64_t id, struct mapped_extent **ret,
                struct errmsg *e)
{
    struct mapped_extent *x = NULL;
    int r;

    for (struct mapped_extent **at = &cache->first; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            x = extents_unlink_at(at);
            break;
        }
    if (!x) {
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

void extents_unwant(struct extent_cache *cache, uint64_t id)
{
    for (struct mapped_extent *x = cache->first; x; x = x->next)
        x->unwanted |= x->id == id;
}

/* Extents that are idle, the least recently used last: whether the @nth of them goes. */
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
    return cache->dead;
}

void extents_trim(struct extent_cache *cache)
{
    size_t idle = 0;

    while (cache->dead)
        extents_drop(extents_unlink_at(&cache->dead));
    for (struct mapped_extent **at = &cache->first; *at;) {
        idle += (*at)->n_pages == 0;
        if (extents_is_unused(*at, idle))
            extents_drop(extents_unlink_at(at));
        else
            at = &(*at)->next;
    }
}

static void extents_bury(struct extent_cache *cache, struct mapped_extent *orphan)
{
    orphan->next = cache->dead;
    cache->dead = orphan;
}

void extents_put(struct extent_cache *cache, struct mapped_extent *x)
{
    if (--x->n_pages > 0)
        return;
    if (x->orphan)
        extents_bury(cache, x);
    if (!cache->gpu)
        extents_trim(cache);
}

void extents_orphan(struct extent_cache *cache, bool only_lent)
{
    for (struct mapped_extent **at = &cache->first; *at;) {
        struct mapped_extent *x;

        if (only_lent && !(*at)->lent) {
            at = &(*at)->next;
            continue;
        }
        x = extents_unlink_at(at);
        x->next = NULL;
        x->orphan = true;
        x->lost = x->lent && !x->own;
        if (x->n_pages == 0)
            extents_bury(cache, x);
    }
    if (!cache->gpu)
        extents_trim(cache);
}

void extents_deinit(struct extent_cache *cache)
{
    while (cache->first)
        extents_drop(extents_unlink_at(&cache->first));
    extents_trim(cache);
    while (cache->lent) {
        struct lent_memory *l = cache->lent;

        cache->lent = l->next;
        free(l);
    }
}
