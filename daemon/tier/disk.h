/*
 * The disk tier: sealed pages in a folder. A thread of its own does everything that can block: files,
 * records, reads and writes. The loop submits requests and gets them back through done(), one per event of
 * the loop.
 *
 * Write: the loop takes a buffer, a worker thread seals the page into it (seal.h), the loop submits the
 * buffer. Read: the loop submits a request without a buffer, and gets one with the sealed page; a worker
 * thread opens it, and the loop gives the buffer back. A page that does not open is reported with
 * TIER_FORGET, and is not found again.
 *
 * A request always ends, with 0 or an errno that means "this page is not there" or "this page was not
 * written": nothing else depends on a disk. expire() ends it at its deadline even if the thread and
 * the disk do not answer; the buffer then stays with them until they do. Requests of a tenant are taken in
 * turn with those of other tenants, by bytes (loop/fair.h), and a tenant may have as many as places are
 * free.
 *
 *     OPENING --> READY --failure--> OFF --resume() or time--> OPENING
 *
 * Any failure of the folder turns the tier off, with a sentence: a full, vanished, read-only or broken file
 * system, a folder of another daemon. What is on the disk stays there.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "daemon/tier/disk_folder.h"
#include "daemon/tier/tier.h"

struct disk;
struct disk_engine_ops;
struct ev;

struct disk_options {
    struct disk_folder_options folder; /* segment_bytes 0: chosen by bytes */
    uint64_t buffer_bytes;             /* bounce buffers, at most DISK_BUFFERS_BYTES_MAX */
    uint32_t depth;                    /* operations at the disk at a time; half of them may be writes */
    uint32_t n_requests_max;
    uint32_t n_filters_max; /* tenants that may have a filter at a time */
    uint64_t check_ms;      /* how often the folder is looked at */
    uint64_t stall_ms;      /* an operation that takes longer turns the tier off */
    uint64_t retry_ms;      /* pause before the tier is opened anew by itself, doubled each time; 0: never */
    const struct disk_engine_ops *const *engines; /* disk_engines */
    void (*changed)(void *ctx);                   /* on the loop, after the state changed; may be NULL */
    void *ctx;
};

struct disk_status {
    enum tier_state state;
    /* OFF, and OPENING after it: why; READY: why the tier has less than its size, or is of little use; else
     * empty */
    char sentence[ERRMSG_BYTES];
    const char *engine;
    char emptied[ERRMSG_BYTES];    /* why the last opening dropped all pages; else empty */
    char engine_why[ERRMSG_BYTES]; /* why a faster engine does not run here; else empty */
    bool is_locked;                /* the bounce buffers are registered with the kernel */
    uint64_t segment_bytes, physical_bytes;
    uint32_t n_segments, n_segments_used, n_segments_max;
    uint32_t n_waiting, n_in_flight;
    uint64_t n_pages;
    /* since the start */
    uint64_t n_openings; /* how often the tier became ready */
    uint64_t n_written, written_bytes, n_read, read_bytes;
    uint64_t n_missed;  /* reads of pages that the tier does not have */
    uint64_t n_refused; /* writes without room: quota, busy segments, size, index */
    uint64_t n_timeouts, n_failed;
    uint64_t n_forgotten; /* pages that did not open */
    uint64_t n_discarded; /* pages of discarded segments */
};

/*
 * Starts the thread, which opens the folder: an unreachable folder does not delay the caller. Strings of
 * @options are copied. Return: 0; -EINVAL; -ENOMEM; errno of a descriptor or of the thread.
 */
int disk_new(struct ev *ev, const struct disk_options *options, struct disk **ret, struct errmsg *e);

/*
 * Ends all requests; done() of each runs before the call returns. A thread whose disk does not answer within
 * @wait_ms is left behind with its memory, until the process ends. NULL is allowed; returns NULL.
 */
struct disk *disk_free(struct disk *d, uint64_t wait_ms);

void disk_status(struct disk *d, struct disk_status *ret);

/*
 * A struct disk as a tier. A buffer is taken only while the tier is ready. A tenant has as many requests as
 * places are free.
 */
extern const struct tier_ops disk_tier_ops;
