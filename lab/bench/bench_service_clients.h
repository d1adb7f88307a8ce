/*
 * Client processes of a measurement, which run the same function concurrently. The first failure of any of
 * them is the failure of the measurement. For `kvcobra-lab bench service`.
 */
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
void bench_clients_deinit(struct bench_clients *c); /* kills remaining processes; accepts zeros */

/* Forks a process that runs @run(@ctx, its number) and exits. Return: 0; a negative errno with a sentence. */
int bench_clients_add(struct bench_clients *c, int (*run)(void *ctx, unsigned number, struct errmsg *e),
                      void *ctx, struct errmsg *e);

/* In a client: reports that it is prepared, and waits for bench_clients_go(). False: a client failed. */
bool bench_clients_wait_go(struct bench_clients *c);
/* In the parent: waits until @n clients are prepared, and starts them. */
void bench_clients_go(struct bench_clients *c, unsigned n);

bool bench_clients_failed(const struct bench_clients *c); /* a client failed: stop */

/* Waits for all. Return: 0; the first failure, with its sentence. */
int bench_clients_finish(struct bench_clients *c, struct errmsg *e);
