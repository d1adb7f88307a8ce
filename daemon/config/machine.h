/* What the machine has, for comparison with the configuration. */
#pragma once

#include <stdint.h>

/* Bytes of memory that this process and its control groups may use at most; 0: unknown. */
uint64_t machine_memory_bytes(void);
