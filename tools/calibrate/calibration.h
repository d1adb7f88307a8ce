/*
 * Calibration on a model: statistics or moments of exact passes over windows (forward, or forward and
 * backward), and depth weights (DESIGN 3.1) from passes in which one layer and side is compressed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/kvcobra-alloc.h"
#include "tools/calibrate/corpus.h"

struct engine;
struct errmsg;
struct moments;
struct progress;

/* One calibration and its progress; all pointers borrowed. */
struct calibration {
    struct engine *en;
    kvc_alloc *alloc; /* of the statistics, or NULL */
    kvc_stats *stats; /* one of the two; the other is NULL */
    struct moments *moments;
    const struct corpus *corpus;
    bool gradients; /* stats: also gradients of log p(y) by keys and values; about four times the work */
    uint64_t seed;  /* of rotations and of the labels y, drawn from the model; a window's labels depend on it
                     * and on the window alone */
    struct progress *progress;
    bool (*stop)(void); /* called between windows and measurements; NULL: none */
    size_t n_done;      /* windows added so far */
};

/* stop() returned true. The sums hold whole windows and the calibration can continue. */
#define CALIBRATION_STOPPED 1

/**
 * calibration_add_windows() - add the windows from n_done on that are not held out
 * Return: 0; CALIBRATION_STOPPED; a negative errno with a sentence: the sums may then hold part of a window.
 */
int calibration_add_windows(struct calibration *cal, struct errmsg *e);

/**
 * calibration_measure_depth() - measure every layer and side on the windows held out
 *
 * A stopped measurement is discarded and must start again. The progress counts to 1. Return: like
 * calibration_add_windows().
 */
int calibration_measure_depth(struct calibration *cal, struct errmsg *e);

/**
 * calibration_measure_kl() - what the KL of a table is of its distortion (calibration_kl.c)
 *
 * Solves a table of 3 bits per number in memory, compares it with the exact model on beginnings of windows
 * that were added, and stores the quotient in cal->stats; nothing if the KL is too small to be measured.
 *
 * Return: 0; CALIBRATION_STOPPED; a negative errno with a sentence: the statistics are as before.
 */
int calibration_measure_kl(struct calibration *cal, bool quiet, struct errmsg *e);

/* Bytes of memory that it needs in addition to the model and to statistics of @stats_bytes. With less left on
 * this machine it returns -ENOMEM at once. */
uint64_t calibration_kl_bytes(uint64_t stats_bytes);

/* Bytes of memory that calibration_measure_depth() and calibration_add_windows() need in addition to the
 * model and the statistics, without kvc_stats_estimate.window_bytes. */
uint64_t calibration_depth_bytes(const struct engine *en, size_t window);
uint64_t calibration_windows_bytes(const struct engine *en, size_t window, bool gradients);
