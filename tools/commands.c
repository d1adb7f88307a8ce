/* The list of subcommands, the help of `kvcobra` itself with a worked example, and the version. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra.h"
#include "tools/command/command.h"
#include "tools/command/terminal.h"

enum { HELP_INDENT = 4, HELP_COLUMNS_MAX = 100 };

/* In the order of a first use. */
static const struct command *const commands[] = {
    &cmd_inspect, &cmd_calibrate, &cmd_merge,    &cmd_solve,       &cmd_eval,   &cmd_compare, &cmd_generate,
    &cmd_table,   &cmd_model,     &cmd_model_id, &cmd_recalibrate, &cmd_doctor, &cmd_ping,    &cmd_status,
    &cmd_top,     &cmd_clients,   &cmd_monitor,  &cmd_lookup,      &cmd_pin,    &cmd_unpin,   &cmd_evict,
    &cmd_flush,   &cmd_quota,     &cmd_drain,    &cmd_tier,        &cmd_bench,  &cmd_demo,    NULL,
};

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
                   "Share the cache. Run the daemon in one terminal; activate a table in another:\n"
                   "\n"
                   "  kvcobrad --user\n"
                   "\n"
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

/* `kvcobra help eval` runs `kvcobra eval --help`. */
static int commands_help(int argc, char **argv)
{
    char option[] = "--help";
    char *args[] = {argv[0], argc > 2 ? argv[2] : NULL, option, NULL};

    if (argc > 3)
        return command_usage("help takes one command");
    if (argc < 3) {
        commands_print_help();
        return COMMAND_OK;
    }

    return command_dispatch(commands, "kvcobra", 3, args);
}

static int commands_print_version(void)
{
    printf("kvcobra %s\n", kvc_version());
    return COMMAND_OK;
}

static int commands_run(int argc, char **argv)
{
    if (argc < 2)
        return command_usage("no command given");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "-?") == 0) {
        commands_print_help();
        return COMMAND_OK;
    }

    if (strcmp(argv[1], "help") == 0)
        return commands_help(argc, argv);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        return commands_print_version();

    if (argc == 3 && argv[1][0] != '-' && strcmp(argv[2], "-h") == 0)
        return command_dispatch(commands, "kvcobra", 3,
                                (char *[]){argv[0], argv[1], (char[]){"--help"}, NULL});
    if (argc == 3 && argv[1][0] != '-' && strcmp(argv[2], "--version") == 0)
        return commands_print_version();

    if (argv[1][0] == '-')
        return command_usage("'%s' is not an option of kvcobra itself; put options after the command",
                             argv[1]);

    return command_dispatch(commands, "kvcobra", argc, argv);
}

/* argp fills help texts to 79 columns whatever the terminal has. The user's own format stays. */
static void commands_fit_help(void)
{
    unsigned width = terminal_width(stdout);
    char format[64];

    if (width == 0)
        return;
    width = width < HELP_COLUMNS_MAX ? width : HELP_COLUMNS_MAX;
    (void) snprintf(format, sizeof(format), "rmargin=%u%s", width - 1, width < 70 ? ",opt-doc-col=24" : "");
    (void) setenv("ARGP_HELP_FMT", format, 0);
}

int commands_main(int argc, char **argv)
{
    commands_fit_help();
    /* Text in the user's character set. Numbers stay in C notation, since programs read them. */
    (void) setlocale(LC_CTYPE, "");
    return commands_run(argc, argv);
}
