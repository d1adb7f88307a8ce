/* Memory of the host or of a GPU; see bench_service_device.h. */
#include "client/kvcobra-gpu.h"
#include "lab/bench/bench_service_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/extent.h"
#include "lab/bench/bench_service.h"
#include "lab/bench/bench_service_clients.h"
#include "tools/command/client_model.h"

#define SPACE_BYTES ((size_t) 2 << 30) /* addresses for a pool's extents */

/* ---- search ---- */

struct service_device_search {
    const char *gpu;
    bool kernels;
    struct bench_gpu found;
};

static int service_device_set_gpu(kvc_client *c, const char *uuid, struct errmsg *e)
{
    int r = kvc_client_set_gpu(c, &(kvc_gpu_options){.struct_bytes = sizeof(kvc_gpu_options), .uuid = uuid});

    return r < 0 ? fail(e, r, "%s", kvc_last_error(c)) : 0;
}

static int service_device_search_run(void *ctx, unsigned number, struct errmsg *e)
{
    struct service_device_search *s = ctx;
    const char *uuid = strcmp(s->gpu, "first") == 0 ? NULL : s->gpu;
    _cleanup_(cuda_driver_closep) struct cuda_driver *driver = NULL;
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct cuda_device_info info;
    int r;

    (void) number;
    r = cuda_driver_open(&driver, e);
    if (r < 0)
        return r;

    r = cuda_device_find(driver, uuid, &info, e);
    if (r < 0)
        return r;

    if (s->kernels) {
        r = client_open(NULL, &c, e);
        if (r < 0)
            return r;

        r = service_device_set_gpu(c, uuid, e);
        if (r < 0)
            return r;
    }

    cuda_uuid_format(&info.uuid, s->found.uuid);
    (void) snprintf(s->found.name, sizeof(s->found.name), "%s", info.name);
    s->found.is_standin = strncmp(info.name, "stand-in", strlen("stand-in")) == 0;
    return 0;
}

int bench_device_find(const char *gpu, bool kernels, struct bench_gpu *ret, struct errmsg *e)
{
    struct service_device_search *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    _cleanup_(bench_clients_deinit) struct bench_clients clients = {.state = NULL};
    int r;

    if (s == MAP_FAILED)
        return fail(e, -ENOMEM, "out of memory");

    s->gpu = gpu;
    s->kernels = kernels;
    r = bench_clients_init(&clients, e);
    if (r == 0)
        r = bench_clients_add(&clients, service_device_search_run, s, e);
    if (r == 0)
        r = bench_clients_finish(&clients, e);
    if (r == 0)
        *ret = s->found;
    (void) munmap(s, sizeof(*s));
    return r;
}

/* ---- opening ---- */

int bench_device_open(struct bench_device *p, const struct bench_gpu *gpu, struct errmsg *e)
{
    struct cuda_device_info info;
    int r;

    *p = (struct bench_device){.driver = NULL};
    if (!gpu)
        return 0;

    p->gpu = *gpu;
    r = cuda_driver_open(&p->driver, e);
    if (r == 0)
        r = cuda_device_find(p->driver, gpu->uuid, &info, e);
    if (r == 0)
        r = cuda_space_new(p->driver, &info, SPACE_BYTES, &p->space, e);
    if (r < 0)
        bench_device_close(p);
    return r;
}

void bench_device_close(struct bench_device *p)
{
    bench_device_forget(p);
    p->space = cuda_space_free(p->space);
    p->driver = cuda_driver_close(p->driver);
}

int bench_device_client(const struct bench_device *p, const char *socket, kvc_client **ret_client,
                        struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    int r;

    if (!bench_device_is_gpu(p))
        return client_open(socket, ret_client, e);

    r = client_open(NULL, &c, e);
    if (r < 0)
        return r;

    r = service_device_set_gpu(c, p->gpu.uuid, e);
    if (r < 0)
        return r;

    r = socket ? kvc_client_connect(c, socket) : 0;
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    *ret_client = take_ptr(c);
    return 0;
}

int bench_device_finish(const struct bench_device *p, kvc_client *c)
{
    return bench_device_is_gpu(p) ? kvc_client_synchronize(c) : 0;
}

/* ---- memory ---- */

static cu_ptr service_device_address(const void *at)
{
    return (cu_ptr) (uintptr_t) at;
}

/* Ends a call of the driver that cuda_space_enter() began. */
static int service_device_leave(const struct bench_device *p, cu_result result, struct errmsg *e,
                                const char *what)
{
    int r = result == CU_SUCCESS ? 0 : cuda_fail(p->driver, result, e, what);

    cuda_space_leave(p->space);
    return r;
}

