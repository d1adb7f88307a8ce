/* See folder_tier.h. */
#include "tests/unit/daemon/folder_tier.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd_io.h"
#include "daemon/loop/ev.h"
#include "daemon/tier/seal.h"
#include "tests/lib/test.h"

enum { LOOKS_MAX = 8, HEX_BYTES = 2 * TIER_NAME_BYTES + 1 };

struct folder_tier {
    const char *path;
    int folder_fd, event_fd;
    struct ev_source *watch;
    struct tier_request *first, **last; /* that wait for the event */
    struct tier_look *looks[LOOKS_MAX];
    unsigned n_looks;
    bool is_ready;
    uint64_t n_losses;
};

static const char *folder_tier_file(const uint8_t name[static TIER_NAME_BYTES], char ret[static HEX_BYTES])
{
    return sodium_bin2hex(ret, HEX_BYTES, name, TIER_NAME_BYTES);
}

/* ---- requests ---- */

static int folder_tier_put(const struct folder_tier *t, const struct tier_request *r)
{
    char hex[HEX_BYTES];
    _cleanup_(closep) int fd =
        openat(t->folder_fd, folder_tier_file(r->name, hex), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return -errno; /* -EEXIST: the first one stays */
    return fd_write_all(fd, r->data, seal_bytes(r->group.page_bytes));
}

static int folder_tier_get(const struct folder_tier *t, struct tier_request *r)
{
    char hex[HEX_BYTES];
    _cleanup_(closep) int fd = openat(t->folder_fd, folder_tier_file(r->name, hex), O_RDONLY | O_CLOEXEC);
    size_t bytes = seal_bytes(r->group.page_bytes);
    int err;

    if (fd < 0)
        return -errno;

    r->data = malloc(bytes);
    assert(r->data);
    r->value_bytes = bytes;
    err = fd_pread_all(fd, r->data, bytes, 0);
    if (err < 0)
        free(r->data);
    return err;
}

static int folder_tier_serve(const struct folder_tier *t, struct tier_request *r)
{
    char hex[HEX_BYTES];
    int err;

    switch (r->kind) {
    case TIER_PUT:
        err = folder_tier_put(t, r);
        free(r->data);
        r->data = NULL;
        return err;
    case TIER_GET:
        return folder_tier_get(t, r);
    default: /* FORGET, REMOVE */
        return unlinkat(t->folder_fd, folder_tier_file(r->name, hex), 0) == 0 ? 0 : -errno;
    }
}

static void folder_tier_on_event(void *ctx)
{
    struct folder_tier *t = ctx;
    struct tier_request *r = t->first, *next;
    struct tier_look *looks[LOOKS_MAX];
    unsigned n_looks = t->n_looks;
    char hex[HEX_BYTES];
    uint64_t count;

    (void) !read(t->event_fd, &count, sizeof(count)); /* no longer readable */
    t->first = NULL;
    t->last = &t->first;
    memcpy(looks, t->looks, sizeof(looks));
    t->n_looks = 0;
    for (; r; r = next) {
        next = r->next;
        r->result = folder_tier_serve(t, r);
        r->done(r);
    }
    for (unsigned i = 0; i < n_looks; i++) {
        struct tier_look *l = looks[i];

        for (uint32_t k = 0; k < l->n; k++)
            l->found[k] = faccessat(t->folder_fd, folder_tier_file(l->names[k], hex), F_OK, 0) == 0;
        l->result = 0;
        l->done(l);
    }
}

/* ---- files ---- */

/* Calls @body for each file. Return: how many there are. */
static unsigned folder_tier_each(const struct folder_tier *t, void (*body)(int folder_fd, const char *file))
{
    DIR *d = opendir(t->path);
    struct dirent *x;
    unsigned n = 0;

    assert(d);
    while ((x = readdir(d))) {
        if (x->d_name[0] == '.')
            continue;
        n++;
        if (body)
            body(t->folder_fd, x->d_name);
    }
    (void) closedir(d);
    return n;
}

static void folder_tier_remove_file(int folder_fd, const char *file)
{
    (void) unlinkat(folder_fd, file, 0);
}

/* ---- the interface ---- */

static void folder_tier_wake(struct folder_tier *t)
{
    const uint64_t one = 1;

    assert(fd_write_all(t->event_fd, &one, sizeof(one)) == 0);
}

static int folder_tier_submit(void *tier, struct tier_share *s, struct tier_request *r)
{
    struct folder_tier *t = tier;

    if (!t->is_ready)
        return -ENODEV;

    r->share = s;
    r->next = NULL;
    *t->last = r;
    t->last = &r->next;
    folder_tier_wake(t);
    return 0;
}

static int folder_tier_look(void *tier, struct tier_look *l)
{
    struct folder_tier *t = tier;

    if (!t->is_ready)
        return -ENODEV;
    if (t->n_looks == LOOKS_MAX)
        return -EAGAIN;

    t->looks[t->n_looks++] = l;
    folder_tier_wake(t);
    return 0;
}

static uint8_t *folder_tier_take(void *tier, uint64_t page_bytes)
{
    (void) tier;
    return malloc(seal_bytes(page_bytes));
}

static void folder_tier_give_back(void *tier, uint8_t *data)
{
    (void) tier;
    free(data);
}

static bool folder_tier_fits(void *tier, uint64_t page_bytes)
{
    (void) tier;
    return page_bytes > 0;
}

static bool folder_tier_is_ready(void *tier)
{
    return ((const struct folder_tier *) tier)->is_ready;
}

static void folder_tier_make_name(void *tier, const struct tier_group *g, const struct chunk_key *key,
                                  uint8_t ret[static TIER_NAME_BYTES])
{
    crypto_generichash_state st;

    (void) tier;
    (void) crypto_generichash_init(&st, NULL, 0, TIER_NAME_BYTES);
    (void) crypto_generichash_update(&st, (const uint8_t *) g, sizeof(*g));
    (void) crypto_generichash_update(&st, key->bytes, sizeof(key->bytes));
    (void) crypto_generichash_final(&st, ret, TIER_NAME_BYTES);
}

static uint64_t folder_tier_losses(void *tier)
{
    return ((const struct folder_tier *) tier)->n_losses;
}

static void folder_tier_free(void *tier, uint64_t wait_ms)
{
    struct folder_tier *t = tier;

    (void) wait_ms;
    assert(!t->first && t->n_looks == 0);
    (void) folder_tier_each(t, folder_tier_remove_file);
    t->watch = ev_source_free(t->watch);
    closep(&t->folder_fd);
    closep(&t->event_fd);
    free(t);
}

const struct tier_ops folder_tier_ops = {
    .name = "folder",
    .is_shared = true,
    .free = folder_tier_free,
    .submit = folder_tier_submit,
    .take = folder_tier_take,
    .give_back = folder_tier_give_back,
    .fits = folder_tier_fits,
    .is_ready = folder_tier_is_ready,
    .make_name = folder_tier_make_name,
    .losses = folder_tier_losses,
    .look = folder_tier_look,
};

/* ---- for tests ---- */

struct folder_tier *folder_tier_new(struct ev *ev, const char *path)
{
    struct folder_tier *t = calloc(1, sizeof(*t));

    assert(t);
    t->path = path;
    t->last = &t->first;
    t->is_ready = true;
    t->folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    t->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert(t->folder_fd >= 0 && t->event_fd >= 0);
    assert(ev_watch(ev, t->event_fd, folder_tier_on_event, t, &t->watch) == 0);
    return t;
}

void folder_tier_set_ready(struct folder_tier *t, bool is_ready)
{
    t->is_ready = is_ready;
}

unsigned folder_tier_files(const struct folder_tier *t)
{
    return folder_tier_each(t, NULL);
}

static void folder_tier_damage_file(int folder_fd, const char *file)
{
    _cleanup_(closep) int fd = openat(folder_fd, file, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert(fd >= 0 && pread(fd, &byte, 1, 1000) == 1);
    byte ^= 1;
    assert(pwrite(fd, &byte, 1, 1000) == 1);
}

void folder_tier_damage(const struct folder_tier *t)
{
    (void) folder_tier_each(t, folder_tier_damage_file);
}

void folder_tier_empty(struct folder_tier *t)
{
    (void) folder_tier_each(t, folder_tier_remove_file);
}

void folder_tier_lose(struct folder_tier *t)
{
    folder_tier_empty(t);
    t->n_losses++;
}
