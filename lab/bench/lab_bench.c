/*
 * kvcobra-lab bench WHAT: benches that users can repeat on their machines. Each is a file cmd_bench_WHAT.c
 * that defines `const struct command bench_WHAT`, which is declared in bench.h and listed here.
 */
#include <stdio.h>
#include <string.h>

#include "lab/bench/bench.h"
#include "lab/lab.h"
#include "tools/command/command.h"

static const struct command *const benches[] = {
    &bench_attend, &bench_engine, &bench_generate, &bench_service, &bench_solve, NULL,
};

static int lab_bench_run(int argc, char **argv)
{
    if (argc < 2)
        return command_usage("bench needs the name of a bench; 'kvcobra-lab help bench' lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0) {
        fputs("Usage: kvcobra-lab bench WHAT ...\n\nMeasures on this machine:\n", stdout);
        command_list(benches);
        fputs("\n'kvcobra-lab bench WHAT --help' describes one.\n\nExample:\n\n"
              "  kvcobra-lab bench service --quick\n",
              stdout);
        return COMMAND_OK;
    }

    return command_dispatch(benches, "kvcobra-lab bench", argc, argv);
}

const struct command lab_bench = {
    .name = "bench",
    .summary = "measure kernels, solvers and the daemon on this machine",
    .run = lab_bench_run,
};
