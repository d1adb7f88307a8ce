/*
 * The part of `kvcobra status` about capacity: how many of the chunks looked up were found, the most that
 * could have been, and estimates for pools of other sizes and for other bits per number.
 */
#pragma once

#include <stdio.h>

#include "proto/kvcobra.pb-c.h"
#include "tools/command/report.h"

/* Tables of 80 columns at most if names are short; nothing without a look-up. */
void status_advice_print(const Kvcobra__StatusReply *s, FILE *f);

/* An object, or null if @a is NULL or no chunk was looked up. NULL: out of memory. */
json_t *status_advice_json(const Kvcobra__Advice *a);
