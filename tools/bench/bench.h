/* The benches of `kvcobra bench` that are in kvcobra itself; listed in cmd_bench.c. */
#pragma once

#include "tools/command/command.h"

extern const struct command bench_capacity, bench_tier;
