/*
 * See external_memory.h. The memory is cleared, exported by its handle, and registered with the daemon. Its
 * record is made before the request and kept if the reply is lost: the daemon may have accepted the memory.
 */
#include "client/kvcobra-gpu.h"
#include "client/gpu/external_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "gpu/cuda/extent.h"

const struct external_memory *external_memory_find(const struct external_memory *first,
                                                   const uint8_t *handle_bytes)
{
    for (const struct external_memory *m = first; m; m = m->next)
        if (memcmp(m->handle.bytes, handle_bytes, sizeof(m->handle.bytes)) == 0)
            return m;
    return NULL;
}

void external_memory_deinit(struct external_memory **first)
{
    while (*first) {
        struct external_memory *m = *first;

        *first = m->next;
        free(m);
    }
}

/* ---- registering ---- */

static int external_memory_check_arguments(struct kvc_client *c, cu_ptr at, size_t bytes)
{
    if (at == 0)
        return fail(&c->error, -EINVAL, "kvc_client_lend: device_memory is NULL");
    if (bytes != c->connection.extent_bytes)
        return fail(&c->error, -EINVAL,
                    "%zu bytes cannot be registered: kvcobrad's extents on %s have %" PRIu64
                    " (--gpu-extent-bytes)",
                    bytes, c->gpu->uuid, c->connection.extent_bytes);

    for (const struct external_memory *m = c->gpu->external; m; m = m->next)
        if (m->at == at)
            return fail(&c->error, -EEXIST,
                        "this memory is registered already: it may hold other clients' pages until this "
                        "client is freed");

    return 0;
}

/* Zeroes the memory: its old contents must not reach other clients. */
static int external_memory_clear(struct gpu *g, cu_ptr at, size_t bytes, struct errmsg *e)
{
    int r = gpu_enter(g, e);

    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->fill_async(at, 0, bytes, g->stream), e, "cannot clear external memory");
    cuda_space_leave(g->space);

    return r < 0 ? r : gpu_synchronize(g, e);
}

static int external_memory_export(struct kvc_client *c, struct external_memory *m)
{
    struct gpu *g = c->gpu;
    int r = gpu_result(g, cuda_legacy_export(g->space, m->at, m->bytes, &m->handle, &c->error), &c->error);

    return r < 0 ? r : external_memory_clear(g, m->at, m->bytes, &c->error);
}

static int external_memory_send(struct kvc_client *c, const struct external_memory *m)
{
    Kvcobra__LendExtent lend = KVCOBRA__LEND_EXTENT__INIT;
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};

    lend.ipc_handle = (ProtobufCBinaryData){sizeof(m->handle.bytes), (uint8_t *) m->handle.bytes};
    lend.bytes = m->bytes;

    return connection_call(&c->connection, KVCOBRA__REQUEST__BODY_LEND_EXTENT, &lend,
                           KVCOBRA__REPLY__BODY_LEND_EXTENT, &reply, &c->error);
}

static int external_memory_register(struct kvc_client *c, cu_ptr at, size_t bytes)
{
    struct external_memory *m = calloc(1, sizeof(*m));
    int r;

    if (!m)
        return fail(&c->error, -ENOMEM, "out of memory while registering external memory");

    *m = (struct external_memory){.next = c->gpu->external, .at = at, .bytes = bytes};
    r = external_memory_export(c, m);
    if (r < 0) {
        free(m);
        return r;
    }

    c->gpu->external = m;
    r = external_memory_send(c, m);
    if (r < 0 && connection_is_open(&c->connection)) { /* the daemon refused it */
        c->gpu->external = m->next;
        free(m);
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
    if (r < 0)
        return r;

    r = client_revive(c);
    if (r < 0)
        return r;

    r = external_memory_check_arguments(c, at, bytes);
    if (r < 0)
        return r;

    return external_memory_register(c, at, bytes);
}
