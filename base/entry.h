/*
 * What every program of this project does before anything else; main() calls it first. A library never does:
 * descriptors and signals are its host's.
 */
#pragma once

/* Of ARGP_HELP_FMT: texts of options begin in column 29, and a few letters have to fit behind a column. */
#define ENTRY_HELP_MARGIN_MIN 32
#define ENTRY_HELP_MARGIN_MAX 1000
#define ENTRY_HELP_ROOM 3

enum entry_pipes {
    ENTRY_PIPES_KILL, /* commands: `kvcobra ... | head` ends quietly, like other commands */
    ENTRY_PIPES_FAIL, /* services: the reader of the log may exit */
};

/**
 * entry_prepare() - standard descriptors that are open, limits that are errors
 *
 * Opens descriptors 0 to 2 if they are closed: otherwise the next file or socket gets such a number, and what
 * is printed goes into it. Reading the new standard input and writing to the new standard output fail, so
 * that a command whose input or output is missing says so.
 *
 * A file beyond RLIMIT_FSIZE is an error of the system call (EFBIG) instead of SIGXFSZ. At RLIMIT_CPU a
 * sentence is printed before SIGXCPU ends the process.
 *
 * An ARGP_HELP_FMT whose columns leave no room for words is dropped: glibc would print --help for ever.
 *
 * At the exit, a standard output that could not be written is a sentence and exit status 1.
 *
 * Ends the process with a sentence if /dev/null cannot be opened.
 */
void entry_prepare(enum entry_pipes pipes);
