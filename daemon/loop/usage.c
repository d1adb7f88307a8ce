/* See usage.h. */
#include "daemon/loop/usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

uint64_t usage_of_fd(int fd)
{
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t) st.st_blocks * 512 : 0;
}

/* statm: size, resident, shared (files and shared memory), in pages. */
uint64_t usage_of_process(void)
{
    _cleanup_(closep) int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    unsigned long long size, resident, shared;
    char text[128];
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

    if (n <= 0)
        return 0;

    text[n] = '\0';
    if (sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3 || shared > resident)
        return 0;
    return (resident - shared) * (uint64_t) sysconf(_SC_PAGESIZE);
}
