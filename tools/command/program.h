/* What kvcobra and kvcobra-lab are: a name, subcommands, and a help that lists them. */
#pragma once

struct command;

struct program {
    const char *name;
    const struct command *const *commands; /* in the order of the help; ends with NULL */
    const struct command *const
        *extensions; /* those of other packages (extension.h); ends with NULL, or NULL */
    void (*print_help)(void);
};

/* The program without its entry. Return: an exit code of command.h. */
int program_main(const struct program *p, int argc, char **argv);
