/* Opens and closes what a disk tier has open: folder, map, engine, filters. For disk_thread.c. */
#pragma once

struct chunk_key;
struct disk;
struct errmsg;

/* Reads the records of the folder. Return: 0; an errno with a sentence, and nothing is open. */
int disk_open(struct disk *d, struct errmsg *e);
void disk_close(struct disk *d); /* no operation is in flight; nothing may be open */

/* Makes the filters of tenants that want one since the last call. */
void disk_open_make_filters(struct disk *d);

/* Adds a page to the filter of its tenant, or makes the filter anew. */
void disk_open_note_key(struct disk *d, const char *tenant, const struct chunk_key *key);
