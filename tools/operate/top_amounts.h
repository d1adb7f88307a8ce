/* Counters and rates in few columns, for `kvcobra top`. */
#pragma once

#include <stdint.h>

/* Growth of a counter. One that became smaller belongs to a daemon that was restarted. */
uint64_t top_amounts_growth(uint64_t now, uint64_t before);

/* Each returns @ret. */
const char *top_amounts_rate(uint64_t n, double seconds, char ret[static 16]);

/* Percent of looked-up chunks that were found; "-" if none was looked up. */
const char *top_amounts_hit_rate(uint64_t hits, uint64_t misses, char ret[static 16]);

/* "12k", "3.4M". */
const char *top_amounts_count(uint64_t n, char ret[static 16]);
