/*
 * The frame of the kvcobra command: struct command, the options that all subcommands share, failures, and
 * dispatch. A subcommand is one file cmd_NAME.c with a row, which no list names: help, completion and man
 * pages find it. Its shape:
 *
 *     struct eval_options { struct common_options common; const char *model; ... };
 *
 *     static error_t parse(int key, char *arg, struct argp_state *state)
 *     {
 *         struct eval_options *o = state->input;
 *
 *         switch (key) {
 *         case ARGP_KEY_INIT:
 *             state->child_inputs[0] = &o->common;        // --json, --quiet
 *             return 0;
 *         case OPT_TOKENS:
 *             o->n_tokens = option_uint(state, "--tokens", arg, 1, SIZE_MAX);
 *             return 0;
 *         ...
 *         }
 *         return ARGP_ERR_UNKNOWN;
 *     }
 *     static const struct argp argp = { options, parse, "MODEL", doc, common_children, NULL, NULL };
 *
 *     static int run(int argc, char **argv)
 *     {
 *         struct eval_options o = { .n_tokens = 2048 };
 *
 *         command_parse(&argp, argc, argv, &o);           // does not return on a usage error or --help
 *         ...
 *             return command_fail("%s", e.text);
 *         return COMMAND_OK;
 *     }
 *     COMMAND(cmd_eval) = {
 *         .name = "eval",
 *         .summary = "compare compressed caches with the exact model",
 *         .run = run,
 *         .rank = 50,
 *     };
 *
 * Results go to stdout, everything else to stderr. A failure prints one sentence. Programs use --json.
 */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/completion.h"
#include "base/rows.h"
#include "tools/command/option.h"

/* All exit codes; `recalibrate` adds one of its own. */
enum {
    COMMAND_OK = 0,
    COMMAND_FAILED = 1, /* with a sentence on stderr */
    COMMAND_USAGE = 2,  /* wrong command line; nothing was done */
};

struct command {
    const char *name;
    const char *summary;               /* one line, no full stop: shown by kvcobra --help */
    int (*run)(int argc, char **argv); /* argv[0] is "kvcobra NAME"; returns an exit code */
    unsigned rank;                     /* place in kvcobra --help, which has the order of a first use */
    const char *related;               /* commands that answer the questions which this one raises; or NULL */
};

/* Defines a row of kvcobra, which commands_main() finds. */
#define COMMAND(row) ROW(struct command, "kvc_commands", row)

/* ---- options ---- */

struct common_options {
    bool json;  /* one JSON document on stdout instead of text */
    bool quiet; /* no progress line and no notes on stderr; results and errors are printed */
};

/* For the children member of a subcommand's struct argp; child input 0 is a struct common_options. */
extern const struct argp_child common_children[];
extern const struct argp common_argp; /* its parser, for commands with other children beside */

/* argp_parse() with the exit codes above. Does not return after --help or a usage error, nor while a command
 * line is completed: so it is the first thing that a command does. */
void command_parse(const struct argp *argp, int argc, char **argv, void *input);

/* ---- results and failures ---- */

/* The name of this program, which stands before every sentence on stderr. @name: borrowed. */
void command_set_program(const char *name);
const char *command_program(void);

/* Prints "kvcobra: SENTENCE" on stderr. Return: COMMAND_FAILED. */
__attribute__((format(printf, 1, 2))) int command_fail(const char *fmt, ...);

/* Returns @p. NULL: prints "out of memory" and ends the program with COMMAND_FAILED. For what a command
 * prints at its end: nothing else is left to do then. */
void *command_allocated(void *p);

/* Prints "kvcobra: SENTENCE" and a hint at --help on stderr. Return: COMMAND_USAGE. */
__attribute__((format(printf, 1, 2))) int command_usage(const char *fmt, ...);

/* Prints a remark on stderr, unless --quiet. */
__attribute__((format(printf, 2, 3))) void command_note(const struct common_options *o, const char *fmt, ...);

/* ---- dispatch ---- */

/**
 * command_dispatch() - run the command that argv[1] names
 * @commands: ends with NULL
 * @program:  "kvcobra" or "kvcobra bench": stands before the name in messages
 *
 * An unknown name is a usage error that suggests the nearest known name.
 */
int command_dispatch(const struct command *const *commands, const char *program, int argc, char **argv);

/*
 * From now on the last word is being typed, and the program prints what may stand there instead of running a
 * command, see base/completion.h. @names: what command_parse() asks for values of arguments.
 */
void command_begin_completion(completion_names *names);
bool command_is_completing(void);

/* Offers the names of commands that begin as @typed. */
void command_offer(const struct command *const *commands, const char *typed);

/* Prints one aligned line per command. */
void command_list(const struct command *const *commands);

/* kvcobra without its entry: main() calls this. */
int commands_main(int argc, char **argv);
