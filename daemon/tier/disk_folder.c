/* See disk_folder.h. */
#include "daemon/tier/disk_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/file_rights.h"

static const char records_name[] = "records", records_new_name[] = "records.new", pages_name[] = "pages";

enum {
    ALIGN_MAX = 1 << 16, /* more than any device asks for */
    BLOCK_BYTES = 512,   /* of st_blocks */
};

void disk_folder_deinit(struct disk_folder *f)
{
    if (!f->path)
        return;
    free(f->path);
    closep(&f->records_fd);
    closep(&f->pages_fd);
    closep(&f->fd); /* releases the lock */
    *f = (struct disk_folder){.path = NULL};
}

/* ---- opening ---- */

/* A file of the folder, for sentences. Returns @ret. */
static const char *disk_folder_name(const struct disk_folder *f, const char *file, char ret[static PATH_MAX])
{
    (void) snprintf(ret, PATH_MAX, "%s/%s", f->path, file);
    return ret;
}

/* Other users could remove and exchange files. Pages are sealed, but the names of tenants are not. */
static int disk_folder_check_rights(const struct disk_folder *f, struct errmsg *e)
{
    char name[PATH_MAX];
    int r = file_rights_check(f->fd, FILE_RIGHTS_WRITE, f->path, "0700", e);

    if (r == 0 && f->records_fd >= 0)
        r = file_rights_check(f->records_fd, FILE_RIGHTS_WRITE, disk_folder_name(f, records_name, name),
                              "0600", e);
    if (r == 0 && f->pages_fd >= 0)
        r = file_rights_check(f->pages_fd, FILE_RIGHTS_WRITE, disk_folder_name(f, pages_name, name), "0600",
                              e);
    return r;
}

/* A tier whose file system was unmounted must not begin anew in the folder below the mount point. */
static int disk_folder_check_device(const struct disk_folder *f, const struct disk_folder_options *o,
                                    struct errmsg *e)
{
    if (!o->has_device || f->identity.device == o->device)
        return 0;
    return fail(
        e, -ESTALE,
        "the folder %s is on another file system than before: mount that one again, or use the one that "
        "is there with 'kvcobra tier resume'",
        f->path);
}

static int disk_folder_enter(struct disk_folder *f, const struct disk_folder_options *o, struct errmsg *e)
{
    int r;

    f->fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->fd < 0)
        return fail(e, -errno, "cannot open the folder %s of the disk tier: %s", f->path, strerror(errno));

    r = file_identity_of(f->fd, &f->identity);
    if (r < 0)
        return fail(e, r, "cannot open the folder %s of the disk tier: %s", f->path, strerror(-r));

    r = disk_folder_check_device(f, o, e);
    return r < 0 ? r : disk_folder_check_rights(f, e);
}

