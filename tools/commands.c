/*
 * The list of subcommands, and what `kvcobra` says without one: help that teaches, the version.
 */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "client/kvcobra.h"
#include "tools/command/command.h"

/* In the order in which one uses them. */
static const struct command *const commands[] = {
    &cmd_inspect,  &cmd_calibrate, &cmd_merge,       &cmd_solve,  &cmd_eval, &cmd_compare,
    &cmd_generate, &cmd_table,     &cmd_recalibrate, &cmd_status, &cmd_top,  &cmd_evict,
    &cmd_quota,    &cmd_drain,     &cmd_bench,       &cmd_demo,   NULL,
};

static void commands_print_help(void)
{
    fputs("Usage: kvcobra COMMAND ...\n"
          "\n"
          "Compress a language model's key-value cache to a few bits per number, measure what\n"
          "that costs, and share the cache between the processes of a host.\n"
          "\n"
          "Commands:\n",
          stdout);
    command_list(commands);
    fputs("\n"
          "A worked example. Measure which directions of the cache matter to a model:\n"
          "\n"
          "  kvcobra calibrate model.gguf --text manual.txt -o model.stats\n"
          "\n"
          "Spend 3 bits per number where they matter most, and look at the result:\n"
          "\n"
          "  kvcobra solve model.stats --bpd 3 -o model-3.table\n"
          "  kvcobra inspect model-3.table\n"
          "  kvcobra inspect model-3.table --stats model.stats --html model-3.html\n"
          "\n"
          "What does it cost? Perplexity and distance to the exact model, on another text:\n"
          "\n"
          "  kvcobra eval model.gguf --table model-3.table --text book.txt\n"
          "\n"
          "Let processes share it. One terminal runs the daemon and is told which table to use:\n"
          "\n"
          "  kvcobrad --socket /run/user/1000/kvcobra.sock --operator-socket /run/user/1000/operator.sock\n"
          "\n"
          "  kvcobra table stage model-3.table --socket /run/user/1000/operator.sock\n"
          "  kvcobra table activate model-3.table --socket /run/user/1000/operator.sock\n"
          "  kvcobra generate model.gguf --prompt-file manual.txt --socket /run/user/1000/kvcobra.sock\n"
          "\n"
          "Run the last line twice: the second process finds what the first one published and\n"
          "starts answering at once. 'kvcobra demo' plays all of this through by itself.\n"
          "\n"
          "  kvcobra help COMMAND     the options of one command\n"
          "  kvcobra --version        the version\n"
          "\n"
          "Exit status: 0 success, 1 failure (one sentence says why), 2 wrong usage.\n",
          stdout);
}

/* `kvcobra help eval` is `kvcobra eval --help`. */
static int commands_help(int argc, char **argv)
{
    char option[] = "--help";
    char *args[] = {argv[0], argc > 2 ? argv[2] : NULL, option, NULL};

    if (argc > 3)
        return command_usage("help explains one command at a time");
    if (argc < 3) {
        commands_print_help();
        return COMMAND_OK;
    }

    return command_dispatch(commands, "kvcobra", 3, args);
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
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("kvcobra %s\n", kvc_version());
        return COMMAND_OK;
    }

    if (argv[1][0] == '-')
        return command_usage("'%s' is not an option of kvcobra itself; options follow the command", argv[1]);

    return command_dispatch(commands, "kvcobra", argc, argv);
}

int commands_main(int argc, char **argv)
{
    int code;

    /* Messages in the user's character set; numbers stay in C notation, programs read them. */
    (void) setlocale(LC_CTYPE, "");
    code = commands_run(argc, argv);
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) /* a full disk behind a redirection is a failure too */
        return command_fail("cannot write to standard output: %s",
                            errno ? strerror(errno) : "not all was written");

    return code;
}
