/*
 * The thread of a disk tier, for disk.c, which is the loop's side; and what the thread does for a request
 * (disk_serve.c).
 */
#pragma once

struct disk;
struct disk_transfer;
struct errmsg;

void disk_thread_run(struct disk *d); /* until d->stopping is set, and all operations have come back */

/* The thread has something to do. */
void disk_thread_wake(struct disk *d);

/* ---- a request (disk_serve.c) ---- */

/**
 * disk_serve_begin() - serve a request up to its end, or up to its operation at the disk
 *
 * Return: 0; -EAGAIN: a read needs a buffer and none is free, and nothing happened; another errno with a
 * sentence: the request has ended and the tier cannot go on.
 */
int disk_serve_begin(struct disk *d, struct disk_transfer *t, struct errmsg *e);

/* Concludes an operation that has ended. Return: 0; an errno with a sentence: the tier cannot go on. */
int disk_serve_conclude(struct disk *d, struct disk_transfer *t, struct errmsg *e);
