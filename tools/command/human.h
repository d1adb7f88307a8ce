/*
 * Amounts as people read them: "3.2 GiB", "3 min 05 s". Used by every command that prints text for a
 * terminal; JSON documents hold the plain numbers instead. The caller owns the buffer, so a printf() with
 * several amounts needs one buffer for each.
 */
#pragma once

#include <stdint.h>

#define HUMAN_BYTES 32 /* room for any of these */

/* "0 B", "1023 B", "1.0 KiB", "3.2 GiB". Returns @ret. */
const char *human_bytes(uint64_t bytes, char ret[static HUMAN_BYTES]);

/* "0.42 s", "12 s", "3 min 05 s", "2 h 10 min"; negative durations and NaN count as 0. Returns @ret. */
const char *human_seconds(double seconds, char ret[static HUMAN_BYTES]);
