/* See disk_filter.h. */
#include "daemon/tier/disk_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/device.h"

enum { REMOVED_MIN = 1024 }; /* keys that must be gone before a filter is made anew for their sake */

void disk_filters_init(struct disk_filters *f, uint32_t n_max)
{
    *f = (struct disk_filters){.list = NULL, .n_max = n_max};
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
    disk_filters_end(f);
    disk_filters_expire(f, UINT64_MAX);
    (void) pthread_mutex_destroy(&f->lock);
}

/* NULL: the tenant wants none. Called with the lock held. */
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
    x->is_known = true;
    bloom_writer_init(&x->writer, extent_data(x->memory), bytes);
    *ret = x;
    return 0;
}

void disk_filter_add(struct disk_filter *x, const struct chunk_key *key)
{
    bloom_add(&x->writer, key);
}

static void disk_filter_free(struct disk_filter *x)
{
    if (x)
        disk_filter_end_memory(x->memory);
    free(x);
}

/* The memory of a filter that ends; called with the lock held. The caller frees it without. */
static struct extent *disk_filter_take_memory(struct disk_filter *x)
{
    struct extent *memory = x->memory;

    if (memory)
        bloom_mark_moved(&x->writer);
    x->memory = NULL;
    return memory;
}

/* What is known of @x changes; called with the lock held. */
static void disk_filter_set_known(struct disk_filters *f, struct disk_filter *x, bool is_known)
{
    f->n_unknown += (uint32_t) x->is_known - (uint32_t) is_known;
    x->is_known = is_known;
}

void disk_filters_put(struct disk_filters *f, struct disk_filter *x)
{
    struct disk_filter *present;

    (void) pthread_mutex_lock(&f->lock);
    present = f->is_open ? disk_filter_find(f, x->tenant) : NULL;
    if (present) {
        struct extent *old = disk_filter_take_memory(present);

        present->memory = x->memory;
        present->writer = x->writer;
        present->object = ++f->last_object;
        present->n_removed = 0;
        disk_filter_set_known(f, present, true);
        x->memory = old;
    }
    (void) pthread_mutex_unlock(&f->lock);
    disk_filter_free(x);
}

/* Order of the tree of names. */
static int disk_filter_compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Without memory for the name, a tenant finds its pages on the disk when the next one is written. */
void disk_filters_note_tenant(struct disk_filters *f, const char *tenant)
{
    char *name = NULL;
    char **node;

    (void) pthread_mutex_lock(&f->lock);
    if (!tfind(tenant, &f->names, disk_filter_compare_names))
        name = strdup(tenant);
    node = name ? tsearch(name, &f->names, disk_filter_compare_names) : NULL;
    if (name && !node)
        free(name);
    (void) pthread_mutex_unlock(&f->lock);
}

/* Called with the lock held. */
static void disk_filter_forget_name(struct disk_filters *f, const char *tenant)
{
    char *const *node = tfind(tenant, &f->names, disk_filter_compare_names);
    char *name = node ? *node : NULL;

    if (!name)
        return;
    (void) tdelete(name, &f->names, disk_filter_compare_names);
    free(name);
}

void disk_filters_begin(struct disk_filters *f)
{
    (void) pthread_mutex_lock(&f->lock);
    f->is_open = true;
    (void) pthread_mutex_unlock(&f->lock);
}

void disk_filters_end(struct disk_filters *f)
{
    struct disk_filter *x;
    struct extent *memory;

    (void) pthread_mutex_lock(&f->lock);
    f->is_open = false;
    tdestroy(f->names, free);
    f->names = NULL;
    (void) pthread_mutex_unlock(&f->lock);
    do {
        memory = NULL;
        (void) pthread_mutex_lock(&f->lock);
        for (x = f->list; x && !memory; x = x->next) {
            memory = disk_filter_take_memory(x);
            disk_filter_set_known(f, x, false);
        }
        (void) pthread_mutex_unlock(&f->lock);
        disk_filter_end_memory(memory);
    } while (memory);
}

bool disk_filters_next(struct disk_filters *f, char ret_tenant[static TIER_TENANT_BYTES])
{
    const struct disk_filter *x;

    (void) pthread_mutex_lock(&f->lock);
    x = f->n_unknown > 0 ? f->list : NULL;
    while (x && x->is_known)
        x = x->next;
    if (x)
        (void) snprintf(ret_tenant, TIER_TENANT_BYTES, "%s", x->tenant);
    (void) pthread_mutex_unlock(&f->lock);
    return x != NULL;
}

/* ---- the tenants that want filters ---- */

/* Takes the first tenant without a session since @before_ms out of the list; called with the lock held. */
static struct disk_filter *disk_filter_take(struct disk_filters *f, uint64_t before_ms)
{
    struct disk_filter **link = &f->list, *x;

    while (*link && (*link)->wanted_ms >= before_ms)
        link = &(*link)->next;
    x = *link;
    if (!x)
        return NULL;

