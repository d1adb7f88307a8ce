/* A kvcobrad with one GPU of the stand-in driver: 4 extents of 512 KiB, cut in units of 128 KiB, 31 pages of
 * the small model each. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/e2e/gpu_client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"

enum { GPU_EXTENT_BYTES = 512 << 10, GPU_SLOTS_PER_EXTENT = 4 * 31 };

/* Options of every daemon here, then @more; valid until the next call. */
const char *const *gpu_args(const char *const *more);

/* As raw_start(), raw_stop(). */
void gpu_start(const char *const *more);
void gpu_stop(void);

/* STATUS of the GPU. */
struct gpu_figures {
    uint64_t extent_bytes, held_bytes, pages, quarantined_slots, mover_pid, mover_restarts;
    uint32_t spare_extents, retired_extents, lent_extents;
    int state;
};
struct gpu_figures gpu_figures(void);

/* Pages that were found damaged, by all starts: the log goes on. */
unsigned gpu_damaged_pages(void);

/* Asks until they are: bounded, and then checked. */
void gpu_wait_for_quarantined(uint64_t slots);
void gpu_wait_for_extents(uint64_t n);
void gpu_wait_for_held(uint64_t slots);

/* A descriptor that tells of every reading of the driver's list from now on, and waiting for the next one;
 * after gpu_list_also(). The caller closes it. */
int gpu_watch_list(void);
void gpu_wait_for_list(int fd);

/* They are, and after the driver's list was read ten more times they are still; after gpu_list_also(). */
void gpu_stays_quarantined(uint64_t slots);

/* What the stand-in's list of processes has beside the truth, in a file: gpu_list_also() before the daemon is
 * started. */
void gpu_list_also(pid_t pid); /* 0: nobody */
