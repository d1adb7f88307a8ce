/*
 * kvcobra bench WHAT. The benches that a server's operator needs are files cmd_bench_WHAT.c here, which
 * define `const struct command bench_WHAT`, declared in bench.h and listed below. Those of the laboratory
 * are in kvcobra-lab, a program and a package of its own, which this command runs.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/command/command.h"
#include "tools/command/extension.h"
#include "tools/command/terminal.h"

static const struct command *const benches[] = {&bench_capacity, &bench_tier, NULL};
static const char *const laboratory[] = {"attend", "engine", "generate", "service", "solve", NULL};

static bool cmd_bench_is_of_laboratory(const char *name)
{
    for (size_t i = 0; laboratory[i]; i++)
        if (strcmp(laboratory[i], name) == 0)
            return true;
    return false;
}

static int cmd_bench_run_extension(const struct extension *x, int argc, char **argv)
{
    char command[64];

    (void) snprintf(command, sizeof(command), "kvcobra bench %s", x->word ? argv[1] : argv[0]);
    return extension_run(x, command, argc, argv);
}

static int cmd_bench_run(int argc, char **argv)
{
    static const struct extension lab = {"kvcobra-lab", "../lab/kvcobra-lab", "the package kvcobra-lab",
                                         "bench"};
    static const struct extension serve = {"kvcobra-bench-serve", NULL, EXTENSION_PYTHON, NULL};

    if (argc < 2)
        return command_usage("bench needs the name of a bench; 'kvcobra help bench' lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0) {
        fputs("Usage: kvcobra bench WHAT ...\n\nMeasures on this machine:\n", stdout);
        command_list(benches);
        terminal_print(
            stdout, 0, "%s",
            "\nThe benches attend, engine, generate, service and solve are in kvcobra-lab, a package "
            "of its own; 'kvcobra bench attend' runs 'kvcobra-lab bench attend'. The bench serve, prompts "
            "to servers with an OpenAI interface, is in the Python package.\n"
            "\n'kvcobra bench WHAT --help' describes one.\n\nExample:\n\n"
            "  kvcobra bench capacity --trace requests.jsonl\n");
        return COMMAND_OK;
    }

    if (command_is_completing() && argc == 2) {
        for (size_t i = 0; laboratory[i]; i++)
            completion_offer(&(struct completion){.typed = argv[1]}, laboratory[i], "in kvcobra-lab");
        return command_dispatch(benches, "kvcobra bench", argc, argv);
    }

    if (cmd_bench_is_of_laboratory(argv[1]))
        return cmd_bench_run_extension(&lab, argc, argv);
    if (strcmp(argv[1], "serve") == 0)
        return cmd_bench_run_extension(&serve, argc - 1, argv + 1);
    return command_dispatch(benches, "kvcobra bench", argc, argv);
}

COMMAND(cmd_bench) = {
    .name = "bench",
    .summary = "measure what a server needs on this machine",
    .run = cmd_bench_run,
    .rank = 300,
};