static int disk_folder_lock(const struct disk_folder *f, struct errmsg *e)
{
    if (flock(f->fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return fail(e, -errno, "cannot lock the folder %s: %s", f->path, strerror(errno));
    return fail(e, -EADDRINUSE, "another process uses the folder %s: give this kvcobrad another one",
                f->path);
}

/* A file system's own folder, and what an interrupted first start leaves. */
static bool disk_folder_may_have(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "lost+found") == 0 ||
           strcmp(name, records_new_name) == 0;
}

/* A folder without `records` becomes a tier only if it has no other file. */
static int disk_folder_check_empty(const struct disk_folder *f, struct errmsg *e)
{
    int copy = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *d;
    int r = 0;

    if (!dir) {
        r = -errno;
        if (copy >= 0)
            (void) close(copy);
        return fail(e, r, "cannot read the folder %s: %s", f->path, strerror(-r));
    }

    errno = 0;
    while (r == 0 && (d = readdir(dir)))
        if (strcmp(d->d_name, pages_name) == 0)
            r = fail(e, -EEXIST,
                     "%s/%s is missing, but %s/%s is there: restore the first, or remove the second to begin "
                     "anew",
                     f->path, records_name, f->path, pages_name);
        else if (!disk_folder_may_have(d->d_name))
            r = fail(e, -EEXIST, "the folder %s has a file %s and is not a disk tier: give an empty folder",
                     f->path, d->d_name);
    if (r == 0 && errno != 0)
        r = fail(e, -errno, "cannot read the folder %s: %s", f->path, strerror(errno));
    (void) closedir(dir);
    return r;
}

/* The name `records` appears when the head is on the disk, so no start finds a file without one. */
static int disk_folder_make_records(const struct disk_folder *f, const struct disk_folder_options *o)
{
    struct disk_folder_head h = {
        .version = DISK_VERSION, .page_format = PAGE_FORMAT_VERSION, .segment_bytes = o->segment_bytes};
    uint8_t bytes[DISK_FOLDER_HEAD_BYTES];
    _cleanup_(closep) int fd =
        openat(f->fd, records_new_name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r;

    if (fd < 0)
        return -errno;

    memcpy(h.fleet, o->fleet, sizeof(h.fleet));
    disk_folder_head_store(&h, bytes);
    r = fd_pwrite_all(fd, bytes, sizeof(bytes), 0);
    if (r < 0)
        return r;
    if (fdatasync(fd) < 0 || renameat(f->fd, records_new_name, f->fd, records_name) < 0 || fsync(f->fd) < 0)
        return -errno;
    return 0;
}

static int disk_folder_check_records(const struct disk_folder *f, struct errmsg *e)
{
    struct stat st;

    if (f->records_fd < 0 || fstat(f->records_fd, &st) < 0)
        return fail(e, -errno, "cannot open %s/%s: %s", f->path, records_name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EEXIST, "%s/%s is not a file", f->path, records_name);
    return 0;
}

static int disk_folder_open_records(struct disk_folder *f, const struct disk_folder_options *o,
                                    struct errmsg *e)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int r;

    f->records_fd = openat(f->fd, records_name, flags);
    if (f->records_fd < 0 && errno == ENOENT) {
        r = disk_folder_check_empty(f, e);
        if (r < 0)
            return r;

        r = disk_folder_make_records(f, o);
        if (r < 0)
            return fail(e, r, "cannot write %s/%s: %s", f->path, records_name, strerror(-r));
        f->records_fd = openat(f->fd, records_name, flags);
    }
    return disk_folder_check_records(f, e);
}

/* Return: 0; DISK_HEAD_IS_OLDER: f->emptied has the sentence; errno. */
static int disk_folder_check_head(struct disk_folder *f, const struct disk_folder_options *o,
                                  struct errmsg *e)
{
    uint8_t bytes[DISK_FOLDER_HEAD_BYTES];
    struct disk_folder_head h;
    struct errmsg why = {""};
    int r = fd_pread_all(f->records_fd, bytes, sizeof(bytes), 0);

    if (r == -ENODATA)
        return fail(e, -EBADMSG, "%s/%s is cut off: remove the folder's files to begin anew", f->path,
                    records_name);
    if (r < 0)
        return fail(e, r, "cannot read %s/%s: %s", f->path, records_name, strerror(-r));

    r = disk_folder_head_load(bytes, &h, &why);
    if (r < 0)
        return fail(e, r, "cannot use %s/%s: %s; remove the folder's files to begin anew", f->path,
                    records_name, why.text);
    if (o->fleet && memcmp(h.fleet, o->fleet, sizeof(h.fleet)) != 0)
        return fail(
            e, -EXDEV,
            "the disk tier in %s was written with another index secret: give that key ring, or remove "
            "the folder's files to begin anew",
            f->path);
    if (r == DISK_HEAD_IS_OLDER) {
        errmsg_set(&f->emptied,
                   "an earlier kvcobrad wrote the disk tier in %s (version %" PRIu32
                   " of the format): its pages are dropped, and the folder begins anew",
                   f->path, h.version);
        return r;
    }

    f->segment_bytes = h.segment_bytes;
    f->counter = h.counter;
    return 0;
}

/*
 * Empties a folder of an earlier version. The new `records` comes first: killed behind it, the next start
 * finds a tier without pages, whose segments are filled anew.
 */
static int disk_folder_begin_anew(struct disk_folder *f, const struct disk_folder_options *o,
                                  struct errmsg *e)
{
    _cleanup_(closep) int pages = -1;
    struct stat st;
    int r = disk_folder_check_rights(f, e);

    if (r < 0)
        return r;

    r = disk_folder_make_records(f, o);
    if (r < 0)
        return fail(e, r, "cannot write %s/%s: %s", f->path, records_name, strerror(-r));

    pages = openat(f->fd, pages_name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (pages < 0 ? errno != ENOENT
                  : fstat(pages, &st) < 0 || (S_ISREG(st.st_mode) && ftruncate(pages, 0) < 0))
        return fail(e, -errno, "cannot empty %s/%s: %s", f->path, pages_name, strerror(errno));

    closep(&f->records_fd);
    r = disk_folder_open_records(f, o, e);
    return r < 0 ? r : disk_folder_check_head(f, o, e);
}

/* Copies of `records` that were made until now are older than the file from now on. */
static int disk_folder_raise_counter(struct disk_folder *f, struct errmsg *e)
{
    uint64_t counter = f->counter + 1;
    int r = fd_pwrite_all(f->records_fd, &counter, sizeof(counter), DISK_COUNTER_OFFSET);

    if (r < 0)
        return fail(e, r, "cannot write %s/%s: %s", f->path, records_name, strerror(-r));

    f->counter = counter;
    f->is_written = false;
    return 0;
}

static int disk_folder_check_counter(struct disk_folder *f, struct errmsg *e)
{
    uint64_t counter;
    int r = fd_pread_all(f->records_fd, &counter, sizeof(counter), DISK_COUNTER_OFFSET);

    if (r < 0)
        return fail(e, r, "cannot read %s/%s: %s", f->path, records_name, strerror(-r));
    if (counter != f->counter)
        return fail(e, -ESTALE,
                    "%s/%s was overwritten by another program: pages that it does not name are lost", f->path,
                    records_name);
    return f->is_written ? disk_folder_raise_counter(f, e) : 0;
}

/* Direct I/O: without it, pages would use memory of the page cache, and its writes would come in bursts. */
static int disk_folder_find_align(struct disk_folder *f, struct errmsg *e)
{
    struct statx st;

    f->align = DISK_SLOT_BYTES_MIN; /* where the kernel does not tell (before 6.1): no device asks for more */
    if (statx(f->pages_fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) < 0 || !(st.stx_mask & STATX_DIOALIGN))
        return 0;
    if (st.stx_dio_mem_align == 0 || st.stx_dio_offset_align == 0)
        return fail(e, -EOPNOTSUPP, "the file system of %s has no direct I/O: give a folder on another one",
                    f->path);

    if (st.stx_dio_mem_align > f->align)
        f->align = st.stx_dio_mem_align;
    if (st.stx_dio_offset_align > f->align)
        f->align = st.stx_dio_offset_align;
    if (f->align > ALIGN_MAX || (f->align & (f->align - 1)) != 0)
        return fail(e, -EOPNOTSUPP, "direct I/O in %s needs an alignment of %" PRIu32 " bytes", f->path,
                    f->align);
    return 0;
}

/*
 * Cuts off records of segments that do not exist, so that none of them counts for a later segment; and with
 * @pages, segments beyond the size of the tier.
 */
static int disk_folder_cut(const struct disk_folder *f, bool pages, struct errmsg *e)
{
    uint64_t end = disk_segment_head_offset(f->n_segments, f->segment_bytes);
    struct stat st;
    int r = fstat(f->records_fd, &st);

    if (r == 0 && (uint64_t) st.st_size > end)
        r = ftruncate(f->records_fd, (off_t) end);
    if (r == 0 && pages)
        r = ftruncate(f->pages_fd, (off_t) (f->n_segments * f->segment_bytes));
    return r < 0 ? fail(e, -errno, "cannot shorten the files in %s: %s", f->path, strerror(errno)) : 0;
}

static int disk_folder_open_pages(struct disk_folder *f, struct errmsg *e)
{
    struct stat st;
    uint64_t n;
    int r;

    f->pages_fd =
        openat(f->fd, pages_name, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (f->pages_fd < 0 && errno == EINVAL)
        return fail(e, -EOPNOTSUPP, "the file system of %s has no direct I/O: give a folder on another one",
                    f->path);
    if (f->pages_fd < 0 || fstat(f->pages_fd, &st) < 0)
        return fail(e, -errno, "cannot open %s/%s: %s", f->path, pages_name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EEXIST, "%s/%s is not a file", f->path, pages_name);

    r = disk_folder_find_align(f, e);
    if (r < 0)
        return r;

    n = (uint64_t) st.st_size / f->segment_bytes;
    f->n_segments = n < f->n_segments_max ? (uint32_t) n : f->n_segments_max;
    return disk_folder_cut(f, n > f->n_segments_max, e);
}

static int disk_folder_note_files(struct disk_folder *f, struct errmsg *e)
{
    struct stat st;
    int r = file_identity_of(f->records_fd, &f->records);

    if (r == 0)
        r = file_identity_of(f->pages_fd, &f->pages);
    if (r == 0)
        r = fstat(f->records_fd, &st) < 0 ? -errno : 0;
    if (r == 0)
        f->records_bytes = (uint64_t) st.st_size;
    return r < 0 ? fail(e, r, "cannot look at the files in %s: %s", f->path, strerror(-r)) : 0;
}

static int disk_folder_find_size(struct disk_folder *f, uint64_t bytes, struct errmsg *e)
{
    uint64_t n = bytes / f->segment_bytes;

    if (n == 0)
        return fail(e, -EINVAL,
                    "%" PRIu64 " bytes have no room for a segment of %" PRIu64
                    " bytes of the disk tier in %s",
                    bytes, f->segment_bytes, f->path);
    f->n_segments_max = n < DISK_SEGMENTS_MAX ? (uint32_t) n : DISK_SEGMENTS_MAX;
    return 0;
}

/* Pages that leave memory for tmpfs are in memory, or in swap. */
static void disk_folder_note_kind(struct disk_folder *f)
{
    struct statfs st;

    if (fstatfs(f->fd, &st) == 0 && st.f_type == TMPFS_MAGIC)
        errmsg_set(&f->note, "%s is on tmpfs: its pages take memory, beside those of the pool", f->path);
}

int disk_folder_look(const struct disk_folder_options *o, struct errmsg *e)
{
    _cleanup_(disk_folder_deinit) struct disk_folder f = {
        .path = strdup(o->path), .fd = -1, .records_fd = -1, .pages_fd = -1};
    int r;

    if (!f.path)
        return fail(e, -ENOMEM, "out of memory for the folder of the disk tier");

    r = disk_folder_enter(&f, o, e);
    if (r < 0)
        return r;
    if (faccessat(f.fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
        return fail(e, -errno, "cannot write to the folder %s: %s", f.path, strerror(errno));

    f.records_fd = openat(f.fd, records_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (f.records_fd < 0 && errno == ENOENT)
        return disk_folder_check_empty(&f, e);

    r = disk_folder_check_records(&f, e);
    if (r == 0)
        r = disk_folder_check_rights(&f, e);
    if (r == 0)
        r = disk_folder_check_head(&f, o, e);
    if (r == DISK_HEAD_IS_OLDER) /* a start empties the folder */
        return 0;
    return r < 0 ? r : disk_folder_find_size(&f, o->bytes, e);
}

int disk_folder_open(const struct disk_folder_options *o, struct disk_folder *ret, struct errmsg *e)
{
    _cleanup_(disk_folder_deinit) struct disk_folder f = {
        .path = strdup(o->path), .fd = -1, .records_fd = -1, .pages_fd = -1};
    int r;

    if (!f.path)
        return fail(e, -ENOMEM, "out of memory for the folder of the disk tier");

    r = disk_folder_enter(&f, o, e);
    if (r < 0)
        return r;

    r = disk_folder_lock(&f, e);
    if (r < 0)
        return r;

    r = disk_folder_open_records(&f, o, e);
    if (r < 0)
        return r;

    r = disk_folder_check_head(&f, o, e);
    if (r == DISK_HEAD_IS_OLDER)
        r = disk_folder_begin_anew(&f, o, e);
    if (r < 0)
        return r;

    r = disk_folder_raise_counter(&f, e);
    if (r < 0)
        return r;

    r = disk_folder_find_size(&f, o->bytes, e);
    if (r < 0)
        return r;

    r = disk_folder_open_pages(&f, e);
    if (r < 0)
        return r;

    r = disk_folder_check_rights(&f, e);
    if (r < 0)
        return r;

    r = disk_folder_note_files(&f, e);
    if (r < 0)
        return r;

    disk_folder_note_kind(&f);
    *ret = f;
    f.path = NULL;
    return 0;
}

/* ---- an open folder ---- */

static int disk_folder_check_size(const struct disk_folder *f, int fd, const char *file, uint64_t bytes,
                                  struct errmsg *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot look at %s/%s: %s", f->path, file, strerror(errno));
    if ((uint64_t) st.st_size < bytes)
        return fail(e, -ESTALE, "%s/%s was shortened by another program", f->path, file);
    return 0;
}

int disk_folder_check(struct disk_folder *f, struct errmsg *e)
{
    char name[PATH_MAX];
    int r;

    (void) snprintf(name, sizeof(name), "the folder %s of the disk tier", f->path);
    r = file_identity_check(&f->identity, AT_FDCWD, f->path, 0, name, e);
    if (r < 0)
        return r;

    r = file_identity_check(&f->records, f->fd, records_name, AT_SYMLINK_NOFOLLOW,
                            disk_folder_name(f, records_name, name), e);
    if (r < 0)
        return r;

    r = file_identity_check(&f->pages, f->fd, pages_name, AT_SYMLINK_NOFOLLOW,
                            disk_folder_name(f, pages_name, name), e);
    if (r < 0)
        return r;

    r = disk_folder_check_rights(f, e);
    if (r < 0)
        return r;

    r = disk_folder_check_size(f, f->records_fd, records_name, f->records_bytes, e);
    if (r < 0)
        return r;

    r = disk_folder_check_size(f, f->pages_fd, pages_name, f->n_segments * f->segment_bytes, e);
    return r < 0 ? r : disk_folder_check_counter(f, e);
}

uint64_t disk_folder_physical_bytes(const struct disk_folder *f)
{
    uint64_t bytes = 0;
    struct stat st;

    if (fstat(f->records_fd, &st) == 0)
        bytes += (uint64_t) st.st_blocks * BLOCK_BYTES;
    if (fstat(f->pages_fd, &st) == 0)
        bytes += (uint64_t) st.st_blocks * BLOCK_BYTES;
    return bytes;
}

static int disk_folder_write(struct disk_folder *f, const void *bytes, size_t n, uint64_t offset,
                             struct errmsg *e)
{
    /* a write would make a file that was cut as long as before, and hide that records are gone */
    int r = disk_folder_check_size(f, f->records_fd, records_name, f->records_bytes, e);

    if (r < 0)
        return r;

    r = fd_pwrite_all(f->records_fd, bytes, n, offset);
    f->is_written = true;
    if (r == 0 && offset + n > f->records_bytes)
        f->records_bytes = offset + n;
    return r < 0 ? fail(e, r, "cannot write %s/%s: %s", f->path, records_name, strerror(-r)) : 0;
}

int disk_folder_write_head(struct disk_folder *f, const struct disk_segment_head *h, struct errmsg *e)
{
    uint8_t bytes[DISK_SEGMENT_HEAD_BYTES];

    disk_segment_head_store(h, bytes);
    return disk_folder_write(f, bytes, sizeof(bytes), disk_segment_head_offset(h->number, f->segment_bytes),
                             e);
}

int disk_folder_write_record(struct disk_folder *f, uint32_t segment, const struct disk_record *r,
                             struct errmsg *e)
{
    uint8_t bytes[DISK_RECORD_BYTES];

    disk_record_store(r, segment, bytes);
    return disk_folder_write(f, bytes, sizeof(bytes), disk_record_offset(segment, r->slot, f->segment_bytes),
                             e);
}

int disk_folder_clear_record(struct disk_folder *f, uint32_t segment, uint32_t slot, struct errmsg *e)
{
    static const uint8_t zeros[DISK_RECORD_BYTES];

    return disk_folder_write(f, zeros, sizeof(zeros), disk_record_offset(segment, slot, f->segment_bytes), e);
}

int disk_folder_clear_head(struct disk_folder *f, uint32_t segment, struct errmsg *e)
{
    static const uint8_t zeros[DISK_SEGMENT_HEAD_BYTES];

    return disk_folder_write(f, zeros, sizeof(zeros), disk_segment_head_offset(segment, f->segment_bytes), e);
}

int disk_folder_grow(struct disk_folder *f, struct errmsg *e)
{
    uint64_t offset = f->n_segments * f->segment_bytes;

    while (fallocate(f->pages_fd, 0, (off_t) offset, (off_t) f->segment_bytes) < 0)
        if (errno != EINTR)
            return fail(e, -errno, "cannot allocate %" PRIu64 " bytes of %s/%s: %s", f->segment_bytes,
                        f->path, pages_name, strerror(errno));
    f->n_segments++;
    return 0;
}
