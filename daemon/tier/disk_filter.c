/* See disk_filter.h. */
#include "daemon/tier/disk_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/device.h"

enum { REMOVED_MIN = 1024 }; /* keys that must be gone before a filter is made anew for their sake */

void disk_filters_init(struct disk_filters *f)
{
    *f = (struct disk_filters){.list = NULL};
    (void) pthread_mutex_init(&f->lock, NULL);
}

/* Clients that keep the object open read zeros. Called without the lock: freeing megabytes takes a while. */
static void disk_filter_end_memory(struct extent *memory)
{
    if (!memory)
        return;
    extent_discard(memory, 0, extent_bytes(memory));
    (void) extent_free(memory);
}

void disk_filters_deinit(struct disk_filters *f)
{
    disk_filters_drop(f, NULL);
    (void) pthread_mutex_destroy(&f->lock);
}

/* Called with the lock held. */
static struct disk_filter *disk_filter_find(const struct disk_filters *f, const char *tenant)
{
    struct disk_filter *x = f->list;

    while (x && strcmp(x->tenant, tenant) != 0)
        x = x->next;
    return x;
}

int disk_filter_new(const char *tenant, uint64_t n_keys, struct disk_filter **ret, struct errmsg *e)
{
    size_t bytes = bloom_object_bytes(n_keys);
    struct disk_filter *x = calloc(1, sizeof(*x));
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory for the filter of %s", tenant);

    r = extent_new("kvc-tier-filter", bytes, EXTENT_READ, &x->memory, e);
    if (r < 0) {
        free(x);
        return r;
    }

    (void) snprintf(x->tenant, sizeof(x->tenant), "%s", tenant);
    bloom_writer_init(&x->writer, extent_data(x->memory), bytes);
    *ret = x;
    return 0;
}

void disk_filter_add(struct disk_filter *x, const struct chunk_key *key)
{
    bloom_add(&x->writer, key);
}

/* Takes the filter of @tenant, NULL: the first one, out of the list; called with the lock held. */
static struct disk_filter *disk_filter_take(struct disk_filters *f, const char *tenant)
{
    struct disk_filter **link = &f->list, *x;

    while (*link && tenant && strcmp((*link)->tenant, tenant) != 0)
        link = &(*link)->next;
    x = *link;
    if (x) {
        *link = x->next;
        bloom_mark_moved(&x->writer);
    }
    return x;
}

static void disk_filter_free(struct disk_filter *x)
{
    if (x)
        disk_filter_end_memory(x->memory);
    free(x);
}

void disk_filters_put(struct disk_filters *f, struct disk_filter *x)
{
    struct disk_filter *old;

    (void) pthread_mutex_lock(&f->lock);
    old = disk_filter_take(f, x->tenant);
    x->object = ++f->last_object;
    x->next = f->list;
    f->list = x;
    (void) pthread_mutex_unlock(&f->lock);
    disk_filter_free(old);
}

void disk_filters_add(struct disk_filters *f, const char *tenant, const struct chunk_key *key)
{
    struct disk_filter *x;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x)
        bloom_add(&x->writer, key);
    (void) pthread_mutex_unlock(&f->lock);
}

void disk_filters_removed(struct disk_filters *f, const char *tenant, uint64_t n_keys)
{
    struct disk_filter *x;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x)
        x->n_removed += n_keys;
    (void) pthread_mutex_unlock(&f->lock);
}

bool disk_filters_is_worn(struct disk_filters *f, const char *tenant)
{
    const struct disk_filter *x;
    bool worn;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    worn = !x || x->writer.n_added >= bloom_capacity(&x->writer) ||
           (x->n_removed >= REMOVED_MIN && x->n_removed > x->writer.n_added / 2);
    (void) pthread_mutex_unlock(&f->lock);
    return worn;
}

void disk_filters_drop(struct disk_filters *f, const char *tenant)
{
    struct disk_filter *x;

    do {
        (void) pthread_mutex_lock(&f->lock);
        x = disk_filter_take(f, tenant);
        (void) pthread_mutex_unlock(&f->lock);
        disk_filter_free(x);
    } while (x);
}

int disk_filters_open(struct disk_filters *f, const char *tenant, int *ret_fd, size_t *ret_bytes,
                      uint64_t *ret_object)
{
    const struct disk_filter *x;
    int fd, r = -ENOENT;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x) {
        fd = fcntl(extent_fd(x->memory), F_DUPFD_CLOEXEC, 3);
        r = fd < 0 ? -errno : 0;
        if (r == 0) {
            *ret_fd = fd;
            *ret_bytes = extent_bytes(x->memory);
            *ret_object = x->object;
        }
    }
    (void) pthread_mutex_unlock(&f->lock);
    return r;
}

uint64_t disk_filters_object(struct disk_filters *f, const char *tenant)
{
    const struct disk_filter *x;
    uint64_t object;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    object = x ? x->object : 0;
    (void) pthread_mutex_unlock(&f->lock);
    return object;
}

bool disk_filters_has(struct disk_filters *f, const char *tenant, const struct chunk_key *key)
{
    struct bloom_reader reader;
    const struct disk_filter *x;
    bool has = false;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x && bloom_reader_init(&reader, x->writer.object, extent_bytes(x->memory), NULL) == 0)
        has = bloom_lookup(&reader, key) == BLOOM_PROBABLY;
    (void) pthread_mutex_unlock(&f->lock);
    return has;
}