int bench_device_new(struct bench_device *p, size_t bytes, void **ret_at, struct errmsg *e)
{
    cu_ptr at = 0;
    int r;

    if (!bench_device_is_gpu(p)) {
        *ret_at = malloc(bytes);
        return *ret_at ? 0 : fail(e, -ENOMEM, "out of memory for %zu bytes", bytes);
    }

    r = cuda_space_enter(p->space, e);
    if (r < 0)
        return r;

    r = service_device_leave(p, p->driver->mem_alloc(&at, bytes), e,
                             "cannot allocate GPU memory for vectors");
    if (r < 0)
        return r;

    *ret_at = (void *) (uintptr_t) at;
    return 0;
}

void *bench_device_free(struct bench_device *p, void *at)
{
    if (!bench_device_is_gpu(p))
        free(at);
    else if (at && cuda_space_enter(p->space, NULL) == 0)
        (void) service_device_leave(p, p->driver->mem_free(service_device_address(at)), NULL,
                                    "cannot free GPU memory");
    return NULL;
}

int bench_device_upload(struct bench_device *p, void *at, const void *from, size_t bytes, struct errmsg *e)
{
    int r = 0;

    if (!bench_device_is_gpu(p))
        memcpy(at, from, bytes);
    else if ((r = cuda_space_enter(p->space, e)) == 0)
        r = service_device_leave(p, p->driver->copy_to_device(service_device_address(at), from, bytes), e,
                                 "cannot copy vectors to the GPU");
    return r;
}

int bench_device_download(struct bench_device *p, void *to, const void *at, size_t bytes, struct errmsg *e)
{
    int r = 0;

    if (!bench_device_is_gpu(p))
        memcpy(to, at, bytes);
    else if ((r = cuda_space_enter(p->space, e)) == 0)
        r = service_device_leave(p, p->driver->copy_to_host(to, service_device_address(at), bytes), e,
                                 "cannot copy vectors from the GPU");
    return r;
}

/* ---- extents ---- */

struct bench_extent *bench_device_extent(struct bench_device *p, uint64_t id)
{
    for (size_t i = 0; i < p->n_extents; i++)
        if (p->extents[i].id == id)
            return &p->extents[i];
    return NULL;
}

int bench_device_map(struct bench_device *p, uint64_t id, int fd_transferred, size_t bytes,
                     struct bench_extent **ret, struct errmsg *e)
{
    _cleanup_(closep) int fd = fd_transferred;
    struct bench_extent x = {.id = id, .bytes = bytes};
    int r = 0;

    if (p->n_extents == BENCH_EXTENTS_MAX)
        return fail(e, -E2BIG, "the pool has more than %u extents", BENCH_EXTENTS_MAX);
    if (bench_device_is_gpu(p)) {
        r = cuda_extent_import(p->space, take_fd(&fd), bytes, CU_ACCESS_READ_WRITE, &x.gpu, e);
    } else {
        x.host = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (x.host == MAP_FAILED)
            r = fail(e, -EIO, "cannot map an extent of the pool: %s", strerror(errno));
    }

    if (r < 0)
        return r;

    p->extents[p->n_extents] = x;
    *ret = &p->extents[p->n_extents++];
    return 0;
}

void bench_device_forget(struct bench_device *p)
{
    while (p->n_extents > 0) {
        struct bench_extent *x = &p->extents[--p->n_extents];

        x->gpu = cuda_extent_free(x->gpu);
        if (x->host)
            (void) munmap(x->host, x->bytes);
    }
}

int bench_device_read(const struct bench_extent *x, size_t offset, void *to, size_t n, struct errmsg *e)
{
    if (x->gpu)
        return cuda_extent_read(x->gpu, offset, to, n, e);
    if (offset > x->bytes || n > x->bytes - offset)
        return fail(e, -EINVAL, "a page ends beyond its extent");

    memcpy(to, x->host + offset, n);
    return 0;
}

int bench_device_write(const struct bench_extent *x, size_t offset, const void *from, size_t n,
                       struct errmsg *e)
{
    return cuda_extent_write(x->gpu, offset, from, n, e);
}

/* ---- a daemon ---- */

void bench_device_arguments(const struct service_options *o, struct bench_device_arguments *ret)
{
    size_t n = 0;

    *ret = (struct bench_device_arguments){.list = {NULL}};
    if (!o->device)
        return;

    (void) snprintf(ret->gpu, sizeof(ret->gpu), "--gpu=%s", o->device->uuid);
    (void) snprintf(ret->mover, sizeof(ret->mover), "--mover=%s", o->mover);
    ret->list[n++] = ret->gpu;
    ret->list[n++] = ret->mover;
    ret->list[n++] = "--gpu-quota-bytes=2G"; /* the pool is the limit */
    ret->list[n++] = o->quick ? "--gpu-pool-bytes=48M" : "--gpu-pool-bytes=1G";
    if (o->quick)
        ret->list[n++] = "--gpu-extent-bytes=4M";
    ret->list[n] = NULL;
}
