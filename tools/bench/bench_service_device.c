/* Memory of the host or of a GPU; see bench_service_place.h. */
#include "tools/bench/bench_service_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/extent.h"
#include "tools/bench/bench_service.h"
#include "tools/bench/bench_service_clients.h"
#include "tools/command/handles.h"

#define SPACE_BYTES ((size_t) 2 << 30) /* addresses for a pool's extents */

/* ---- which GPU ---- */

struct service_device_search {
    const char *gpu;
    bool kernels;
    struct place_device found;
};

static int service_device_set_gpu(kvc_client *c, const char *uuid, struct errmsg *e)
{
    int r = kvc_client_set_gpu(c, &(kvc_gpu_options){.struct_bytes = sizeof(kvc_gpu_options), .uuid = uuid});

    return r < 0 ? fail(e, r, "%s", kvc_last_error(c)) : 0;
}

static int service_device_look(void *ctx, unsigned number, struct errmsg *e)
{
    struct service_device_search *s = ctx;
    const char *uuid = strcmp(s->gpu, "first") == 0 ? NULL : s->gpu;
    _cleanup_(cuda_driver_closep) struct cuda_driver *driver = NULL;
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct cuda_device_info info;
    int r = cuda_driver_open(&driver, e);

    (void) number;
    if (r == 0)
        r = cuda_device_find(driver, uuid, &info, e);
    if (r == 0 && s->kernels)
        r = client_open(NULL, &c, e);
    if (r == 0 && s->kernels)
        r = service_device_set_gpu(c, uuid, e);
    if (r < 0)
        return r;
    cuda_uuid_format(&info.uuid, s->found.uuid);
    (void) snprintf(s->found.name, sizeof(s->found.name), "%s", info.name);
    s->found.is_standin = strncmp(info.name, "stand-in", strlen("stand-in")) == 0;
    return 0;
}

int place_find(const char *gpu, bool kernels, struct place_device *ret, struct errmsg *e)
{
    struct service_device_search *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    _cleanup_(crew_deinit) struct crew crew = {.state = NULL};
    int r;

    if (s == MAP_FAILED)
        return fail(e, -ENOMEM, "out of memory");
    s->gpu = gpu;
    s->kernels = kernels;
    r = crew_init(&crew, e);
    if (r == 0)
        r = crew_add(&crew, service_device_look, s, e);
    if (r == 0)
        r = crew_finish(&crew, e);
    if (r == 0)
        *ret = s->found;
    (void) munmap(s, sizeof(*s));
    return r;
}

/* ---- a place ---- */

int place_open(struct place *p, const struct place_device *device, struct errmsg *e)
{
    struct cuda_device_info info;
    int r;

    *p = (struct place){.driver = NULL};
    if (!device)
        return 0;
    p->device = *device;
    r = cuda_driver_open(&p->driver, e);
    if (r == 0)
        r = cuda_device_find(p->driver, device->uuid, &info, e);
    if (r == 0)
        r = cuda_space_new(p->driver, &info, SPACE_BYTES, &p->space, e);
    if (r < 0)
        place_close(p);
    return r;
}

void place_close(struct place *p)
{
    place_forget(p);
    p->space = cuda_space_free(p->space);
    p->driver = cuda_driver_close(p->driver);
}

int place_client(const struct place *p, const char *socket, kvc_client **ret_client, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    int r;

    if (!place_is_gpu(p))
        return client_open(socket, ret_client, e);
    r = client_open(NULL, &c, e);
    if (r == 0)
        r = service_device_set_gpu(c, p->device.uuid, e);
    if (r < 0)
        return r;
    r = socket ? kvc_client_connect(c, socket) : 0;
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));
    *ret_client = take_ptr(c);
    return 0;
}

int place_finish(const struct place *p, kvc_client *c)
{
    return place_is_gpu(p) ? kvc_client_synchronize(c) : 0;
}

/* ---- memory ---- */

static cu_ptr service_device_address(const void *at)
{
    return (cu_ptr) (uintptr_t) at;
}

/* Ends a call of the driver that cuda_space_enter() began. */
static int service_device_left(const struct place *p, cu_result result, struct errmsg *e, const char *what)
{
    int r = result == CU_SUCCESS ? 0 : cuda_fail(p->driver, result, e, what);

    cuda_space_leave(p->space);
    return r;
}

