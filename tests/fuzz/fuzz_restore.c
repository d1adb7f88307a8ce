/*
 * Objects that a supervisor may hand to a start: journal, slot records and pages of an earlier kvcobrad, with
 * bytes changed, objects exchanged or missing. The daemon starts, its accounts agree, and it serves clients.
 *
 * An input is a list of changes, 8 bytes each: object, what, offset (2), value (4). The first byte says
 * whether the checksums of the journal are corrected afterwards, since other checks come after them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/requests/state.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/journal.h"
#include "daemon/store/slot.h"
#include "proto/crc32c.h"
#include "tests/fuzz/daemon_history.h"
#include "tests/fuzz/daemon_model.h"
#include "tests/fuzz/state_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OBJECTS_MAX = 16, REGIONS_MAX = 4, COPIES_AT = 4096 };

struct region { /* a part of an object that is not a hole */
    off_t at;
    size_t n_bytes;
    uint8_t *bytes;
};

struct object { /* what an earlier daemon stored */
    char name[64];
    off_t n_bytes;
    mode_t mode;
    int seals;
    int fd; /* of a descriptor that is no memory: a process; else -1 */
    struct region regions[REGIONS_MAX];
    uint32_t n_regions;
};

static struct object objects[OBJECTS_MAX];
static size_t n_objects;

/*
 * Two sessions of one tenant and one of another hold pages; the bytes are those of fuzz_daemon. 29 lets a
 * thread work: it makes arenas and extents, after which a client reserves again.
 */
static const uint8_t before[] = {0,  14, 0,  0,  29, 29, 29, 1,  3, 0,  1,  4,  5,  29, 29, 29, 1,
                                 3,  0,  1,  4,  5,  2,  3,  1,  2, 3,  4,  46, 0,  32, 29, 29, 29,
                                 35, 3,  1,  0,  1,  4,  5,  78, 1, 64, 29, 29, 29, 65, 2,  0,  6,
                                 7,  29, 29, 29, 65, 2,  0,  6,  7, 66, 2,  1,  2,  3};
/* Clients of the next daemon: they lease what they find, store and resume. */
static const uint8_t after[] = {0, 14, 64, 0,  14, 0, 0, 29, 29, 29, 1, 3,  0,  1,  4,  5,  29, 29, 29, 1,
                                3, 0,  1,  4,  5,  2, 3, 1,  2,  3,  4, 46, 1,  32, 29, 29, 29, 33, 1,  0,
                                6, 29, 29, 29, 33, 1, 0, 6,  34, 1,  1, 2,  35, 1,  1,  0,  6,  28, 24, 28};

/* ---- the earlier daemon ---- */

static void save_object(struct object *o, const struct rig_stored *s)
{
    struct stat st;
    off_t at = 0;

    *o = (struct object){.seals = fcntl(s->fd, F_GET_SEALS), .fd = -1};
    memcpy(o->name, s->name, sizeof(o->name));
    if (o->seals < 0) {
        o->fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
        return;
    }
    rig_check(fstat(s->fd, &st) == 0);
    o->n_bytes = st.st_size;
    o->mode = st.st_mode & 07777;
    while (o->n_regions < REGIONS_MAX && (at = lseek(s->fd, at, SEEK_DATA)) >= 0) {
        struct region *r = &o->regions[o->n_regions++];
        off_t end = lseek(s->fd, at, SEEK_HOLE);

        *r = (struct region){.at = at, .n_bytes = (size_t) (end - at), .bytes = malloc((size_t) (end - at))};
        rig_check(r->bytes && pread(s->fd, r->bytes, r->n_bytes, at) == (ssize_t) r->n_bytes);
        at = end;
    }
}

static void prepare(const char *folder)
{
    const struct rig_stored *s;

    history_begin(before, sizeof(before), folder);
    while (history_step())
        ;
    history_stop();
    s = rig_stored(&n_objects);
    rig_check(n_objects > 3 && n_objects <= OBJECTS_MAX);
    for (size_t i = 0; i < n_objects; i++)
        save_object(&objects[i], &s[i]);
}

/* ---- changes ---- */

