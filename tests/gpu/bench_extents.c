/* bench_extents: what sharing GPU memory costs. One process makes extents, as kvcobra-mover does; another
 * maps them, as a client does. Every call of the driver is timed separately, by the clock of the host,
 * since none of them is queued. tests/gpu/run.sh puts the table into its report. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/extent.h"
#include "proto/wire.h"
#include "lab/bench/bench_service_clients.h"
#include "lab/bench/bench_service_device.h"
#include "tools/command/clock.h"
#include "tools/command/report.h"
#include "tools/bench/timing.h"

#define MIB ((size_t) 1 << 20)

enum { OPT_MIB = 1, OPT_SAMPLES, OPT_JSON, SIZES_MAX = 4, SAMPLES_MAX = 200, ROW_MAPPINGS = 16 };

/* MAKE: everything that makes an extent, clearing and exporting included. USE: everything that a client
 * does for one. The others are single calls. */
enum step { MAKE, CREATE, EXPORT, CLEAR, USE, IMPORT, MAP, ACCESS, UNMAP, N_STEPS };

static const char *const step_names[N_STEPS] = {
    "make, total", "create", "export", "map, clear, unmap", "use, total", "import", "map", "access", "unmap",
};
static const char *const step_keys[N_STEPS] = {"make",   "create", "export", "clear", "use",
                                               "import", "map",    "access", "unmap"};

struct row {
    double seconds[N_STEPS][SAMPLES_MAX];
    double in_a_row; /* seconds of ROW_MAPPINGS mappings, one after the other, without unmapping */
};

struct shared {
    struct bench_gpu device;
    int driver_version;
    struct row rows[SIZES_MAX];
};

struct bench {
    size_t mib[SIZES_MAX], n_sizes, samples;
    bool json;
    const char *json_file;
    struct bench_clients clients;
    struct shared *shared;
    int ends[2]; /* sockets of the maker and of the client */
};

/* One of the two processes. */
struct side {
    struct cuda_driver *driver;
    struct cuda_device_info info;
    struct cuda_space *space;
};

static const char doc[] =
    "Time the calls that make, export, import, map and unmap GPU memory, between two processes, on the first "
    "GPU.\v'make' and 'use' are what the daemon's mover and a client do for one extent; the calls below them "
    "are their parts. In a row: 16 mappings of one extent without unmapping.";

static const struct argp_option options[] = {
    {"mib", OPT_MIB, "N", 0, "Size of an extent; repeat for up to four sizes (default 64, then 1024)", 0},
    {"samples", OPT_SAMPLES, "N", 0, "Measurements of each call, up to 200 (default 50)", 0},
    {"json", OPT_JSON, "FILE", OPTION_ARG_OPTIONAL, "Print JSON, or write it to FILE and print the table", 0},
    {0},
};

