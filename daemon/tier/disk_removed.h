/*
 * Keys whose pages left a disk tier, since their segment was discarded or they could not be read. The thread
 * of the tier notes them and the loop takes them: such a page has no copy any longer if it is in memory.
 *
 * At most DISK_REMOVED_MAX keys wait. If more come, or memory is short, they are not named, and the loop
 * learns that keys are missing.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/disk_format.h"

struct disk_segment;

#define DISK_REMOVED_MAX 65536u

struct disk_removed {
    pthread_mutex_t lock;
    struct tier_removed *first, *last;
    uint32_t n_keys;
    bool is_incomplete;
};

void disk_removed_init(struct disk_removed *q);
void disk_removed_deinit(struct disk_removed *q);

/* ---- the thread of the tier ---- */

/* All pages of @s, before they leave the map. */
void disk_removed_note_segment(struct disk_removed *q, const struct disk_segment *s);
void disk_removed_note(struct disk_removed *q, const char *tenant, const struct chunk_key *key);

/* ---- the loop ---- */

/*
 * The oldest batch, which the caller frees with free(). NULL: none. *ret_is_incomplete: whether keys were not
 * named since the last call.
 */
struct tier_removed *disk_removed_take(struct disk_removed *q, bool *ret_is_incomplete);
