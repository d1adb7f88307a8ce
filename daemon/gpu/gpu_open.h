/*
 * Opens GPUs through kvcobra-mover: at the start, and again when a request needs a GPU that could not be
 * opened. While a GPU cannot be opened, its device has the reason as a sentence, and kvcobrad serves all
 * other devices.
 *
 *     OPENING --mover--> READY
 *         \--no driver, no such GPU, impossible sizes--> UNAVAILABLE --request, after a pause--> OPENING
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct config;
struct device;
struct devices;
struct errmsg;
struct ev;
struct host_memory;
struct mover;
struct persist;

/* Callbacks to the sessions, which are in a room above. They concern the memory of dead processes. */
struct gpu_sessions {
    /* Ends the session of a dead process. @retired: its extents take no new pages; else they may. */
    void (*end)(void *ctx, uint32_t session, bool retired);
    /* Slots that the session holds or has reserved. */
    uint64_t (*count_slots)(void *ctx, uint32_t session);
    void *ctx;
};

/* The parts of the daemon that all GPUs use. All pointers are borrowed. */
struct gpus {
    const struct config *config;
    struct ev *ev;
    struct devices *devices;
    struct persist *persist;
    struct host_memory *memory;
    struct mover *mover; /* NULL: no GPU is configured */
    struct gpu_sessions sessions;
};

enum { GPU_PAUSE_MS_MIN = 1000, GPU_PAUSE_MS_MAX = 60000 /* between two tries; doubles */ };

/* Begins to open all GPUs of the configuration. Does not wait. */
void gpu_open_all(struct gpus *gpus);

/*
 * Whether sessions may begin on @d. Return, with a sentence: 0; -EAGAIN: the GPU is being opened, or the
 * mover ended and will be started again; -ENODEV: the GPU cannot be opened.
 */
int gpu_open_check(struct device *d, struct errmsg *e);
