/* See machine.h. */
#include "daemon/config/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "base/cleanup.h"

enum { GROUP_BYTES = 4096 };

static uint64_t machine_read_limit(const char *group)
{
    char path[GROUP_BYTES + 64];
    uint64_t limit = UINT64_MAX;
    FILE *f;

    (void) snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
    f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &limit) != 1) /* "max" */
        limit = UINT64_MAX;
    (void) fclose(f);
    return limit;
}

/* The lowest limit of the control group of this process and of those above it; version 2 only. */
static uint64_t machine_group_limit(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[GROUP_BYTES], *group = NULL;
    uint64_t lowest = UINT64_MAX;

    while (f && !group && fgets(line, sizeof(line), f))
        if (strncmp(line, "0::", 3) == 0)
            group = line + 3;
    if (f)
        (void) fclose(f);
    if (!group)
        return lowest;

    group[strcspn(group, "\n")] = '\0';
    for (;;) {
        uint64_t limit = machine_read_limit(group);
        char *slash = strrchr(group, '/');

        lowest = limit < lowest ? limit : lowest;
        if (!slash)
            return lowest;
        *slash = '\0';
    }
}

uint64_t machine_memory_bytes(void)
{
    uint64_t group = machine_group_limit(), all;
    struct sysinfo info;

    if (sysinfo(&info) < 0)
        return group == UINT64_MAX ? 0 : group;

    all = (uint64_t) info.totalram * info.mem_unit;
    return group < all ? group : all;
}
