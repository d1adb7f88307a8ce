/*
 * The scenarios of `kvcobra-lab bench service`, one per file. Each starts its own daemon with a synthetic
 * model and checks all results that it times.
 *
 *     load     lease and commit, compared with a bare exchange of packets under the same load;
 *              lookup of a prefix
 *     memory   memory of the daemon beside the pages, with many pages, clients and leases
 *     swap     appending and reading while tables are swapped, compared with phases without swaps
 *     restart  a daemon with many held pages is killed and started again
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
    const struct bench_gpu *device; /* the GPU of swap and restart; NULL: the host's memory */
    unsigned n_clients, n_rounds;   /* load and swap: processes; load: rounds of each */
    bool quick;                     /* small sizes, only to show that the bench works */
};

/* Each returns 0, or a negative errno with a sentence, also for wrong results. No sentence: a signal
 * arrived. */

struct load_metrics {                                /* seconds */
    struct timing ping, lease, commit, copy, lookup; /* copy: of a page, with its CRC; lookup: of one chunk */
    size_t page_bytes, n_samples;
};
int service_load(const struct service_options *o, struct load_metrics *ret, struct errmsg *e);

struct memory_state { /* bytes */
    uint64_t n_pages, n_sessions, n_leases, n_evicted;
    uint64_t slot_records, index, holds, heap; /* from STATUS */
    uint64_t resident; /* memory of the process without pages and arenas, from the kernel */
};
struct memory_metrics {
    struct memory_state filled, churned; /* churned: after n_churned more pages, with new leases */
    uint64_t n_churned, page_bytes;
    double seconds; /* of filling */
};
int service_memory(const struct service_options *o, struct memory_metrics *ret, struct errmsg *e);

struct swap_latency { /* seconds, of a call of the library */
    size_t n;
    double median, p99, p999, max;
};
/* On a GPU the time of a call includes kvc_client_synchronize(), so that its queued work is done. */
enum swap_call { SWAP_BEGIN, SWAP_MATCH, SWAP_APPEND, SWAP_COMMIT, SWAP_READ, SWAP_CALLS };
struct swap_latencies {
    struct swap_latency all, of[SWAP_CALLS];
};
struct swap_metrics {
    unsigned n_swaps;
    uint64_t n_sequences, n_reads;   /* reads: of a layer's keys or values, compared bit for bit */
    uint64_t n_matched, n_published; /* tokens: matched; in the pool at the end, with the matched ones */
    uint64_t n_failed, n_wrong;
    struct errmsg failure; /* the first one; empty */
    struct swap_latencies swapping, quiet;
};
int service_swap(const struct service_options *o, struct swap_metrics *ret, struct errmsg *e);

struct restart_metrics {
    unsigned n_restarts;
    uint64_t n_pages, page_bytes, n_found, n_sampled, n_identical, n_held; /* the least over all restarts */
    uint64_t n_lower;            /* new generations that were not above all earlier ones */
    struct timing exit, serving; /* seconds: from SIGKILL to exit; from start to the first reply */
    struct timing gpu; /* from start to the first leased page of a session on the GPU; with device only */
};
int service_restart(const struct service_options *o, struct restart_metrics *ret, struct errmsg *e);

/* ---- report (bench_service_report.c) ---- */

struct service_metrics { /* NULL: not measured */
    const struct load_metrics *load;
    const struct memory_metrics *memory;
    const struct swap_metrics *swap;
    const struct restart_metrics *restart;
};

/* Return: exit codes of command.h. */
int service_print_json(const struct service_metrics *f, const struct service_options *o);
int service_print_text(const struct service_metrics *f, const struct service_options *o);
