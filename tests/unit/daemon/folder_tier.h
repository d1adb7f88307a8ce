/*
 * A tier that keeps sealed pages as files of a plain folder, by name: what one more tier needs, beside the
 * call of offload_add_tier() that is its row. It does not scale: each request reads or writes its file at the
 * next event of the loop.
 */
#pragma once

#include <stdbool.h>

#include "daemon/tier/tier.h"

struct ev;
struct folder_tier;

extern const struct tier_ops folder_tier_ops; /* of a struct folder_tier: shared; free() removes the files */

/* @path: an empty folder, borrowed. Asserts. */
struct folder_tier *folder_tier_new(struct ev *ev, const char *path);

void folder_tier_set_ready(struct folder_tier *t, bool is_ready);
unsigned folder_tier_files(const struct folder_tier *t);
void folder_tier_empty(struct folder_tier *t);        /* all files */
void folder_tier_lose(struct folder_tier *t);         /* the same, and says so */
void folder_tier_damage(const struct folder_tier *t); /* changes a byte of each file */
