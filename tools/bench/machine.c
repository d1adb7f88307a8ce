/* The name of the processor; see machine.h. */
#include "tools/bench/machine.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

/* "model name : ..." of /proc/cpuinfo; only x86 has this line */
void machine_cpu_name(char ret[static MACHINE_CPU_NAME_BYTES])
{
    _cleanup_(fclosep) FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];

    (void) snprintf(ret, MACHINE_CPU_NAME_BYTES, "unknown");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "model name", strlen("model name")) == 0 && strchr(line, ':')) {
            (void) snprintf(ret, MACHINE_CPU_NAME_BYTES, "%.*s", (int) strcspn(strchr(line, ':') + 2, "\n"),
                            strchr(line, ':') + 2);
            return;
        }
}
