/* Processes that do the same side by side for a measurement, and fail as one. For `kvcobra bench service`. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct bench_clients_state;
struct errmsg;

#define BENCH_CLIENTS_MAX 72

struct bench_clients {
    struct bench_clients_state *state; /* shared between the processes */
    unsigned n;
    pid_t pids[BENCH_CLIENTS_MAX];
};

int bench_clients_init(struct bench_clients *c, struct errmsg *e);
void bench_clients_deinit(
    struct bench_clients *c); /* kills who is left; right as a cleanup, zeros are fine */

/* Forks a process that runs @run(@ctx, its number) and exits. Return: 0; a negative errno with a sentence. */
int bench_clients_add(struct bench_clients *c, int (*run)(void *ctx, unsigned number, struct errmsg *e),
                      void *ctx, struct errmsg *e);

/* In any of them: prepared, waiting for bench_clients_go(). False: somebody failed, or the parent is gone. */
bool bench_clients_wait_go(struct bench_clients *c);
/* In the parent: once @n are prepared, all begin together. */
void bench_clients_go(struct bench_clients *c, unsigned n);

bool bench_clients_failed(const struct bench_clients *c); /* somebody did: time to stop */

/* Waits for all. Return: 0; the first failure, with its sentence. */
int bench_clients_finish(struct bench_clients *c, struct errmsg *e);