    *link = x->next;
    f->n--;
    disk_filter_set_known(f, x, true); /* so that it no longer counts */
    if (x->memory)
        bloom_mark_moved(&x->writer);
    return x;
}

void disk_filters_expire(struct disk_filters *f, uint64_t before_ms)
{
    struct disk_filter *x;

    do {
        (void) pthread_mutex_lock(&f->lock);
        x = disk_filter_take(f, before_ms);
        (void) pthread_mutex_unlock(&f->lock);
        disk_filter_free(x);
    } while (x);
}

/* The time of the tenant that had no session for longest; called with the lock held. */
static uint64_t disk_filter_oldest_ms(const struct disk_filters *f)
{
    uint64_t oldest_ms = UINT64_MAX;

    for (const struct disk_filter *x = f->list; x; x = x->next)
        if (x->wanted_ms < oldest_ms)
            oldest_ms = x->wanted_ms;
    return oldest_ms;
}

/* Adds @fresh, for which there may be no room. Return: what is to be freed. Called with the lock held. */
static struct disk_filter *disk_filter_insert(struct disk_filters *f, struct disk_filter *fresh)
{
    struct disk_filter *old = NULL;

    if (f->n >= f->n_max) {
        uint64_t oldest_ms = disk_filter_oldest_ms(f);

        old = oldest_ms < fresh->wanted_ms ? disk_filter_take(f, oldest_ms + 1) : NULL;
        if (!old)
            return fresh;
    }

    fresh->next = f->list;
    f->list = fresh;
    f->n++;
    fresh->is_known = f->is_open && !tfind(fresh->tenant, &f->names, disk_filter_compare_names);
    f->n_unknown += !fresh->is_known;
    return old;
}

bool disk_filters_want(struct disk_filters *f, const char *tenant, uint64_t now_ms)
{
    struct disk_filter *x, *unused = NULL;
    bool is_new = false;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x) {
        x->wanted_ms = now_ms;
    } else {
        x = calloc(1, sizeof(*x));
        if (x) {
            (void) snprintf(x->tenant, sizeof(x->tenant), "%s", tenant);
            x->wanted_ms = now_ms;
            unused = disk_filter_insert(f, x);
            is_new = unused != x && !x->is_known;
        }
    }
    (void) pthread_mutex_unlock(&f->lock);
    disk_filter_free(unused);
    return is_new;
}

/* ---- keys ---- */

void disk_filters_add(struct disk_filters *f, const char *tenant, const struct chunk_key *key)
{
    struct disk_filter *x;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x && x->memory)
        bloom_add(&x->writer, key);
    (void) pthread_mutex_unlock(&f->lock);
}

void disk_filters_removed(struct disk_filters *f, const char *tenant, uint64_t n_keys)
{
    struct disk_filter *x;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x && x->memory)
        x->n_removed += n_keys;
    (void) pthread_mutex_unlock(&f->lock);
}

bool disk_filters_is_worn(struct disk_filters *f, const char *tenant)
{
    const struct disk_filter *x;
    bool worn;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    worn = x && x->is_known &&
           (!x->memory || x->writer.n_added >= bloom_capacity(&x->writer) ||
            (x->n_removed >= REMOVED_MIN && x->n_removed > x->writer.n_added / 2));
    (void) pthread_mutex_unlock(&f->lock);
    return worn;
}

void disk_filters_drop(struct disk_filters *f, const char *tenant)
{
    struct extent *memory = NULL;
    struct disk_filter *x;

    (void) pthread_mutex_lock(&f->lock);
    disk_filter_forget_name(f, tenant);
    x = disk_filter_find(f, tenant);
    if (x) {
        memory = disk_filter_take_memory(x);
        disk_filter_set_known(f, x, true);
    }
    (void) pthread_mutex_unlock(&f->lock);
    disk_filter_end_memory(memory);
}

/* ---- what clients get ---- */

int disk_filters_open(struct disk_filters *f, const char *tenant, int *ret_fd, size_t *ret_bytes,
                      uint64_t *ret_object)
{
    const struct disk_filter *x;
    int fd, r = -ENOENT;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    if (x && x->memory) {
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
    object = x && x->memory ? x->object : 0;
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
    if (x && !x->is_known)
        has = f->is_open;
    else if (x && x->memory &&
             bloom_reader_init(&reader, x->writer.object, extent_bytes(x->memory), NULL) == 0)
        has = bloom_lookup(&reader, key) == BLOOM_PROBABLY;
    (void) pthread_mutex_unlock(&f->lock);
    return has;
}

bool disk_filters_is_unknown(struct disk_filters *f, const char *tenant)
{
    const struct disk_filter *x;
    bool is_unknown;

    (void) pthread_mutex_lock(&f->lock);
    x = disk_filter_find(f, tenant);
    is_unknown = f->is_open && x && !x->is_known;
    (void) pthread_mutex_unlock(&f->lock);
    return is_unknown;
}
