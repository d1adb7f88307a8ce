/* How much memory this process has, as the kernel counts it. For STATUS. */
#pragma once

#include <stdint.h>

/* Memory behind a memfd: a sparse one has only what was written. 0 if it cannot be known. */
uint64_t usage_of_fd(int fd);

/* Anonymous memory of the process: heap, stacks, buffers of the loop; no shared objects, no files. 0 if
 * unknown. */
uint64_t usage_of_process(void);
