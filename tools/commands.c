/* The subcommands, and the help of `kvcobra` itself with a worked example. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command/command.h"
#include "tools/command/extension.h"
#include "tools/command/program.h"
#include "tools/command/terminal.h"

enum { HELP_INDENT = 4 };

/* ---- rows: COMMAND() of command.h ---- */

extern const struct command *const __start_kvc_commands[], *const __stop_kvc_commands[];

static int commands_by_rank(const void *a, const void *b)
{
    const struct command *x = *(const struct command *const *) a, *y = *(const struct command *const *) b;

    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank) : strcmp(x->name, y->name);
}

/* All rows in the order of the help, with NULL at the end. */
static const struct command *const *commands_all(void)
{
    static const struct command **all;
    size_t n = (size_t) (__stop_kvc_commands - __start_kvc_commands);

    if (all)
        return all;
    all = command_allocated(calloc(n + 1, sizeof(*all)));
    memcpy(all, __start_kvc_commands, n * sizeof(*all));
    qsort(all, n, sizeof(*all), commands_by_rank);
    return all;
}

/* ---- programs of the Python package ---- */

static int commands_run_llama_proxy(int argc, char **argv)
{
    static const struct extension x = {"kvcobra-llama-proxy", NULL, EXTENSION_PYTHON, NULL};

    return extension_run(&x, argv[0], argc, argv);
}

static const struct command llama_proxy = {
    .name = "llama-proxy", .summary = "share the prompts of a llama-server", .run = commands_run_llama_proxy};
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
    command_list(commands_all());
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
    const struct program kvcobra = {"kvcobra", commands_all(), extensions, commands_print_help};

    return program_main(&kvcobra, argc, argv);
}
