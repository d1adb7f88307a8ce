/* Common to the files of the stand-in driver; devices.c describes the driver. Only functions with API
 * are visible outside the library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/cuda/driver.h"
#include "tests/standin/graph.h"
#include "tests/standin/libcuda.h"

#define API __attribute__((visibility("default")))

/* The prototypes come from the calls of gpu/cuda/, so a stand-in with other types does not compile. */
#define PROTOTYPE(member, symbol, arguments) API cu_result symbol arguments;
CUDA_CALLS(PROTOTYPE)

enum { DEVICES_MAX = 4 };

struct range {
    cu_ptr base;
    size_t bytes; /* 0: free */
};

/* ---- devices.c: start of every call ---- */

struct standin {
    pid_t pid; /* of the process that called cuInit(); 0: not called */
    int n_devices, version, no_fd, mps, compute;
    size_t device_bytes, used[DEVICES_MAX];
    int late;
    long lost_after, n_launches; /* lost_after < 0: never */
};

extern struct standin state;

/* CU_SUCCESS, or the error that the call must return. */
cu_result enter(const char *call);

#define ENTER()                                                                                              \
    do {                                                                                                     \
        cu_result _r = enter(__func__);                                                                      \
        if (_r != CU_SUCCESS)                                                                                \
            return _r;                                                                                       \
    } while (0)

bool is_device(int device);
int current_device(void); /* device of the context of this thread; -1: no context */

/* ---- memory.c: cuMemCreate() and its mappings ---- */

/* The mapping that contains @at, and the access that it allows; false: none. */
bool find_mapped(cu_ptr at, struct range *ret, int *ret_access);
/* Checks that the bytes belong to one allocation, or to one mapping with the access needed, and that the
 * thread has a context. */
cu_result check_touch(cu_ptr at, size_t bytes, int access);
void count_memory(struct standin_left *left);

/* ---- allocations.c: cuMemAlloc() ---- */

/* The allocation that contains @at; false: none. */
bool find_allocated(cu_ptr at, struct range *ret);
void count_allocations(struct standin_left *left);
/* The @i-th slot of this process's own allocations; 0 bytes if the slot is free. False: no such slot. */
bool allocation_at(int i, struct range *ret);

/* ---- streams.c: work runs at once, or late, or is recorded while a stream captures ---- */

enum work_kind { WORK_COPY, WORK_SET, WORK_LAUNCH };
enum { PARAM_BYTES_MAX = 4096 };

struct work {
    enum work_kind kind;
    cu_ptr to, from; /* addresses of the device, or of the host */
    bool to_host, from_host;
    size_t bytes;
    unsigned char value;
    const char *kernel;
    unsigned grid[3], n_threads, shared;
    size_t param_bytes;
    _Alignas(16) unsigned char params[PARAM_BYTES_MAX];
};

cu_result submit(cu_stream stream, const struct work *w);
cu_result run_now(const struct work *w);      /* work.c */
cu_result check_ranges(const struct work *w); /* work.c */
bool is_stream(cu_stream stream);             /* true for NULL, the default stream */
bool is_capturing(cu_stream stream);

/* STANDIN_LATE: the number of the last work of a stream; 0: all of it ran at once. */
uint64_t last_ticket(cu_stream stream);
/* Runs work that is late, up to number @ticket. Returns how much of it there was. */
size_t run_late(cu_stream stream, uint64_t ticket);
void run_all_late(void);

/* Calls that write device memory may return before the bytes arrive; a wait for the context, or the next such
 * call, ends that. */
void all_arrived(void);
bool is_arriving(cu_ptr at, size_t bytes);

/* Called at the start of calls that wait for the default stream, or may wait for the device: while a stream
 * captures, they fail and invalidate the capture. */
cu_result refuse_waits(void);
cu_result refuse_unsafe(void);
void count_streams(struct standin_left *left);

/* ---- events.c ---- */

void count_events(struct standin_left *left);

/* ---- launch.c ---- */

void count_modules(struct standin_left *left);

/* ---- wrong.c ---- */

void read_wrong(void); /* STANDIN_WRONG, at cuInit() */
bool is_wrong(const char *kernel);
/* Called instead of @run, which launches. */
cu_result run_wrong(cu_result (*run)(const struct work *w), const struct work *w);

/* ---- graphs: found by tests with dlsym() ---- */

GRAPH_CALLS(PROTOTYPE)
#undef PROTOTYPE
