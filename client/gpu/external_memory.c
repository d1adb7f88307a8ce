/*
 * Lending memory of the caller's to the pool on a GPU. It is cleared, exported by its handle, and offered to
 * the daemon; pages of this client in it are used where they are (extents.c finds them by the handle). The
 * record of it is made before the daemon is asked and kept when the answer is lost: the daemon may have taken
 * it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "client/connection/client.h"
#include "client/connection/reconnect.h"

static int external_memory_check_arguments(struct kvc_client *c, cu_ptr at, size_t bytes)
{
    if (at == 0)
        return fail(&c->error, -EINVAL, "kvc_client_lend: device_memory is NULL");
    if (bytes != c->connection.extent_bytes)
        return fail(&c->error, -EINVAL,
                    "%zu bytes cannot be lent: kvcobrad's extents on %s have %" PRIu64
                    " (--gpu-extent-bytes)",
                    bytes, c->gpu->uuid, c->connection.extent_bytes);
    for (const struct lent_memory *l = c->extents.lent; l; l = l->next)
        if (l->at == at)
            return fail(&c->error, -EEXIST,
                        "this memory was lent already: pages of others may lie in it as long as the client "
                        "exists");
    return 0;
}

/* What was there is nobody else's to see. */
static int external_memory_clear(struct gpu *g, cu_ptr at, size_t bytes, struct errmsg *e)
{
    int r = gpu_enter(g, e);

    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->fill_async(at, 0, bytes, g->stream), e,
                      "cannot clear memory before it is lent");
    cuda_space_leave(g->space);
    return r < 0 ? r : gpu_synchronize(g, e);
}

static int external_memory_offer(struct kvc_client *c, const struct lent_memory *l)
{
    Kvcobra__LendExtent lend = KVCOBRA__LEND_EXTENT__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r;

    lend.ipc_handle = (ProtobufCBinaryData){sizeof(l->handle.bytes), (uint8_t *) l->handle.bytes};
    lend.bytes = l->bytes;
    request.body_case = KVCOBRA__REQUEST__BODY_LEND_EXTENT;
    request.lend_extent = &lend;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_LEND_EXTENT, &reply,
                           &c->error);
    if (r == 0)
        reply_free(&reply);
    return r;
}

static int external_memory_lend(struct kvc_client *c, cu_ptr at, size_t bytes)
{
    struct lent_memory *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return fail(&c->error, -ENOMEM, "out of memory while lending");
    *l = (struct lent_memory){.next = c->extents.lent, .at = at, .bytes = bytes};
    r = gpu_result(c->gpu, cuda_legacy_export(c->gpu->space, at, bytes, &l->handle, &c->error), &c->error);
    if (r == 0)
        r = external_memory_clear(c->gpu, at, bytes, &c->error);
    if (r < 0) {
        free(l);
        return r;
    }
    c->extents.lent = l;
    r = external_memory_offer(c, l);
    if (r < 0 && connection_is_open(&c->connection)) { /* it was refused */
        c->extents.lent = l->next;
        free(l);
    }
    return r;
}

int kvc_client_lend(kvc_client *c, void *device_memory, size_t bytes)
{
    cu_ptr at = (cu_ptr) (uintptr_t) device_memory;
    int r = c ? client_enter(c) : -EINVAL;

    if (r < 0)
        return r;
    if (!c->gpu)
        return fail(&c->error, -EINVAL,
                    "kvc_client_lend: this client has no GPU: call kvc_client_set_gpu() first");
    r = gpu_check_not_capturing(c->gpu, &c->error);
    if (r == 0)
        r = client_revive(c);
    if (r == 0)
        r = external_memory_check_arguments(c, at, bytes);
    return r < 0 ? r : external_memory_lend(c, at, bytes);
}
