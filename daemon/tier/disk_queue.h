/*
 * The requests of a disk tier on their way: from the loop to the thread, and back. All calls take the lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct disk;
struct tier_request;
struct tier_share;
struct disk_transfer;

/* ---- the loop ---- */

/* Return: see submit() in tier.h. */
int disk_queue_put(struct disk *d, struct tier_share *s, struct tier_request *r);

/* A request that has ended. NULL: none has. */
struct tier_request *disk_queue_take_ended(struct disk *d);

/* ---- loop and thread ---- */

/*
 * Ends every request whose deadline is at most @until_ms. Those that wait give their buffers back; the
 * buffers of transfers stay with these. Return: whether there was one.
 */
bool disk_queue_expire(struct disk *d, uint64_t until_ms, int result);

/* ---- the thread ---- */

/*
 * Makes the next request a transfer. @writes: the next write, else the next other one. A transfer is free.
 * NULL: none waits.
 */
struct disk_transfer *disk_queue_take(struct disk *d, bool writes);

/*
 * Frees a transfer, and ends its request if it has not ended. The buffer goes to the request of a read that
 * succeeded, else it is given back.
 */
void disk_queue_end(struct disk *d, struct disk_transfer *t, int result);
