/* The thread of a disk tier. For disk.c, which is the loop's side. */
#pragma once

struct disk;

void disk_thread_run(struct disk *d); /* until d->stopping is set, and all operations have come back */

/* The thread has something to do. */
void disk_thread_wake(struct disk *d);
