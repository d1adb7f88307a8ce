/*
 * The state of an interrupted calibration, in a file beside its output: the sums so far, and a digest of the
 * windows and options that they belong to. A resumed calibration writes the same bytes as an uninterrupted
 * one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/kvcobra-alloc.h"
#include "alloc/table/geometry.h"

struct calibration;
struct errmsg;
struct moments;

/* "OUTPUT.partial"; malloc'ed; NULL when out of memory. */
char *checkpoint_path(const char *output);

/**
 * checkpoint_plan() - digest of everything that determines the result of a calibration
 * @depth: whether depth weights are measured
 */
void checkpoint_plan(const struct calibration *cal, bool depth, uint8_t ret_plan[static DIGEST_BYTES]);

/* Writes the sums, which hold whole windows. An existing file at @path is replaced. */
int checkpoint_save(const char *path, const struct calibration *cal, const uint8_t plan[static DIGEST_BYTES],
                    struct errmsg *e);

/**
 * checkpoint_load() - restore the state from @path
 * @cal: its n_done is set; it has the empty statistics or moments that the plan was made of
 * @ret_stats, @ret_moments: the restored sums; one of the two is set
 *
 * Return: 0; -EINVAL: another plan; -EBADMSG: damaged; -ENOENT …; sentence in @e.
 */
int checkpoint_load(const char *path, struct calibration *cal, const uint8_t plan[static DIGEST_BYTES],
                    kvc_stats **ret_stats, struct moments **ret_moments, struct errmsg *e);
