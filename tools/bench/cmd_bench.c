/*
 * kvcobra bench WHAT. The benches that a server's operator needs are files cmd_bench_WHAT.c here, which
 * define `const struct command bench_WHAT`, declared in bench.h and listed below. Those of the laboratory
 * are in kvcobra-lab, a program and a package of its own, which this command runs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tools/bench/bench.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/terminal.h"

static const struct command *const benches[] = {&bench_capacity, NULL};
static const char *const laboratory[] = {"attend", "engine", "generate", "service", "solve", NULL};

static bool cmd_bench_is_of_laboratory(const char *name)
{
    for (size_t i = 0; laboratory[i]; i++)
        if (strcmp(laboratory[i], name) == 0)
            return true;
    return false;
}

/* Replaces this process by `kvcobra-lab bench ...`. @argv: [argc], then NULL; the first one is not passed. */
static int cmd_bench_run_laboratory(int argc, char **argv)
{
    _cleanup_(freep) char **args = calloc((size_t) argc + 2, sizeof(*args));
    char program[] = "kvcobra-lab", bench[] = "bench", path[PATH_MAX];

    if (!args)
        return command_fail("out of memory");
    if (find_lab(path, NULL) < 0)
        return command_fail(
            "'kvcobra bench %s' is run by kvcobra-lab, which is not here: install the package "
            "kvcobra-lab",
            argv[1]);

    args[0] = program;
    args[1] = bench;
    for (int i = 1; i <= argc; i++)
        args[i + 1] = argv[i];
    (void) execv(path, args);
    return command_fail("cannot run %s: %s", path, strerror(errno));
}

static int cmd_bench_run(int argc, char **argv)
{
    if (argc < 2)
        return command_usage("bench needs the name of a bench; 'kvcobra help bench' lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0) {
        fputs("Usage: kvcobra bench WHAT ...\n\nMeasures on this machine:\n", stdout);
        command_list(benches);
        terminal_print(
            stdout, 0, "%s",
            "\nThe benches attend, engine, generate, service and solve are in kvcobra-lab, a package "
            "of its own; 'kvcobra bench attend' runs 'kvcobra-lab bench attend'.\n"
            "\n'kvcobra bench WHAT --help' describes one.\n\nExample:\n\n"
            "  kvcobra bench capacity --trace requests.jsonl\n");
        return COMMAND_OK;
    }

    return cmd_bench_is_of_laboratory(argv[1]) ? cmd_bench_run_laboratory(argc, argv)
                                               : command_dispatch(benches, "kvcobra bench", argc, argv);
}

const struct command cmd_bench = {"bench", "measure what a server needs on this machine", cmd_bench_run};