static size_t number(struct argp_state *state, const char *arg, size_t high)
{
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(arg, &end, 10);
    if (errno != 0 || *arg < '0' || *arg > '9' || *end != '\0' || n < 1 || n > high)
        argp_error(state, "'%s' is not a number from 1 to %zu", arg, high);
    return (size_t) n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct bench *b = state->input;

    switch (key) {
    case OPT_MIB:
        if (b->n_sizes == SIZES_MAX)
            argp_error(state, "more than %d sizes", SIZES_MAX);
        b->mib[b->n_sizes++] = number(state, arg, 65536);
        return 0;
    case OPT_SAMPLES:
        b->samples = number(state, arg, SAMPLES_MAX);
        return 0;
    case OPT_JSON:
        b->json = true;
        b->json_file = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    case ARGP_KEY_END:
        if (b->n_sizes == 0) {
            b->mib[b->n_sizes++] = 64;
            b->mib[b->n_sizes++] = 1024;
        }
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

/* ---- one of the two processes ---- */

static int open_side(const struct bench *b, struct side *s, struct errmsg *e)
{
    size_t most = 0;
    int r;

    for (size_t i = 0; i < b->n_sizes; i++)
        most = b->mib[i] > most ? b->mib[i] : most;
    *s = (struct side){.driver = NULL};
    r = cuda_driver_open(&s->driver, e);
    if (r == 0)
        r = cuda_device_find(s->driver, NULL, &s->info, e);
    return r < 0 ? r : cuda_space_new(s->driver, &s->info, (ROW_MAPPINGS + 1) * most * MIB, &s->space, e);
}

static void close_side(struct side *s)
{
    s->space = cuda_space_free(s->space);
    s->driver = cuda_driver_close(s->driver);
}

/* Seconds since *@at, which becomes now. */
static double lap(double *at)
{
    double before = *at;

    *at = clock_seconds();
    return *at - before;
}

/* ---- maker ---- */

static int clear(struct side *s, int fd, size_t bytes, struct errmsg *e)
{
    struct cuda_extent *x = NULL;
    int r = cuda_extent_import(s->space, fd, bytes, CU_ACCESS_READ_WRITE, &x, e);

    if (r == 0)
        r = cuda_extent_clear(x, e);
    (void) cuda_extent_free(x);
    return r;
}

/* cuda_extent_new() in its two calls, and the clearing of kvcobra-mover. */
static int make(struct side *s, size_t bytes, struct row *row, size_t i, int *ret_fd, struct errmsg *e)
{
    struct cu_allocation prop = {.type = CU_ALLOCATION_PINNED,
                                 .handle_types = CU_HANDLE_POSIX_FD,
                                 .location = {CU_LOCATION_DEVICE, s->info.ordinal}};
    _cleanup_(closep) int fd = -1;
    double began, at;
    cu_handle handle;
    cu_result result;
    int r = cuda_space_enter(s->space, e);

    if (r < 0)
        return r;

    began = at = clock_seconds();
    result = s->driver->mem_create(&handle, bytes, &prop, 0);
    row->seconds[CREATE][i] = lap(&at);
    if (result == CU_SUCCESS) {
        result = s->driver->mem_export(&fd, handle, CU_HANDLE_POSIX_FD, 0);
        (void) s->driver->mem_release(handle);
    }
    row->seconds[EXPORT][i] = lap(&at);
    cuda_space_leave(s->space);
    if (result != CU_SUCCESS)
        return cuda_fail(s->driver, result, e, "cannot make memory that can be shared");

    r = clear(s, fcntl(fd, F_DUPFD_CLOEXEC, 0), bytes, e);
    row->seconds[CLEAR][i] = lap(&at);
    row->seconds[MAKE][i] = at - began;
    if (r == 0)
        *ret_fd = take_fd(&fd);
    return r;
}

static int maker(struct bench *b, struct side *s, struct errmsg *e)
{
    for (size_t k = 0; k < b->n_sizes; k++)
        for (size_t i = 0; i < b->samples; i++) {
            _cleanup_(closep) int fd = -1;
            char done = 0;
            int r = make(s, b->mib[k] * MIB, &b->shared->rows[k], i, &fd, e);

            if (r < 0)
                return r;
            if (wire_send(b->ends[0], "x", 1, &fd, 1) < 0 || recv(b->ends[0], &done, 1, 0) != 1)
                return fail(e, -EIO, "the client process of the bench has ended");
        }
    return 0;
}

/* ---- client ---- */

/* cuda_extent_import() and cuda_extent_free() by single calls, at @at_address, which is reserved. */
static int use(struct side *s, cu_ptr at_address, int fd, size_t bytes, struct row *row, size_t i,
               struct errmsg *e)
{
    const struct cuda_driver *d = s->driver;
    const struct cu_access access = {.location = {CU_LOCATION_DEVICE, s->info.ordinal},
                                     .flags = CU_ACCESS_READ};
    double began, at;
    cu_handle handle;
    cu_result r;

    began = at = clock_seconds();
    r = d->mem_import(&handle, (void *) (uintptr_t) fd, CU_HANDLE_POSIX_FD);
    row->seconds[IMPORT][i] = lap(&at);
    if (r != CU_SUCCESS)
        return cuda_fail(d, r, e, "cannot import memory");

    r = d->mem_map(at_address, bytes, 0, handle, 0);
    row->seconds[MAP][i] = lap(&at);
    if (r == CU_SUCCESS) {
        r = d->set_access(at_address, bytes, &access, 1);
        row->seconds[ACCESS][i] = lap(&at);
        (void) d->mem_unmap(at_address, bytes);
        (void) d->mem_release(handle);
    }
    row->seconds[UNMAP][i] = lap(&at);
    row->seconds[USE][i] = at - began;
    return r == CU_SUCCESS ? 0 : cuda_fail(d, r, e, "cannot map memory");
}

static int use_once(struct side *s, int fd, size_t bytes, struct row *row, size_t i, struct errmsg *e)
{
    cu_ptr at = 0;
    cu_result result;
    int r = cuda_space_enter(s->space, e);

    if (r < 0)
        return r;

    result = s->driver->address_reserve(&at, bytes, 0, 0, 0);
    r = result == CU_SUCCESS ? use(s, at, fd, bytes, row, i, e)
                             : cuda_fail(s->driver, result, e, "cannot reserve addresses");
    if (result == CU_SUCCESS)
        (void) s->driver->address_free(at, bytes);
    cuda_space_leave(s->space);
    return r;
}

static int use_in_a_row(struct side *s, int fd, size_t bytes, struct row *row, struct errmsg *e)
{
    struct cuda_extent *mapped[ROW_MAPPINGS] = {NULL};
    double began = clock_seconds();
    int r = 0;

    for (size_t i = 0; r == 0 && i < ROW_MAPPINGS; i++)
        r = cuda_extent_import(s->space, fcntl(fd, F_DUPFD_CLOEXEC, 0), bytes, CU_ACCESS_READ, &mapped[i], e);
    row->in_a_row = clock_seconds() - began;
    for (size_t i = 0; i < ROW_MAPPINGS; i++)
        (void) cuda_extent_free(mapped[i]);
    return r;
}

static int client(struct bench *b, struct side *s, struct errmsg *e)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];

    for (size_t k = 0; k < b->n_sizes; k++)
        for (size_t i = 0; i < b->samples; i++) {
            struct wire_packet p = {0};
            int r;

            if (wire_receive(b->ends[1], packet, &p) < 0 || p.n_fds != 1)
                return fail(e, -EIO, "the maker process of the bench has ended");

            r = use_once(s, p.fds[0], b->mib[k] * MIB, &b->shared->rows[k], i, e);
            if (r == 0 && i + 1 == b->samples)
                r = use_in_a_row(s, p.fds[0], b->mib[k] * MIB, &b->shared->rows[k], e);
            wire_packet_close_fds(&p);
            if (r < 0)
                return r;
            if (send(b->ends[1], "x", 1, MSG_NOSIGNAL) != 1)
                return fail(e, -EIO, "the maker process of the bench has ended");
        }
    return 0;
}

