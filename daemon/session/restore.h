/*
 * Rebuilds the pools from what an earlier process stored: extents, the pages that their records call
 * COMMITTED, the index that finds them, the sessions, and what each of them holds. Records are validated
 * first: a record that fails validation costs the extent that it is in, never the start.
 */
#pragma once

struct errmsg;
struct sessions;

/*
 * Once, at the start, after persist_open(); the tables are loaded, no client is connected yet. Return: 0; a
 * negative errno if the machine failed (base/damage.h): the start must fail, and the next one finds
 * everything unchanged.
 */
int restore_pools(struct sessions *ss, struct errmsg *e);
