/*
 * Ctrl-C for work that can be resumed: the first SIGINT or SIGTERM sets a flag, which the work reads between
 * windows, and prints a line on stderr. The second signal of the same number ends the process. For commands
 * only, which own their process.
 */
#pragma once

#include <stdbool.h>

/* Installs the handlers. */
void interrupt_watch(void);

/* Whether a signal arrived. */
bool interrupt_seen(void);
