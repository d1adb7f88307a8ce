/* See session.h. */
#include "client/connection/session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/device.h"

enum {
    ARENA_PIECE_BYTES = 4 << 20
}; /* a system call for each; a larger piece would allocate memory in vain */

struct session_page *session_page(const struct session *s)
{
    return s->page_extent ? extent_data(s->page_extent) : NULL;
}

void session_deinit(struct session *s)
{
    s->page_extent = extent_free(s->page_extent);
    s->arena_extent = extent_free(s->arena_extent);
    arena_deinit(&s->arena);
}

int session_import(struct session *s, int page_fd, uint64_t page_bytes, int arena_fd, uint64_t arena_bytes,
                   struct errmsg *e)
{
    _cleanup_(closep) int page = page_fd, arena = arena_fd;
    _cleanup_(session_deinit) struct session new = {.page_extent = NULL};
    int r;

    if (s->page_extent)
        return 0;
    if (page_bytes != SESSION_PAGE_BYTES || arena_bytes > SIZE_MAX)
        return fail(e, -EPROTO, "kvcobrad sent a session page of %" PRIu64 " bytes", page_bytes);

    r = extent_import(take_fd(&page), (size_t) page_bytes, EXTENT_READ_WRITE, &new.page_extent, e);
    if (r < 0)
        return r;

    r = extent_allocate(extent_fd(new.page_extent), 0, SESSION_PAGE_BYTES);
    if (r < 0)
        return fail(e, -ENOMEM, "cannot allocate the session page: %s", strerror(-r));

    r = extent_import(take_fd(&arena), (size_t) arena_bytes, EXTENT_READ_WRITE, &new.arena_extent, e);
    if (r < 0)
        return r;
    if (arena_init(&new.arena, (size_t) arena_bytes) < 0)
        return fail(e, -ENOMEM, "out of memory while mapping the arena");

    session_deinit(s);
    *s = new;
    new = (struct session){.page_extent = NULL};
    return 0;
}

int session_arena_take(struct session *s, size_t bytes, size_t *ret_off)
{
    size_t off, end, piece;

    if (!arena_take(&s->arena, bytes, &off))
        return -ENOSPC;

    end = off + bytes;
    if (end > s->arena_allocated) { /* the allocator takes low places first, so the rest was never used */
        piece = (end - s->arena_allocated + ARENA_PIECE_BYTES - 1) / ARENA_PIECE_BYTES * ARENA_PIECE_BYTES;
        if (piece > s->arena.bytes - s->arena_allocated)
            piece = s->arena.bytes - s->arena_allocated;
        if (extent_allocate(extent_fd(s->arena_extent), s->arena_allocated, piece) < 0) {
            arena_give(&s->arena, off, bytes);
            return -ENOMEM;
        }
        s->arena_allocated += piece;
    }

    *ret_off = off;
    return 0;
}
