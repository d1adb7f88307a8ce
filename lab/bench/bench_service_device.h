/*
 * The device of a scenario's pages and vectors: the host's memory or a GPU. Scenarios of `kvcobra bench
 * service` use this interface for both.
 *
 * On the host, "device" memory is plain memory and extents are mapped files. A GPU's driver does not survive
 * fork(): a process must not open a device before it forks processes that do. One thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"

struct errmsg;
struct service_options;

#define BENCH_UUID_CHARS 48
#define BENCH_EXTENTS_MAX 64

struct bench_gpu { /* the GPU; "" for the host's memory */
    char uuid[BENCH_UUID_CHARS], name[96];
    bool is_standin; /* the driver of the tests runs kernels on the CPU: no times of a GPU */
};

struct bench_extent {
    uint64_t id;
    size_t bytes;
    uint8_t *host;           /* read-only */
    struct cuda_extent *gpu; /* NULL: on the host */
};

struct bench_device {
    struct bench_gpu gpu;
    struct cuda_driver *driver; /* NULL: the host's memory */
    struct cuda_space *space;
    struct bench_extent extents[BENCH_EXTENTS_MAX];
    size_t n_extents;
};

#define BENCH_STANDIN_NOTE                                                                                   \
    "This is the tests' stand-in for the driver: it shows that the bench works. No number here is from a "   \
    "GPU."

/**
 * bench_device_find() - find the GPU for a bench
 * @gpu:     a UUID, or "first"
 * @kernels: whether this build must have kernels for it, as sequences need
 *
 * Searches in a child process, so that this one may still fork others. Return: 0; a negative errno with a
 * sentence that names the missing part: the driver, the GPU, kernels.
 */
int bench_device_find(const char *gpu, bool kernels, struct bench_gpu *ret, struct errmsg *e);

/* @gpu: from bench_device_find(), or NULL: the host's memory. Return: 0; a negative errno with a sentence. */
int bench_device_open(struct bench_device *p, const struct bench_gpu *gpu, struct errmsg *e);
/* After all memory of @p is freed. Accepts zeros. Usable with _cleanup_. */
void bench_device_close(struct bench_device *p);

static inline bool bench_device_is_gpu(const struct bench_device *p)
{
    return p && p->driver;
}

/* A client with sequences on the device. @socket: NULL: embedded. Return: 0; a negative errno with a
 * sentence.
 */
int bench_device_client(const struct bench_device *p, const char *socket, kvc_client **ret_client,
                        struct errmsg *e);

/* Waits until the client's queued work on a GPU is done. Returns like kvc_client_synchronize(). */
int bench_device_finish(const struct bench_device *p, kvc_client *c);

/* Memory for append and read: uninitialised, copied to, copied from. All are synchronous. Return: 0; a
 * negative errno with a sentence. */
int bench_device_new(struct bench_device *p, size_t bytes, void **ret_at, struct errmsg *e);
void *bench_device_free(struct bench_device *p, void *at); /* accepts NULL. Returns NULL */
int bench_device_upload(struct bench_device *p, void *at, const void *from, size_t bytes, struct errmsg *e);
int bench_device_download(struct bench_device *p, void *to, const void *at, size_t bytes, struct errmsg *e);

/* ---- extents of a daemon's pool ---- */

/* NULL: not mapped. */
struct bench_extent *bench_device_extent(struct bench_device *p, uint64_t id);
/* @fd: transferred. Mapped until bench_device_forget(). Return: 0; a negative errno with a sentence. */
int bench_device_map(struct bench_device *p, uint64_t id, int fd, size_t bytes, struct bench_extent **ret,
                     struct errmsg *e);
void bench_device_forget(struct bench_device *p);
int bench_device_read(const struct bench_extent *x, size_t offset, void *to, size_t n, struct errmsg *e);
/* Only on a GPU: the host's pages are written by the daemon. */
int bench_device_write(const struct bench_extent *x, size_t offset, const void *from, size_t n,
                       struct errmsg *e);

/* ---- a daemon with the device ---- */

struct bench_device_arguments {
    char gpu[BENCH_UUID_CHARS + 8], mover[4096 + 16];
    const char *list[8]; /* ends with NULL; empty for the host's memory */
};

/* Options of a kvcobrad with a pool of 1 GiB on @o's device, or of 48 MiB for a quick run. */
void bench_device_arguments(const struct service_options *o, struct bench_device_arguments *ret);
