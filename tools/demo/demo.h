/*
 * The two halves of `kvcobra demo` and what they share. Every step is a command line that the user could
 * type; it is printed before it runs.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "tools/command/command.h"
#include "tools/command/process.h"

struct errmsg;

/* The budgets compared, bits per number. The second is served first; the last replaces it while clients run.
 */
enum { DEMO_BUDGETS = 3 };
extern const char *const demo_budgets[DEMO_BUDGETS];

struct demo {
    struct common_options common;
    const char *model;       /* a GGUF file */
    const char *text[2];     /* to calibrate on, to evaluate on; plain, or compressed by gzip */
    bool is_default_text[2]; /* a Debian document: its table of contents is skipped */
    const char *calibrate_tokens, *eval_tokens, *eval_window, *prompt_bytes, *generate_tokens; /* as typed */
    char self[PATH_MAX];   /* this program */
    char daemon[PATH_MAX]; /* kvcobrad */
    char dir[PATH_MAX];    /* a fresh folder for everything below */
    int signal_fd;         /* Ctrl-C and friends */
};

/* A path in the demo's folder, from its file name. */
struct demo_path {
    char text[PATH_MAX + 32];
};
struct demo_path demo_path(const struct demo *d, const char *name);

/**
 * demo_start() - print and start `kvcobra ARG...`; the arguments end with NULL
 * demo_run()   - the same, and wait until it has succeeded
 * @d:       borrowed
 * @p:       PROCESS_INIT; demo_run() leaves what it captured in it
 *
 * Return: 0; -EINTR: the user wants to stop, no sentence; else a negative errno with a sentence.
 */
int demo_start(const struct demo *d, struct process *p, enum process_output output, const char *const *args,
               struct errmsg *e);
int demo_run(const struct demo *d, struct process *p, enum process_output output, const char *const *args,
             struct errmsg *e);

/* Prints what follows as a heading. */
__attribute__((format(printf, 1, 2))) void demo_heading(const char *fmt, ...);

/* Texts, statistics, one table per budget, and the comparison with the exact model. */
int demo_compress(const struct demo *d, struct errmsg *e);

/* A daemon, two processes that share a prompt, and a swap of tables while they run. */
int demo_share(const struct demo *d, struct errmsg *e);
