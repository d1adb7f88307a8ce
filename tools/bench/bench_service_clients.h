/* Processes that do the same side by side for a measurement, and fail as one. For `kvcobra bench service`. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct crew_state;
struct errmsg;

#define CREW_MAX 72

struct crew {
    struct crew_state *state; /* shared between the processes */
    unsigned n;
    pid_t pids[CREW_MAX];
};

int crew_init(struct crew *c, struct errmsg *e);
void crew_deinit(struct crew *c); /* kills who is left; right as a cleanup, zeros are fine */

/* Forks a process that runs @run(@ctx, its number) and exits. Return: 0; a negative errno with a sentence. */
int crew_add(struct crew *c, int (*run)(void *ctx, unsigned number, struct errmsg *e), void *ctx,
             struct errmsg *e);

/* In any of them: prepared, waiting for crew_go(). False: somebody failed, or the parent is gone. */
bool crew_wait_go(struct crew *c);
/* In the parent: once @n are prepared, all begin together. */
void crew_go(struct crew *c, unsigned n);

bool crew_failed(const struct crew *c); /* somebody did: time to stop */

/* Waits for all. Return: 0; the first failure, with its sentence. */
int crew_finish(struct crew *c, struct errmsg *e);
