/* Options, failures and dispatch that all subcommands share; see command.h. */
#include "tools/command/command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/nearest.h"
#include "tools/command/terminal.h"

enum { OPT_JSON = 0x1001 };
enum { SENTENCE_INDENT = 2 };

static const char *program_name = "kvcobra";

void command_set_program(const char *name)
{
    program_name = name;
}

const char *command_program(void)
{
    return program_name;
}

static const struct argp_option common_argp_options[] = {
    {"json", OPT_JSON, NULL, 0, "Print one JSON document on standard output", 90},
    {"quiet", 'q', NULL, 0, "No progress and no notes on standard error", 90},
    {0},
};

static error_t command_parse_common(int key, char *arg, struct argp_state *state)
{
    struct common_options *o = state->input;

    switch (key) {
    case ARGP_KEY_ARG: /* the command's own parser did not take it */
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    case OPT_JSON:
        o->json = true;
        return 0;
    case 'q':
        o->quiet = true;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

const struct argp common_argp = {common_argp_options, command_parse_common, NULL, NULL, NULL, NULL, NULL};
const struct argp_child common_children[] = {{&common_argp, 0, NULL, 0}, {0}};

/* ---- usage errors ---- */

/*
 * argp and getopt write usage errors to stderr themselves and end the program. A terminal breaks their lines
 * inside words. So stderr is memory while a command line is read, and its text is printed afterwards as all
 * sentences are: also if argp ended the program, by atexit().
 */
static FILE *usage_stderr; /* the real one; NULL: it is in its place */
static char *usage_text;
static size_t usage_bytes;
static const char *usage_title;

static void command_end_usage(void)
{
    FILE *memory = stderr;
    char *hint;

    if (!usage_stderr)
        return;

    stderr = usage_stderr;
    usage_stderr = NULL;
    if (fclose(memory) != 0) {
        fprintf(stderr, "%s: out of memory\n", usage_title);
        return;
    }

    hint = strstr(usage_text, "\nTry `"); /* argp's, in another style */
    if (hint)
        *hint = '\0';
    terminal_print(stderr, SENTENCE_INDENT, "%s", usage_text);
    if (hint)
        terminal_print(stderr, SENTENCE_INDENT, "\nTry '%s --help'.\n", usage_title);
    free(usage_text);
    usage_text = NULL;
}

static void command_begin_usage(const char *title)
{
    static bool ends; /* atexit() has the function */
    FILE *memory;

    if (!ends && atexit(command_end_usage) != 0)
        return; /* lines are not wrapped */

    ends = true;
    memory = open_memstream(&usage_text, &usage_bytes);
    if (!memory)
        return;

    usage_title = title;
    usage_stderr = stderr;
    stderr = memory;
}

/* ---- completion ---- */

static bool is_completing;
static completion_names *names_for_completion;

void command_begin_completion(completion_names *names)
{
    is_completing = true;
    names_for_completion = names;
}

bool command_is_completing(void)
{
    return is_completing;
}

void command_offer(const struct command *const *commands, const char *typed)
{
    struct completion c = {.typed = typed};

    for (; *commands; commands++)
        completion_offer(&c, (*commands)->name, (*commands)->summary);
}

/* ---- the command line ---- */

/* Of the command that runs: before its examples in --help, and in its man page. */
static const char *command_related;

/* argp frees the result, unless it is @text. */
static char *command_help(int key, const char *text, void *input)
{
    const char *doc = text ? text : "", *examples = strstr(doc, "Example");
    _cleanup_(freep) char *names = NULL;
    char *out = NULL, *rest = NULL;
    size_t n;
    FILE *f;

    (void) input;
    if (key != ARGP_KEY_HELP_POST_DOC || !command_related)
        return (char *) text;

    names = command_allocated(strdup(command_related));
    f = command_allocated(open_memstream(&out, &n));
    examples = examples ? examples : doc + strlen(doc);
    fprintf(f, "%.*s%sSee also:", (int) (examples - doc), doc, *doc && !*examples ? "\n\n" : "");
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
        fprintf(f, " kvcobra %s%s", name, *rest ? "," : ".");
    fprintf(f, "%s%s", *examples ? "\n\n" : "", examples);
    return fclose(f) == 0 ? out : NULL;
}

void command_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    struct argp own = *argp;
    error_t r;

    if (is_completing) {
        completion_print(argp, argc - 1, argv + 1, names_for_completion);
        exit(COMMAND_OK);
    }

    own.help_filter = command_help;
    argp_err_exit_status = COMMAND_USAGE;
    command_begin_usage(argv[0]);
    r = argp_parse(&own, argc, argv, 0, NULL, input);
    command_end_usage();
    if (r != 0) { /* argp reports usage errors itself; it returns -1 or ENOMEM */
        (void) command_fail("cannot read the command line: %s", strerror(r));
        exit(COMMAND_FAILED);
    }
}

/* ---- sentences ---- */

/* One write per sentence: the sentences of several processes on one terminal do not mix. */
static void command_print_sentence(const char *fmt, va_list ap, const char *after)
{
    _cleanup_(freep) char *text = NULL;

    if (vasprintf(&text, fmt, ap) < 0) {
        text = NULL;
        fprintf(stderr, "%s: out of memory%s\n", program_name, after);
        return;
    }

    terminal_print(stderr, SENTENCE_INDENT, "%s: %s%s\n", program_name, text, after);
}

int command_fail(const char *fmt, ...)
{
    va_list ap;

    (void) fflush(stdout); /* earlier output must stand before the sentence */
    va_start(ap, fmt);
    command_print_sentence(fmt, ap, "");
    va_end(ap);
    return COMMAND_FAILED;
}

void *command_allocated(void *p)
{
    if (!p)
        exit(command_fail("out of memory"));
    return p;
}

int command_usage(const char *fmt, ...)
{
    char hint[64];
    va_list ap;

    (void) snprintf(hint, sizeof(hint), "\nTry '%s --help'.", program_name);
    va_start(ap, fmt);
    command_print_sentence(fmt, ap, hint);
    va_end(ap);
    return COMMAND_USAGE;
}

void command_note(const struct common_options *o, const char *fmt, ...)
{
    va_list ap;

    if (o->quiet)
        return;

    va_start(ap, fmt);
    command_print_sentence(fmt, ap, "");
    va_end(ap);
}

/* The command with the nearest name; NULL: none is near. */
static const char *command_nearest(const struct command *const *commands, const char *name)
{
    struct nearest n;

    nearest_init(&n, name);
    for (; *commands; commands++)
        nearest_try(&n, (*commands)->name);
    return n.best;
}

int command_dispatch(const struct command *const *commands, const char *program, int argc, char **argv)
{
    _cleanup_(freep) char *title = NULL;
    const char *guess;

    if (is_completing && argc == 2) {
        command_offer(commands, argv[1]);
        return COMMAND_OK;
    }

    for (const struct command *const *c = commands; *c; c++) {
        if (strcmp((*c)->name, argv[1]) != 0)
            continue;
        if (asprintf(&title, "%s %s", program, argv[1]) < 0) {
            title = NULL;
            return command_fail("out of memory");
        }

        command_related = (*c)->related;
        argv[1] = title; /* the beginning of messages of argp and getopt */
        return (*c)->run(argc - 1, argv + 1);
    }

    if (is_completing)
        return COMMAND_FAILED;

    guess = command_nearest(commands, argv[1]);
    if (guess)
        return command_usage("'%s %s' does not exist; did you mean '%s %s'?", program, argv[1], program,
                             guess);

    return command_usage("'%s %s' does not exist", program, argv[1]);
}

void command_list(const struct command *const *commands)
{
    size_t widest = 0;

    for (size_t i = 0; commands[i]; i++)
        widest = strlen(commands[i]->name) > widest ? strlen(commands[i]->name) : widest;
    /* The man page expects at least two blanks before the summary. */
    for (; *commands; commands++)
        terminal_print(stdout, (unsigned) widest + 4, "  %-*s  %s\n", (int) widest, (*commands)->name,
                       (*commands)->summary);
}
