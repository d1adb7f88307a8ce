/*
 * Commands that are programs of other packages: the laboratory, and those of the Python package. They are
 * found beside this program, in a build tree, or in PATH, so that a command that is not installed costs this
 * program nothing but a sentence.
 */
#pragma once

struct extension {
    const char *program; /* "kvcobra-lab" */
    const char *built;   /* where it is in a build tree, relative to the folder of this program; or NULL */
    const char *package; /* what a user installs: in the sentence */
    const char *word;    /* of the program's own, before the arguments: "bench"; or NULL */
};

/* The package of the programs that are written in Python */
#define EXTENSION_PYTHON "the Python package kvcobra (Debian: python3-kvcobra)"

/**
 * extension_run() - replace this process by the program
 * @command: as the user names it: "kvcobra bench attend"
 * @argv:    [argc] the first one is not passed
 *
 * Return, if the program does not run: an exit code of command.h, with a sentence.
 */
int extension_run(const struct extension *x, const char *command, int argc, char **argv);
