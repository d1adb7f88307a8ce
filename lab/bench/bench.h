/* The benches of `kvcobra-lab bench`, one file cmd_bench_NAME.c each; listed in lab_bench.c. */
#pragma once

#include "tools/command/command.h"

extern const struct command bench_attend, bench_engine, bench_generate, bench_service, bench_solve;
