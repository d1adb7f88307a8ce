/*
 * A calibration that was stopped, beside the file that it was to write: what is summed up so far, and which
 * plan of windows and options it belongs to. Continued, it ends in the same bytes as if it had never been
 * stopped.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/geometry.h"

struct calibration;
struct errmsg;
struct moments;
struct stats;

/* "OUTPUT.partial"; malloc'ed, NULL without memory. */
char *checkpoint_path(const char *output);

/**
 * checkpoint_plan() - the name of everything that decides what a calibration ends in
 * @depth: whether depth weights are measured
 */
void checkpoint_plan(const struct calibration *cal, bool depth, uint8_t ret_plan[static DIGEST_BYTES]);

/* Whole windows, whatever stands at @path is replaced. */
int checkpoint_save(const char *path, const struct calibration *cal, const uint8_t plan[static DIGEST_BYTES],
                    struct errmsg *e);

/**
 * checkpoint_load() - go on where @path ends
 * @cal: its n_done is set; its empty statistics or moments are what the plan was made of
 * @ret_stats, @ret_moments: what to go on with; one of them
 *
 * Return: 0; -EINVAL: of another plan; -EBADMSG: damaged; -ENOENT …; sentence in @e.
 */
int checkpoint_load(const char *path, struct calibration *cal, const uint8_t plan[static DIGEST_BYTES],
                    struct stats **ret_stats, struct moments **ret_moments, struct errmsg *e);
