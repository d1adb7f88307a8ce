/* See lab.h. */
#include "lab/lab.h"

#include <stdio.h>

#include "tools/command/command.h"
#include "tools/command/program.h"
#include "tools/command/terminal.h"

enum { HELP_INDENT = 4 };

static const struct command *const commands[] = {&lab_bench, &lab_eval, NULL};

static void lab_print_help(void)
{
    terminal_print(stdout, 0, "%s",
                   "Usage: kvcobra-lab COMMAND ...\n"
                   "\n"
                   "Measure the parts of KV-COBRA and compare them with others.\n"
                   "\n"
                   "Commands:\n");
    command_list(commands);
    terminal_print(stdout, HELP_INDENT, "%s",
                   "\n"
                   "Example. Measure a daemon under load:\n"
                   "\n"
                   "  kvcobra-lab bench service load\n"
                   "\n"
                   "  kvcobra-lab help COMMAND     print the options of a command\n"
                   "  kvcobra-lab --version        print the version\n"
                   "\n"
                   "Exit status: 0 success, 1 failure (one sentence on stderr), 2 wrong usage.\n");
}

int lab_main(int argc, char **argv)
{
    static const struct program lab = {"kvcobra-lab", commands, NULL, lab_print_help};

    return program_main(&lab, argc, argv);
}
