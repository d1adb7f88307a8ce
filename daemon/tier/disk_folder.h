/*
 * The folder of a disk tier: its lock and its two files. All calls may block: the thread of the tier makes
 * them.
 *
 *     records    what the tier has: disk_format.h
 *     pages      sealed pages: segment N begins at N times the size of a segment, and is allocated as a whole
 *                when it is first needed
 *
 * The folder belongs to one key ring: its head has the ring's fleet number. A folder with other files, of
 * another fleet, of a newer version or that another process uses is refused and not changed. One that an
 * earlier version of this program wrote is emptied: its pages can be computed again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/errmsg.h"
#include "base/file_identity.h"
#include "daemon/tier/disk_format.h"

struct disk_folder {
    char *path;
    int fd; /* of the folder; has the lock */
    int records_fd;
    int pages_fd; /* O_DIRECT */
    uint32_t n_segments_max;
    uint32_t n_segments; /* that `pages` has room for */
    uint64_t segment_bytes;
    uint32_t align;                                /* of direct I/O: offsets, sizes and memory */
    struct file_identity identity, records, pages; /* of the folder and its files */
    uint64_t records_bytes;                        /* the file has at least so many */
    uint64_t counter;                              /* as `records` has it */
    bool is_written;                               /* `records`, since the counter was raised */
    struct errmsg emptied;                         /* why the folder was emptied when it was opened */
    struct errmsg note; /* what is not as it should be, though it works; or empty */
};

struct disk_folder_options {
    const char *path;
    const uint8_t *fleet;   /* [DISK_FLEET_BYTES]; disk_folder_look(): NULL: any */
    uint64_t bytes;         /* of all segments at most */
    uint64_t segment_bytes; /* of a new folder: a power of two; a folder that exists keeps its own */
    bool has_device;        /* the folder was open before, on ->device: another file system is refused */
    dev_t device;
};

/**
 * disk_folder_open() - lock a folder, check it, and open its files
 *
 * An empty folder gets its files, and one of an earlier version loses its pages; then ret->emptied says so.
 * Segments beyond ->bytes are cut off.
 *
 * Return: 0; -EPERM: other users may write to it or its files; -EADDRINUSE: another process uses it; -EEXIST:
 * it has files that are not of a tier, or pages without records; -EPROTO: a newer version; -EXDEV: another
 * fleet; -ESTALE: it is on another file system than before; -EBADMSG: the head is damaged; -EOPNOTSUPP: the
 * file system has no direct I/O; -EINVAL: ->bytes has no room for one segment; errno of the folder. *ret is
 * untouched on failure.
 */
int disk_folder_open(const struct disk_folder_options *o, struct disk_folder *ret, struct errmsg *e);
void disk_folder_deinit(struct disk_folder *f); /* for a folder that was opened, or zeros */

/*
 * Whether disk_folder_open() would refuse the folder, without locking or changing anything; another process
 * may use it. Return: as disk_folder_open(); pages, direct I/O and the lock are not looked at.
 */
int disk_folder_look(const struct disk_folder_options *o, struct errmsg *e);

/*
 * Whether the folder and its files still have their names, owners and rights, and `records` its bytes: the
 * counter in it is compared, and raised if records were written since the last call. Return: 0; -ENOENT,
 * -ESTALE: something was removed, renamed or replaced; -EPERM: it is another user's, or others may write to
 * it; errno; with a sentence that names it.
 */
int disk_folder_check(struct disk_folder *f, struct errmsg *e);

/* Bytes that the file system has allocated for the files. */
uint64_t disk_folder_physical_bytes(const struct disk_folder *f);

/* Allocates segment number f->n_segments. Return: 0; -ENOSPC: the file system is full; errno. */
int disk_folder_grow(struct disk_folder *f, struct errmsg *e);

/* Return: 0; errno of the write, with part of the bytes written. */
int disk_folder_write_head(struct disk_folder *f, const struct disk_segment_head *h, struct errmsg *e);
int disk_folder_write_record(struct disk_folder *f, uint32_t segment, const struct disk_record *r,
                             struct errmsg *e);

/* Makes a slot's record, or a segment's head, zeros. Return: as above. */
int disk_folder_clear_record(struct disk_folder *f, uint32_t segment, uint32_t slot, struct errmsg *e);
int disk_folder_clear_head(struct disk_folder *f, uint32_t segment, struct errmsg *e);

/* Reads all records of the file in order of segments and slots. */
struct disk_folder_reader {
    /* A segment with pages. Return: whether its records are wanted. */
    bool (*on_segment)(void *ctx, const struct disk_segment_head *h);
    void (*on_record)(void *ctx, const struct disk_record *r);
    void *ctx;
};

/* Return: 0; -ENOMEM; errno of the reads. */
int disk_folder_read(const struct disk_folder *f, const struct disk_folder_reader *reader, struct errmsg *e);
