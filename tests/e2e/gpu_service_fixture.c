/* A daemon with a GPU of the stand-in driver; see gpu_service_fixture.h. */
#include "tests/e2e/gpu_service_fixture.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { ARGS_MAX = 24, SLOT_BYTES = GPU_PAGE_BYTES };

/* Processes that the stand-in lists although they do not use the GPU. */
static char list_path[64];
static pid_t list_owner;

const char *const *gpu_args(const char *const *more)
{
    static char mover[256];
    static const char *args[ARGS_MAX];
    size_t n = 0;

    assert(getenv("KVC_MOVER"));
    (void) snprintf(mover, sizeof(mover), "--mover=%s", getenv("KVC_MOVER"));
    args[n++] = mover;
    args[n++] = "--gpu=" GPU_UUID;
    args[n++] = "--gpu-pool-bytes=2M";
    args[n++] = "--gpu-extent-bytes=512K";
    args[n++] = "--gpu-span-bytes=128K";
    args[n++] = "--gpu-reuse-ms=100";
    args[n++] = "--gpu-quota-bytes=8M"; /* so that the pool is the limit */
    args[n++] = "--lease-ms=2000";
    args[n++] = "--handshake-ms=200"; /* ticks every 50 ms */
    args[n++] = "--pool-bytes=4M";
    args[n++] = "--extent-bytes=1M";
    args[n++] = "--span-bytes=256K";
    args[n++] = "--arena-bytes=64K";
    for (; more && *more && n + 1 < ARGS_MAX; more++)
        args[n++] = *more;
    args[n] = NULL;
    return args;
}

void gpu_start(const char *const *more)
{
    raw_start(DAEMON_BY_PATH, gpu_args(more));
}

void gpu_stop(void)
{
    raw_wait_for_no_sessions();
    raw_stop();
}

struct gpu_status gpu_status(void)
{
    Kvcobra__Reply *r = raw_status();
    const Kvcobra__DeviceStatus *d;
    struct gpu_status f;

    assert(r->status->n_devices == 2);
    d = r->status->devices[1];
    f = (struct gpu_status){
        .extent_bytes = d->extent_bytes,
        .held_bytes = d->held_bytes,
        .pages = d->pages,
        .quarantined_slots = d->quarantined_slots,
        .mover_pid = r->status->mover_pid,
        .mover_restarts = r->status->mover_restarts,
        .spare_extents = d->spare_extents,
        .retired_extents = d->retired_extents,
        .state = (int) d->state,
    };
    wire_reply_free(r);
    return f;
}

unsigned gpu_damaged_pages(void)
{
    FILE *f = fopen(raw_daemon.log, "re");
    char line[2048];
    unsigned n = 0;

    while (f && fgets(line, sizeof(line), f))
        n += strstr(line, "event=page-damaged") != NULL;
    if (f)
        (void) fclose(f);
    return n;
}

static bool soon(bool (*is)(const struct gpu_status *f, uint64_t n), uint64_t n)
{
    struct wait w = wait_begin();
    struct gpu_status f;

    do
        f = gpu_status();
    while (!is(&f, n) && wait_again(&w));
    return is(&f, n);
}

static bool quarantined(const struct gpu_status *f, uint64_t n)
{
    return f->quarantined_slots == n;
}

static bool extents(const struct gpu_status *f, uint64_t n)
{
    return f->extent_bytes == n * GPU_EXTENT_BYTES;
}

static bool held(const struct gpu_status *f, uint64_t n)
{
    return f->held_bytes == n * SLOT_BYTES;
}

int gpu_watch_list(void)
{
    int fd = inotify_init1(IN_CLOEXEC);

    assert(fd >= 0 && inotify_add_watch(fd, list_path, IN_CLOSE_NOWRITE) >= 0);
    return fd;
}

void gpu_wait_for_list(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct inotify_event event;

    CU_ASSERT_EQUAL_FATAL(poll(&p, 1, WAIT_LIMIT_S * 1000), 1);
    CU_ASSERT_EQUAL_FATAL(read(fd, &event, sizeof(event)), sizeof(event));
}

/* The daemon reads the list at a tick, and applies it before the next tick. */
void gpu_stays_quarantined(uint64_t slots)
{
    enum { LISTS = 10 };
    int fd = gpu_watch_list();

    for (unsigned i = 0; i < LISTS; i++) {
        gpu_wait_for_list(fd);
        CU_ASSERT_EQUAL_FATAL(gpu_status().quarantined_slots, slots);
    }
    (void) close(fd);
}

void gpu_wait_for_quarantined(uint64_t slots)
{
    CU_ASSERT_FATAL(soon(quarantined, slots));
}

void gpu_wait_for_extents(uint64_t n)
{
    CU_ASSERT_FATAL(soon(extents, n));
}

void gpu_wait_for_held(uint64_t slots)
{
    CU_ASSERT_FATAL(soon(held, slots));
}

static void remove_list(void)
{
    if (getpid() == list_owner)
        (void) unlink(list_path);
}

void gpu_list_process(pid_t pid)
{
    FILE *f;

    if (list_path[0] == '\0') {
        list_owner = getpid();
        (void) snprintf(list_path, sizeof(list_path), "/tmp/kvcobra-test-listed-%ld", (long) list_owner);
        assert(atexit(remove_list) == 0);
    }
    f = fopen(list_path, "we");
    assert(f && (pid == 0 || fprintf(f, "%ld\n", (long) pid) > 0) && fclose(f) == 0);
    assert(setenv("STANDIN_ALSO_LISTED", list_path, 1) == 0);
}
