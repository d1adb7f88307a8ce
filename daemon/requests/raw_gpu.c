/* See raw_gpu.h. */
#include "daemon/requests/raw_gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/errmsg.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/account.h"
#include "daemon/store/device.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/store.h"
#include "daemon/store/tenant_types.h"
#include "gpu/device.h"

enum { COPY_MS = 30000 }; /* a copy takes a millisecond, but the mover may have to open the device first */

int raw_gpu_stage_init(struct request *rq, const struct page_handle *h, struct raw_stage *ret_stage)
{
    struct account *account = rq->tenant->account;
    struct extent *memory;
    size_t bytes;
    int r;

    if (!account_may_take(account->n_raw_stages, rq->server->raw->n_stages, RAW_STAGES_MAX, RAW_STAGES_MAX))
        return fail(
            &rq->error, -EAGAIN,
            "%" PRIu32 " pages are being copied to and from GPUs, %" PRIu32
            " of them of tenant %s; the maximum is %d, less what is left for other tenants: retry later",
            rq->server->raw->n_stages, account->n_raw_stages, account->name, RAW_STAGES_MAX);
    if (!checked_align(h->group->page_bytes, (size_t) sysconf(_SC_PAGESIZE), &bytes))
        return fail(&rq->error, -EOVERFLOW, "a page of too many bytes");

    r = extent_new("kvc-raw-stage", bytes, EXTENT_READ_WRITE, &memory, &rq->error);
    if (r < 0)
        return r;

    rq->server->raw->n_stages++;
    account->n_raw_stages++;
    *ret_stage = (struct raw_stage){
        .server = rq->server,
        .account = account_ref(account),
        .memory = memory,
        .device = rq->tenant->device->number,
        .gpu_fd = h->span->extent->gpu_fd,
        .offset = pool_slot_offset(&rq->store->pool, h),
        .page_bytes = h->group->page_bytes,
        .extent_bytes = rq->store->pool.extent_bytes,
    };
    return 0;
}

void raw_gpu_stage_deinit(struct raw_stage *s)
{
    if (!s->memory)
        return;

    host_memory_free(s->server->memory, s->memory, false, NULL);
    s->memory = NULL;
    s->server->raw->n_stages--;
    s->account->n_raw_stages--;
    s->account = account_unref(s->account);
}

uint8_t *raw_gpu_stage_data(const struct raw_stage *s)
{
    return extent_data(s->memory);
}

int raw_gpu_stage_copy(const struct raw_stage *s, bool to_gpu, mover_done done, void *ctx, struct errmsg *e)
{
    Kvcobra__MoverCopy copy = KVCOBRA__MOVER_COPY__INIT;
    Kvcobra__MoverRequest request = KVCOBRA__MOVER_REQUEST__INIT;
    int fds[] = {s->gpu_fd, extent_fd(s->memory)};
    int r;

    copy.device = s->device;
    copy.extent_bytes = s->extent_bytes;
    copy.offset = s->offset;
    copy.bytes = s->page_bytes;
    copy.to_extent = to_gpu;
    request.body_case = KVCOBRA__MOVER_REQUEST__BODY_COPY;
    request.copy = &copy;
    r = mover_ask(s->server->gpus->mover, &request, fds, 2, COPY_MS, done, ctx);
    return r < 0 ? fail(e, -EAGAIN,
                        "kvcobra-mover, which copies pages of GPUs, takes no request now (%s): retry later",
                        strerror(-r))
                 : 0;
}

int raw_gpu_stage_result(const struct mover_reply *reply, struct errmsg *e)
{
    if (reply->err == 0)
        return 0;
    return fail(e, reply->err == -ECONNRESET ? -EAGAIN : reply->err, "the page was not copied: %.300s",
                reply->message);
}
