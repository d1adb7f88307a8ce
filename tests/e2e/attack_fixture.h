/*
 * What hostile processes do to others: waits of a neighbour and of an operator, beside an exchange with a
 * process that only echoes, and the memory of the daemon.
 *
 * The hostile processes belong to one user and, where the machine has cgroups with a CPU controller, to a
 * cgroup of their own. The neighbour is another user's process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Repeats requests until it is killed. */
typedef void attack_fn(void);

enum { ATTACK_PROCESSES_MAX = 32, ATTACK_WAITS_MAX = 1 << 17 };

/* In the order of measurement. */
struct attack_waits {
    uint32_t n, us[ATTACK_WAITS_MAX];
};

struct attack_result {
    struct attack_waits daemon, echo; /* of the neighbour's exchanges */
    struct attack_waits status;       /* connection, HELLO, CONFIRM and GET_STATUS of an operator */
    uint32_t n_refused;               /* requests of the neighbour that did not get what they asked for */
    bool done;                        /* the neighbour measured until the end */
    /* the largest growth of heap and memory objects, without pages and arenas, which quotas limit */
    uint64_t grown_bytes;
};

/* How the daemon runs; flags. */
enum attack_daemon {
    ATTACK_DEAF_MANAGER = 1, /* it stores its descriptors with a service manager that never reads */
    ATTACK_DISK = 2,         /* it has a disk tier */
};

/* True if the hostile processes have a cgroup of their own. */
bool attack_has_cgroup(void);

/*
 * Starts the service of raw_service_fixture.h, measures during the attacks for @ms, and ends it; asserts.
 * @attacks: [n], one process each
 * @with:    enum attack_daemon
 * Return: borrowed until the next call.
 */
struct attack_result *attack_measure(attack_fn *const *attacks, size_t n, unsigned with, unsigned ms);

/* The wait at a share @q of 1 of all waits, by nearest rank, in microseconds. Sorts. */
uint32_t attack_quantile(struct attack_waits *w, double q);
