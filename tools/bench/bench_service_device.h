/*
 * Where the pages and vectors of a scenario lie: in the host's memory or on a GPU. Scenarios of `kvcobra
 * bench service` are written once, over this.
 *
 * On the host "device" memory is plain memory and extents are mapped files. A GPU's driver does not survive
 * fork(): a process that forks others that open a place has not opened one itself. One thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"

struct errmsg;
struct service_options;

#define PLACE_UUID_CHARS 48
#define PLACE_EXTENTS_MAX 64

struct place_device { /* the GPU of a place; "" of the host's memory */
    char uuid[PLACE_UUID_CHARS], name[96];
    bool is_standin; /* the driver of the tests, which runs kernels on the CPU: its figures are none of a GPU
                      */
};

struct place_extent {
    uint64_t id;
    size_t bytes;
    uint8_t *host;           /* read-only */
    struct cuda_extent *gpu; /* NULL: of the host's memory */
};

struct place {
    struct place_device device;
    struct cuda_driver *driver; /* NULL: the host's memory */
    struct cuda_space *space;
    struct place_extent extents[PLACE_EXTENTS_MAX];
    size_t n_extents;
};

#define PLACE_STANDIN_NOTE                                                                                   \
    "This is the tests' stand-in for the driver: it shows that the bench works. No figure here is one of a " \
    "GPU."

/**
 * place_find() - the GPU that a bench is to use
 * @gpu:     a UUID, or "first"
 * @kernels: for sequences: there have to be kernels for it in this build
 *
 * Looks in a process of its own, so that this one may go on forking. Return: 0; a negative errno with a
 * sentence that says what is missing: the driver, the GPU, kernels.
 */
int place_find(const char *gpu, bool kernels, struct place_device *ret, struct errmsg *e);

/* @device: of place_find(), or NULL: the host's memory. Return: 0; a negative errno with a sentence. */
int place_open(struct place *p, const struct place_device *device, struct errmsg *e);
void place_close(struct place *p); /* its memory was given back; zeros are fine; right as a cleanup */

static inline bool place_is_gpu(const struct place *p)
{
    return p && p->driver;
}

/* A client whose sequences lie there. @socket: NULL = embedded. Return: 0; a negative errno with a sentence.
 */
int place_client(const struct place *p, const char *socket, kvc_client **ret_client, struct errmsg *e);

/* Until the client's work is done, as the calls of a client of the host's memory are when they return. As
 * kvc_client_synchronize(). */
int place_finish(const struct place *p, kvc_client *c);

/* Memory that append and read take there: undefined, copied to, copied from. All wait. 0; a negative errno
 * with a sentence. */
int place_new(struct place *p, size_t bytes, void **ret_at, struct errmsg *e);
void *place_free(struct place *p, void *at); /* NULL is fine. Returns NULL */
int place_put(struct place *p, void *at, const void *from, size_t bytes, struct errmsg *e);
int place_get(struct place *p, void *to, const void *at, size_t bytes, struct errmsg *e);

/* ---- extents of a daemon's pool ---- */

/* NULL: not mapped yet. */
struct place_extent *place_extent(struct place *p, uint64_t id);
/* @fd: transferred. Mapped until place_forget(). Return: 0; a negative errno with a sentence. */
int place_map(struct place *p, uint64_t id, int fd, size_t bytes, struct place_extent **ret,
              struct errmsg *e);
void place_forget(struct place *p);
int place_read(const struct place_extent *x, size_t offset, void *to, size_t n, struct errmsg *e);
/* On a GPU alone: the host's pages are the daemon's to write. */
int place_write(const struct place_extent *x, size_t offset, const void *from, size_t n, struct errmsg *e);

/* ---- a daemon that has the place ---- */

struct place_arguments {
    char gpu[PLACE_UUID_CHARS + 8], mover[4096 + 16];
    const char *list[8]; /* ends with NULL; no pointer for the host's memory */
};

/* Options of a kvcobrad with a pool of 1 GiB on @o's device, or of 48 MiB for a quick run. */
void place_arguments(const struct service_options *o, struct place_arguments *ret);
