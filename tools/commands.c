/* The list of subcommands, and the help of `kvcobra` itself with a worked example. */
#include <stdio.h>

#include "tools/command/command.h"
#include "tools/command/extension.h"
#include "tools/command/program.h"
#include "tools/command/terminal.h"

enum { HELP_INDENT = 4 };

/* In the order of a first use. */
static const struct command *const commands[] = {
    &cmd_inspect,  &cmd_calibrate, &cmd_merge, &cmd_solve,    &cmd_eval,        &cmd_compare,
    &cmd_generate, &cmd_table,     &cmd_model, &cmd_model_id, &cmd_recalibrate, &cmd_up,
    &cmd_down,     &cmd_doctor,    &cmd_ping,  &cmd_status,   &cmd_top,         &cmd_clients,
    &cmd_monitor,  &cmd_lookup,    &cmd_pin,   &cmd_unpin,    &cmd_export,      &cmd_import,
    &cmd_evict,    &cmd_flush,     &cmd_quota, &cmd_drain,    &cmd_tier,        &cmd_bench,
    &cmd_demo,     NULL,
};

/* ---- programs of the Python package ---- */

static int commands_run_llama_proxy(int argc, char **argv)
{
    static const struct extension x = {"kvcobra-llama-proxy", NULL, EXTENSION_PYTHON, NULL};

    return extension_run(&x, argv[0], argc, argv);
}

static const struct command llama_proxy = {"llama-proxy", "share the prompts of a llama-server",
                                           commands_run_llama_proxy};
static const struct command *const extensions[] = {&llama_proxy, NULL};

static void commands_print_help(void)
{
    terminal_print(stdout, 0, "%s",
                   "Usage: kvcobra COMMAND ...\n"
                   "\n"
                   "Compress a language model's key-value cache to a few bits per number, measure\n"
                   "the loss of accuracy, and share the cache between the processes of a host.\n"
                   "\n"
                   "Commands:\n");
    command_list(commands);
    fputs("\nCommands of the Python package:\n", stdout);
    command_list(extensions);
    terminal_print(stdout, HELP_INDENT, "%s",
                   "\n"
                   "Example. Measure which directions of the cache matter to a model:\n"
                   "\n"
                   "  kvcobra calibrate model.gguf --text manual.txt -o model.stats\n"
                   "\n"
                   "Distribute 3 bits per number by these measurements, and look at the table:\n"
                   "\n"
                   "  kvcobra solve model.stats --bpd 3 -o model-3.table\n"
                   "  kvcobra inspect model-3.table\n"
                   "  kvcobra inspect model-3.table --stats model.stats --html model-3.html\n"
                   "\n"
                   "Compare perplexity and output with the exact model, on another text:\n"
                   "\n"
                   "  kvcobra eval model.gguf --table model-3.table --text book.txt\n"
                   "\n"
                   "Share the cache. Start a daemon, and activate a table:\n"
                   "\n"
                   "  kvcobra up\n"
                   "  kvcobra table stage model-3.table\n"
                   "  kvcobra table activate model-3.table\n"
                   "  kvcobra generate model.gguf --prompt-file manual.txt --share\n"
                   "\n"
                   "Run the last command twice: the second process finds the pages that the first\n"
                   "published and generates at once. 'kvcobra demo' runs all of these steps.\n"
                   "\n"
                   "  kvcobra help COMMAND     print the options of a command\n"
                   "  kvcobra --version        print the version\n"
                   "\n"
                   "Texts, prompts and traces may be '-', standard input, or a pipe; a page may go to\n"
                   "'-', standard output. A file called '-' is './-'. Tables, statistics and models\n"
                   "need names.\n"
                   "\n"
                   "Exit status: 0 success, 1 failure (one sentence on stderr), 2 wrong usage.\n");
}

int commands_main(int argc, char **argv)
{
    static const struct program kvcobra = {"kvcobra", commands, extensions, commands_print_help};

    return program_main(&kvcobra, argc, argv);
}
