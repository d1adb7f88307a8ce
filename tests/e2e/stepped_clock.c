/*
 * A wall clock that a test steps, for programs that are started with LD_PRELOAD. KVC_TEST_CLOCK names a file
 * with one int64: the seconds that are added to the time of day. The monotonic clocks are those of the
 * system.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *ret);
__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict ret, void *restrict zone);
__attribute__((visibility("default"))) time_t time(time_t *ret);

static const int64_t *offset_s;

__attribute__((constructor)) static void stepped_clock_begin(void)
{
    const char *path = getenv("KVC_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd >= 0 ? mmap(NULL, sizeof(*offset_s), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (fd >= 0)
        (void) close(fd);
    if (at == MAP_FAILED)
        abort(); /* the test would pass without a step */
    offset_s = at;
}

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    int r = (int) syscall(SYS_clock_gettime, clock, ret);

    if (r == 0 && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        ret->tv_sec += __atomic_load_n(offset_s, __ATOMIC_RELAXED);
    return r;
}

int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    struct timespec now;

    (void) zone;
    (void) clock_gettime(CLOCK_REALTIME, &now);
    *ret = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *ret)
{
    struct timespec now;

    (void) clock_gettime(CLOCK_REALTIME, &now);
    if (ret)
        *ret = now.tv_sec;
    return now.tv_sec;
}
