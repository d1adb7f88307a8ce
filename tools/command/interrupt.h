/*
 * Ctrl-C for work that can be continued: the first SIGINT or SIGTERM is noted, so that what is running can
 * come to a good end, and said so on stderr; the second one of its kind ends the process as it always does.
 */
#pragma once

#include <stdbool.h>

/* From now on. For commands, which own their process. */
void interrupt_watch(void);

/* Whether one came. */
bool interrupt_seen(void);