int place_new(struct place *p, size_t bytes, void **ret_at, struct errmsg *e)
{
    cu_ptr at = 0;
    int r;

    if (!place_is_gpu(p)) {
        *ret_at = malloc(bytes);
        return *ret_at ? 0 : fail(e, -ENOMEM, "out of memory for %zu bytes", bytes);
    }
    r = cuda_space_enter(p->space, e);
    if (r == 0)
        r = service_device_left(p, p->driver->mem_alloc(&at, bytes), e,
                                "cannot allocate GPU memory for vectors");
    if (r == 0)
        *ret_at = (void *) (uintptr_t) at;
    return r;
}

void *place_free(struct place *p, void *at)
{
    if (!place_is_gpu(p))
        free(at);
    else if (at && cuda_space_enter(p->space, NULL) == 0)
        (void) service_device_left(p, p->driver->mem_free(service_device_address(at)), NULL,
                                   "cannot give GPU memory back");
    return NULL;
}

int place_put(struct place *p, void *at, const void *from, size_t bytes, struct errmsg *e)
{
    int r = 0;

    if (!place_is_gpu(p))
        memcpy(at, from, bytes);
    else if ((r = cuda_space_enter(p->space, e)) == 0)
        r = service_device_left(p, p->driver->copy_to_device(service_device_address(at), from, bytes), e,
                                "cannot copy vectors to the GPU");
    return r;
}

int place_get(struct place *p, void *to, const void *at, size_t bytes, struct errmsg *e)
{
    int r = 0;

    if (!place_is_gpu(p))
        memcpy(to, at, bytes);
    else if ((r = cuda_space_enter(p->space, e)) == 0)
        r = service_device_left(p, p->driver->copy_to_host(to, service_device_address(at), bytes), e,
                                "cannot copy vectors from the GPU");
    return r;
}

/* ---- extents ---- */

struct place_extent *place_extent(struct place *p, uint64_t id)
{
    for (size_t i = 0; i < p->n_extents; i++)
        if (p->extents[i].id == id)
            return &p->extents[i];
    return NULL;
}

int place_map(struct place *p, uint64_t id, int fd_transferred, size_t bytes, struct place_extent **ret,
              struct errmsg *e)
{
    _cleanup_(closep) int fd = fd_transferred;
    struct place_extent x = {.id = id, .bytes = bytes};
    int r = 0;

    if (p->n_extents == PLACE_EXTENTS_MAX)
        return fail(e, -E2BIG, "a pool of more than %u extents", PLACE_EXTENTS_MAX);
    if (place_is_gpu(p)) {
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

void place_forget(struct place *p)
{
    while (p->n_extents > 0) {
        struct place_extent *x = &p->extents[--p->n_extents];

        x->gpu = cuda_extent_free(x->gpu);
        if (x->host)
            (void) munmap(x->host, x->bytes);
    }
}

int place_read(const struct place_extent *x, size_t offset, void *to, size_t n, struct errmsg *e)
{
    if (x->gpu)
        return cuda_extent_read(x->gpu, offset, to, n, e);
    if (offset > x->bytes || n > x->bytes - offset)
        return fail(e, -EINVAL, "a page lies beyond the end of its extent");
    memcpy(to, x->host + offset, n);
    return 0;
}

int place_write(const struct place_extent *x, size_t offset, const void *from, size_t n, struct errmsg *e)
{
    return cuda_extent_write(x->gpu, offset, from, n, e);
}

/* ---- a daemon ---- */

void place_arguments(const struct service_options *o, struct place_arguments *ret)
{
    size_t n = 0;

    *ret = (struct place_arguments){.list = {NULL}};
    if (!o->device)
        return;
    (void) snprintf(ret->gpu, sizeof(ret->gpu), "--gpu=%s", o->device->uuid);
    (void) snprintf(ret->mover, sizeof(ret->mover), "--mover=%s", o->mover);
    ret->list[n++] = ret->gpu;
    ret->list[n++] = ret->mover;
    ret->list[n++] = "--gpu-quota-bytes=2G"; /* the pool is what ends */
    ret->list[n++] = o->quick ? "--gpu-pool-bytes=48M" : "--gpu-pool-bytes=1G";
    if (o->quick)
        ret->list[n++] = "--gpu-extent-bytes=4M";
    ret->list[n] = NULL;
}