static int copy_object(const struct object *o)
{
    int fd;

    if (o->fd >= 0)
        return fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
    fd = memfd_create(o->name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    rig_check(fd >= 0 && ftruncate(fd, o->n_bytes) == 0 && fchmod(fd, o->mode) == 0);
    for (uint32_t i = 0; i < o->n_regions; i++)
        rig_check(pwrite(fd, o->regions[i].bytes, o->regions[i].n_bytes, o->regions[i].at) > 0);
    return fd;
}

/* Writes @n bytes of @value at @offset of the parts of the object that are not holes. */
static void change_bytes(const struct object *o, int fd, size_t offset, const void *value, size_t n)
{
    size_t total = 0;

    for (uint32_t i = 0; i < o->n_regions; i++)
        total += o->regions[i].n_bytes;
    if (total == 0)
        return;
    offset %= total;
    for (uint32_t i = 0; i < o->n_regions; i++) {
        const struct region *r = &o->regions[i];

        if (offset < r->n_bytes) {
            n = n < r->n_bytes - offset ? n : r->n_bytes - offset;
            rig_check(pwrite(fd, value, n, r->at + (off_t) offset) == (ssize_t) n);
            return;
        }
        offset -= r->n_bytes;
    }
}

/* As journal.c computes it. */
static uint32_t copy_crc(const struct journal_copy *c)
{
    uint32_t parts[2];

    parts[0] = crc32c(c, offsetof(struct journal_copy, crc32c));
    parts[1] = crc32c(c->extents, c->n_extents * sizeof(c->extents[0]));
    return crc32c(parts, sizeof(parts));
}

static void correct_journal(int fd)
{
    struct journal_head head;
    static struct journal_copy copies[2];

    rig_check(pread(fd, &head, sizeof(head), 0) == sizeof(head));
    rig_check(pread(fd, copies, sizeof(copies), COPIES_AT) == sizeof(copies));
    for (unsigned i = 0; i < JOURNAL_PLACES_MAX; i++)
        head.places[i].crc32c = crc32c(&head.places[i], offsetof(struct journal_place, crc32c));
    for (unsigned i = 0; i < 2; i++)
        if (copies[i].n_extents <= JOURNAL_EXTENTS_MAX)
            copies[i].crc32c = copy_crc(&copies[i]);
    rig_check(pwrite(fd, &head, sizeof(head), 0) == sizeof(head));
    rig_check(pwrite(fd, copies, sizeof(copies), COPIES_AT) == sizeof(copies));
}

static void store_objects(const uint8_t *data, size_t size)
{
    int fds[OBJECTS_MAX], names[OBJECTS_MAX];
    bool corrected = size > 0 && data[0] & 1;

    for (size_t i = 0; i < n_objects; i++) {
        fds[i] = copy_object(&objects[i]);
        names[i] = (int) i;
    }
    for (size_t at = 1; at + 8 <= size; at += 8) {
        const uint8_t *c = data + at;
        unsigned i = c[0] % (unsigned) n_objects, other = c[4] % (unsigned) n_objects;

        if (c[1] < 0xf0)
            change_bytes(&objects[i], fds[i], c[2] | (size_t) c[3] << 8, c + 4, 1u << c[1] % 3);
        else if (c[1] < 0xf8)
            names[i] = names[other]; /* under another name; two under one */
        else
            names[i] = -1;
    }
    rig_forget();
    for (size_t i = 0; i < n_objects; i++) {
        const struct object *o = &objects[i];

        if (corrected && strcmp(o->name, "kvc-journal-0") == 0)
            correct_journal(fds[i]);
        if (o->seals >= 0)
            (void) fcntl(fds[i], F_ADD_SEALS, o->seals);
        if (names[i] >= 0)
            rig_store(objects[names[i]].name, fds[i]);
        (void) close(fds[i]);
    }
}

static void check_accounts(void)
{
    struct errmsg e = {""};

    if (!devices_are_valid(history_model()->server->devices, &e) && !strstr(e.text, "above its quota")) {
        fprintf(stderr, "%s\n", e.text);
        rig_check(false);
    }
}

/* Without a change, the next daemon has all pages and sessions of the earlier one. */
static void check_unchanged(const char *folder)
{
    uint64_t n_pages = 0;

    store_objects(NULL, 0);
    history_begin(after, sizeof(after), folder);
    for (const struct tenant *t = NULL; (t = devices_next_tenant(history_model()->server->devices, t));)
        n_pages += t->n_pages;
    rig_check(n_pages == 7 && history_model()->server->sessions->n == 3);
    history_stop();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *folder = state_folder();

    if (n_objects == 0) {
        prepare(folder);
        check_unchanged(folder);
    }
    store_objects(data, size);
    history_begin(after, sizeof(after), folder);
    check_accounts();
    history_model()->unknown = true; /* the model does not know the sessions of the earlier daemon */
    while (history_step())
        check_accounts();
    history_stop();
    rig_forget();
    return 0;
}
