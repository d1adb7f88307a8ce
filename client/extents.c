/* Mapped extents; see extents.h. */
#include "client/extents.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "client/connection.h"
#include "gpu/device.h"

static struct mapped_extent *unlink_at(struct mapped_extent **at)
{
    struct mapped_extent *x = *at;

    *at = x->next;
    return x;
}

static void drop(struct mapped_extent *x)
{
    (void) extent_free(x->extent);
    free(x);
}

static int import(struct connection *c, uint64_t id, struct extent **ret, struct errmsg *e)
{
    Kvcobra__GetExtent get = KVCOBRA__GET_EXTENT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    uint64_t bytes;
    int fd, r;

    get.extent = id;
    request.body_case = KVCOBRA__REQUEST__BODY_GET_EXTENT;
    request.get_extent = &get;
    r = connection_request(c, &request, NULL, 0, KVCOBRA__REPLY__BODY_GET_EXTENT, &reply, e);
    if (r < 0)
        return r;
    bytes = reply.message->get_extent->bytes;
    fd = reply_take_fd(&reply, 0);
    reply_free(&reply);
    if (fd < 0 || bytes == 0 || bytes > SIZE_MAX) {
        if (fd >= 0)
            (void) close(fd);
        return fail(e, -EPROTO, "kvcobrad sent no usable descriptor for extent %" PRIu64, id);
    }
    return extent_import(fd, (size_t) bytes, EXTENT_READ, ret, e);
}

int extents_get(struct extent_cache *cache, struct connection *c, uint64_t id, struct mapped_extent **ret,
                struct errmsg *e)
{
    struct mapped_extent *x = NULL;
    int r;

    for (struct mapped_extent **at = &cache->first; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            x = unlink_at(at);
            break;
        }
    if (!x) {
        x = calloc(1, sizeof(*x));
        if (!x)
            return fail(e, -ENOMEM, "out of memory while mapping extent %" PRIu64, id);
        r = import(c, id, &x->extent, e);
        if (r < 0) {
            free(x);
            return r;
        }
        x->id = id;
    }
    x->next = cache->first;
    cache->first = x;
    x->n_pages++;
    *ret = x;
    return 0;
}

void extents_put(struct extent_cache *cache, struct mapped_extent *x)
{
    size_t n_idle = 0;

    if (--x->n_pages > 0)
        return;
    if (x->orphan) {
        drop(x);
        return;
    }
    for (struct mapped_extent **at = &cache->first; *at;) {
        n_idle += (*at)->n_pages == 0;
        if ((*at)->n_pages == 0 && n_idle > EXTENTS_IDLE_MAX)
            drop(unlink_at(at)); /* least recently used of the idle ones stand last */
        else
            at = &(*at)->next;
    }
}

void extents_orphan(struct extent_cache *cache)
{
    while (cache->first) {
        struct mapped_extent *x = unlink_at(&cache->first);

        x->next = NULL;
        x->orphan = true;
        if (x->n_pages == 0)
            drop(x);
    }
}

void extents_deinit(struct extent_cache *cache)
{
    while (cache->first)
        drop(unlink_at(&cache->first));
}
