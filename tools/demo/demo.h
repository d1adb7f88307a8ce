/*
 * The demonstration, `kvcobra demo`: its options, its steps and its two halves. Every step is a command line
 * that a user can type; it is printed before it runs as a child process. cmd_demo.c calls the halves
 * (demo_compress.c, demo_share.c); these use the steps (demo_step.c).
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "tools/command/command.h"
#include "tools/command/process.h"

struct errmsg;

/* The budgets compared, in bits per number. The daemon serves the first one; the last replaces it while
 * clients run. */
enum { DEMO_BUDGETS = 2 };
extern const char *const demo_budgets[DEMO_BUDGETS];

/* What both processes are asked about the text. */
extern const char demo_question[];

struct demo {
    const char *model;       /* a GGUF file */
    const char *text[2];     /* to calibrate on, to evaluate on; plain, or compressed by gzip */
    bool is_default_text[2]; /* a Debian document, whose table of contents is skipped */
    const char *calibrate_tokens, *eval_tokens, *eval_window, *prompt_bytes, *generate_tokens; /* as typed */
    char found_model[PATH_MAX]; /* where the model is if none is named */
    char self[PATH_MAX];        /* this program */
    char daemon[PATH_MAX];      /* kvcobrad */
    char dir[PATH_MAX];         /* temporary folder of all files below */
    int signal_fd;              /* SIGINT, SIGTERM, SIGHUP */
};

/* A path in the demo's folder, from its file name. */
struct demo_path {
    char text[PATH_MAX + 32];
};
struct demo_path demo_path(const struct demo *d, const char *name);

/**
 * demo_start() - print and start `kvcobra ARG...`
 * demo_run()   - the same, and wait until it has succeeded
 * @p:    PROCESS_INIT; afterwards p->out holds the captured output
 * @args: ends with NULL
 *
 * Return: 0; -EINTR: a signal to stop, no sentence; else a negative errno with a sentence.
 */
int demo_start(const struct demo *d, struct process *p, enum process_output output, const char *const *args,
               struct errmsg *e);
int demo_run(const struct demo *d, struct process *p, enum process_output output, const char *const *args,
             struct errmsg *e);

/* Prints a heading. */
__attribute__((format(printf, 1, 2))) void demo_heading(const char *fmt, ...);

/* First half: texts, statistics, one table per budget, and the comparison with the exact model. */
int demo_compress(const struct demo *d, struct errmsg *e);

/* Second half: a daemon, two processes that share a prompt, and a swap of tables while they run. */
int demo_share(const struct demo *d, struct errmsg *e);
