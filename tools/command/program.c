/* The frame of a program of subcommands; see program.h. */
#include "tools/command/program.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra.h"
#include "tools/command/command.h"
#include "tools/command/complete_names.h"
#include "tools/command/terminal.h"

enum { HELP_COLUMNS_MAX = 100 };

static int program_dispatch(const struct program *p, int argc, char **argv)
{
    for (const struct command *const *c = p->extensions; c && *c; c++)
        if (strcmp((*c)->name, argv[1]) == 0)
            return command_dispatch(p->extensions, p->name, argc, argv);

    return command_dispatch(p->commands, p->name, argc, argv);
}

/* `kvcobra help eval` runs `kvcobra eval --help`. */
static int program_help(const struct program *p, int argc, char **argv)
{
    char option[] = "--help";
    char *args[] = {argv[0], argc > 2 ? argv[2] : NULL, option, NULL};

    if (argc > 3)
        return command_usage("help takes one command");
    if (argc < 3) {
        p->print_help();
        return COMMAND_OK;
    }

    return program_dispatch(p, 3, args);
}

static int program_print_version(const struct program *p)
{
    printf("%s %s\n", p->name, kvc_version());
    return COMMAND_OK;
}

/* @argv: its last word is being typed. */
static int program_complete(const struct program *p, int argc, char **argv)
{
    struct completion own = {.typed = argv[1]};
    bool asks_for_help = strcmp(argv[1], "help") == 0;

    command_begin_completion(complete_names);
    if (argc > 3 || (argc == 3 && !asks_for_help))
        return asks_for_help ? COMMAND_OK : program_dispatch(p, argc, argv);

    own.typed = argv[argc - 1];
    command_offer(p->commands, own.typed);
    if (p->extensions)
        command_offer(p->extensions, own.typed);
    if (argc == 2) {
        completion_offer(&own, "help", "print the options of a command");
        completion_offer(&own, "--help", "print the list of commands");
        completion_offer(&own, "--version", "print the version");
    }
    return COMMAND_OK;
}

static int program_run(const struct program *p, int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--complete") == 0)
        return program_complete(p, argc - 1, argv + 1);
    if (argc < 2)
        return command_usage("no command given");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "-?") == 0) {
        p->print_help();
        return COMMAND_OK;
    }

    if (strcmp(argv[1], "help") == 0)
        return program_help(p, argc, argv);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
        return program_print_version(p);

    if (argc == 3 && argv[1][0] != '-' && strcmp(argv[2], "-h") == 0)
        return program_dispatch(p, 3, (char *[]){argv[0], argv[1], (char[]){"--help"}, NULL});
    if (argc == 3 && argv[1][0] != '-' && strcmp(argv[2], "--version") == 0)
        return program_print_version(p);

    if (argv[1][0] == '-')
        return command_usage("'%s' is not an option of %s itself; put options after the command", argv[1],
                             p->name);

    return program_dispatch(p, argc, argv);
}

/* argp fills help texts to 79 columns whatever the terminal has. The user's own format stays. */
static void program_fit_help(void)
{
    unsigned width = terminal_width(stdout);
    char format[64];

    if (width == 0)
        return;
    width = width < HELP_COLUMNS_MAX ? width : HELP_COLUMNS_MAX;
    (void) snprintf(format, sizeof(format), "rmargin=%u%s", width - 1, width < 70 ? ",opt-doc-col=24" : "");
    (void) setenv("ARGP_HELP_FMT", format, 0);
}

int program_main(const struct program *p, int argc, char **argv)
{
    command_set_program(p->name);
    program_fit_help();
    /* Text in the user's character set. Numbers stay in C notation, since programs read them. */
    (void) setlocale(LC_CTYPE, "");
    return program_run(p, argc, argv);
}