/* ---- both processes ---- */

static int run_side(void *ctx, unsigned number, struct errmsg *e)
{
    struct bench *b = ctx;
    struct side s;
    int r;

    (void) close(b->ends[1 - number]); /* so that each process notices when the other ends */
    r = open_side(b, &s, e);
    if (r == 0 && number == 0)
        b->shared->driver_version = s.driver->version;
    if (r == 0)
        r = number == 0 ? maker(b, &s, e) : client(b, &s, e);
    close_side(&s);
    return r;
}

static int measure(struct bench *b, struct errmsg *e)
{
    int r = bench_device_find("first", false, &b->shared->device, e);

    if (r < 0)
        return r;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, b->ends) < 0)
        return fail(e, -errno, "cannot connect two processes: %s", strerror(errno));
    r = bench_clients_init(&b->clients, e);
    for (unsigned i = 0; r == 0 && i < 2; i++)
        r = bench_clients_add(&b->clients, run_side, b, e);
    (void) close(b->ends[0]);
    (void) close(b->ends[1]);
    if (r == 0)
        r = bench_clients_finish(&b->clients, e);
    bench_clients_deinit(&b->clients);
    return r;
}

static int print_text(struct bench *b)
{
    _cleanup_(report_freep) struct report *r = report_new("<microseconds\t>extent MiB\t>min\t>median\t>p99");

    printf("%s, driver %d; %zu samples\n%s\n", b->shared->device.name, b->shared->driver_version, b->samples,
           b->shared->device.is_standin ? BENCH_STANDIN_NOTE "\n" : "");
    for (size_t k = 0; k < b->n_sizes; k++) {
        struct row *row = &b->shared->rows[k];

        for (unsigned i = 0; i < N_STEPS; i++) {
            struct timing t = timing_of(row->seconds[i], b->samples);

            report_row(r, "%s\t%zu\t%.1f\t%.1f\t%.1f", step_names[i], b->mib[k], t.min * 1e6, t.median * 1e6,
                       t.p99 * 1e6);
        }
        report_row(r, "one of %d in a row\t%zu\t\t%.1f\t", ROW_MAPPINGS, b->mib[k],
                   row->in_a_row / ROW_MAPPINGS * 1e6);
    }
    report_print(r, stdout);
    putchar('\n');
    for (size_t k = 0; k < b->n_sizes; k++)
        printf("extents of %zu MiB that a client maps in a second: %.0f\n", b->mib[k],
               ROW_MAPPINGS / b->shared->rows[k].in_a_row);
    return 0;
}

