/*
 * What `kvcobra bench service` measures: one scenario per file, each with a daemon of its own, a synthetic
 * model, and checks of everything that it times.
 *
 *   load     a lease and a commit beside a bare exchange of packets under the same load; the lookup of a
 * prefix memory   what the daemon needs beside the pages, with many pages, clients and leases swap appending
 * and reading while tables are replaced all the time, beside stretches in which they are not restart  a
 * daemon with many held pages is killed and started again
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "tools/bench/timing.h"

#define SERVICE_LOOKUPS 512 /* chunks of one prefix */
#define SERVICE_CLIENTS_MAX 64

struct bench_gpu;

struct service_options {
    const char *daemon, *mover;     /* paths of kvcobrad and kvcobra-mover */
    const struct bench_gpu *device; /* the GPU that swap and restart are about; NULL: the host's memory */
    unsigned n_clients, n_rounds;   /* load and swap: processes; load: rounds of each */
    bool quick;                     /* sizes only to see that it works */
};

/* Each returns 0, or a negative errno with a sentence (none: a signal came), also for a result that is wrong.
 */

struct load_figures {                                /* seconds */
    struct timing ping, lease, commit, copy, lookup; /* copy: of a page, with its CRC; lookup: of one chunk */
    size_t page_bytes, n_samples;
};
int service_load(const struct service_options *o, struct load_figures *ret, struct errmsg *e);

struct memory_state { /* bytes */
    uint64_t n_pages, n_sessions, n_leases, n_evicted;
    uint64_t slot_records, index, holds, heap; /* as STATUS says */
    uint64_t resident; /* all that the process has in memory but pages and arenas, by the kernel */
};
struct memory_figures {
    struct memory_state filled, churned; /* churned: after as many more pages and leases as n_churned says */
    uint64_t n_churned, page_bytes;
    double seconds; /* of filling */
};
int service_memory(const struct service_options *o, struct memory_figures *ret, struct errmsg *e);

struct swap_latency { /* seconds, of a call of the library */
    size_t n;
    double median, p99, p999, max;
};
/* On a GPU a call ends when kvc_client_synchronize() after it has: what it queued is done then. */
enum swap_call { SWAP_BEGIN, SWAP_MATCH, SWAP_APPEND, SWAP_COMMIT, SWAP_READ, SWAP_CALLS };
struct swap_latencies {
    struct swap_latency all, of[SWAP_CALLS];
};
struct swap_figures {
    unsigned n_swaps;
    uint64_t n_sequences, n_reads; /* reads: of a layer's keys or values, compared bit for bit */
    uint64_t n_matched,
        n_published; /* tokens found published by others; in the pool at the end, those with them */
    uint64_t n_failed, n_wrong;
    struct errmsg failure; /* the first one; empty */
    struct swap_latencies swapping, quiet;
};
int service_swap(const struct service_options *o, struct swap_figures *ret, struct errmsg *e);

struct restart_figures {
    unsigned n_restarts;
    uint64_t n_pages, page_bytes, n_found, n_sampled, n_identical,
        n_held;                  /* after each of the restarts, the least */
    uint64_t n_lower;            /* generations given out that were not above all earlier ones */
    struct timing exit, serving; /* seconds: SIGKILL to its end; start to the first answer */
    struct timing gpu;           /* start until a session on the GPU has its first page; device only */
};
int service_restart(const struct service_options *o, struct restart_figures *ret, struct errmsg *e);

/* ---- what is asked (bench_service_report.c) ---- */

struct service_figures { /* NULL: not measured */
    const struct load_figures *load;
    const struct memory_figures *memory;
    const struct swap_figures *swap;
    const struct restart_figures *restart;
};

/* Return: exit codes of command.h. */
int service_print_json(const struct service_figures *f, const struct service_options *o);
int service_print_text(const struct service_figures *f, const struct service_options *o);
