/*
 * A kvcobrad with one GPU of the stand-in driver: 4 extents of 512 KiB in spans of 128 KiB, which take 31
 * pages of the small model each.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/e2e/gpu_client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"

enum { GPU_EXTENT_BYTES = 512 << 10, GPU_SLOTS_PER_EXTENT = 4 * 31 };

/* Options of every daemon of these tests, then @more; valid until the next call. */
const char *const *gpu_args(const char *const *more);

/* As raw_start(), raw_stop(). */
void gpu_start(const char *const *more);
void gpu_stop(void);

/* STATUS of the GPU. */
struct gpu_status {
    uint64_t extent_bytes, held_bytes, pages, quarantined_slots, mover_pid, mover_restarts;
    uint32_t spare_extents, retired_extents;
    int state;
};
struct gpu_status gpu_status(void);

/* Pages that were found damaged, counted over all starts of the daemon. */
unsigned gpu_damaged_pages(void);

/* Wait until STATUS has the number; assert. */
void gpu_wait_for_quarantined(uint64_t slots);
void gpu_wait_for_extents(uint64_t n);
void gpu_wait_for_held(uint64_t slots);

/*
 * gpu_watch_list() returns a descriptor, which the caller closes. gpu_wait_for_list() waits until the daemon
 * reads the driver's list of processes again. Call gpu_list_process() first.
 */
int gpu_watch_list(void);
void gpu_wait_for_list(int fd);

/*
 * Asserts the number now and after each of ten readings of the driver's list. Call gpu_list_process() first.
 */
void gpu_stays_quarantined(uint64_t slots);

/*
 * Makes the stand-in list @pid as a process that uses the GPU, by a file. The first call comes
 * before the daemon's start.
 */
void gpu_list_process(pid_t pid); /* 0: no process */