static json_t *bench_json(struct bench *b)
{
    const struct bench_gpu *d = &b->shared->device;
    json_t *rows = json_array();

    for (size_t k = 0; k < b->n_sizes; k++) {
        struct row *row = &b->shared->rows[k];
        json_t *us = json_object();

        for (unsigned i = 0; i < N_STEPS; i++)
            (void) json_object_set_new(us, step_keys[i],
                                       timing_json(timing_of(row->seconds[i], b->samples), 1e6));
        (void) json_array_append_new(rows, json_pack("{s:I, s:I, s:o, s:f}", "bytes",
                                                     (json_int_t) (b->mib[k] * MIB), "samples",
                                                     (json_int_t) b->samples, "us", us, "maps_per_second",
                                                     ROW_MAPPINGS / row->in_a_row));
    }
    return json_pack("{s:{s:s, s:s, s:b}, s:i, s:o}", "gpu", "uuid", d->uuid, "name", d->name, "stand_in",
                     d->is_standin, "driver", b->shared->driver_version, "rows", rows);
}

static int show(struct bench *b, struct errmsg *e)
{
    json_t *json;
    int r;

    if (!b->json)
        return print_text(b);

    json = bench_json(b);
    if (!json)
        return fail(e, -ENOMEM, "out of memory");
    if (!b->json_file)
        return report_json(json) == 0 ? 0 : fail(e, -EIO, "cannot print the results");

    r = json_dump_file(json, b->json_file, JSON_INDENT(2));
    json_decref(json);
    return r < 0 ? fail(e, -EIO, "cannot write the results to %s", b->json_file) : print_text(b);
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct bench b = {.samples = 50};
    struct errmsg e = {""};
    int r;

    (void) argp_parse(&argp, argc, argv, 0, NULL, &b);
    b.shared = mmap(NULL, sizeof(*b.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    r = b.shared != MAP_FAILED ? measure(&b, &e) : fail(&e, -ENOMEM, "out of memory");
    if (r == 0)
        r = show(&b, &e);
    if (r < 0)
        (void) fprintf(stderr, "bench_extents: %s\n", e.text[0] ? e.text : strerror(-r));
    if (b.shared != MAP_FAILED)
        (void) munmap(b.shared, sizeof(*b.shared));
    return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
