/* Memory that this process uses, as the kernel counts it. For STATUS. */
#pragma once

#include <stdint.h>

/* Memory behind a memfd: only the written pages of a sparse one. 0: unknown. */
uint64_t usage_of_fd(int fd);

/* Anonymous memory of the process: heap, stacks, buffers; no shared objects, no files. 0: unknown. */
uint64_t usage_of_process(void);
