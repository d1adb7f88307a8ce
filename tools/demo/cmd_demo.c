/*
 * kvcobra demo: calibrates, compresses, shares and swaps tables on this machine and removes everything it
 * made. Options, the folder and the signals; the steps are in demo_compress.c and demo_share.c.
 */
#include <errno.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/command/clock.h"
#include "tools/command/find_daemon.h"
#include "tools/command/human.h"
#include "tools/command/temp_folder.h"
#include "tools/command/terminal.h"
#include "tools/demo/demo.h"

enum { OPT_TEXT = 1, OPT_EVAL_TEXT, OPT_DAEMON, OPT_QUICK };

static const char *const default_texts[2] = {
    "/usr/share/debian-reference/debian-reference.en.txt.gz",      /* package debian-reference-en */
    "/usr/share/developers-reference/developers-reference.txt.gz", /* package developers-reference */
};

struct demo_options {
    struct demo demo;
    const char *daemon;
};

static const char doc[] =
    "Calibrate, compress, measure, share and swap tables: the main functions of kvcobra in two "
    "minutes.\vMODEL is a GGUF file; the default is the small model that tools/fetch_model.sh downloads. The "
    "demonstration calibrates on one Debian document and measures on another (packages debian-reference-en "
    "and developers-reference). It runs its own kvcobrad on a private socket, prints every command line "
    "before it runs it, and removes all its processes and files at the end.\n\n"
    "Example:\n\n"
    "  kvcobra demo model.gguf --quick";

static const struct argp_option options[] = {
    {"text", OPT_TEXT, "FILE", 0, "Calibrate on this text instead of the Debian Reference", 1},
    {"eval-text", OPT_EVAL_TEXT, "FILE", 0,
     "Measure on this text instead of the Debian Developer's Reference", 1},
    {"daemon", OPT_DAEMON, "PATH", 0,
     "The kvcobrad to run (default: the one beside this program, or in PATH)", 2},
    {"quick", OPT_QUICK, NULL, 0, "Use a tenth of the tokens: shows the steps, measures little", 2},
    {0},
};

static void cmd_demo_set_quick(struct demo *d)
{
    d->calibrate_tokens = "2048";
    d->eval_tokens = "512";
    d->eval_window = "256";
    d->prompt_bytes = "1500";
    d->generate_tokens = "128";
}

static error_t cmd_demo_parse(int key, char *arg, struct argp_state *state)
{
    struct demo_options *o = state->input;

    switch (key) {
    case OPT_TEXT:
        o->demo.text[0] = arg;
        return 0;
    case OPT_EVAL_TEXT:
        o->demo.text[1] = arg;
        return 0;
    case OPT_DAEMON:
        o->daemon = arg;
        return 0;
    case OPT_QUICK:
        cmd_demo_set_quick(&o->demo);
        return 0;
    case ARGP_KEY_ARG:
        if (o->demo.model)
            argp_error(state, "one MODEL only; '%s' is one argument too many", arg);
        o->demo.model = arg;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_demo_parse, "[MODEL]", doc, NULL, NULL, NULL};

/* ---- texts and model ---- */

static int cmd_demo_find_texts(struct demo *d, struct errmsg *e)
{
    if (d->text[0] && d->text[1] && stream_file_is_standard(d->text[0]) &&
        stream_file_is_standard(d->text[1]))
        return fail(e, -EINVAL, "--text and --eval-text are both standard input, which is read once");
    for (int i = 0; i < 2; i++) {
        d->is_default_text[i] = !d->text[i];
        if (!d->text[i])
            d->text[i] = default_texts[i];
        if (!stream_file_is_standard(d->text[i]) && access(d->text[i], R_OK) != 0)
            return fail(e, -errno, "cannot read %s: %s%s", d->text[i], strerror(errno),
                        d->is_default_text[i] ? "; 'sh tools/setup.sh demo' installs it" : "");
    }

    return 0;
}

/* The default is the path that tools/fetch_model.sh downloads to. @room: storage of that path. */
static int cmd_demo_find_model(struct demo *d, struct errmsg *e)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *below = "";

    if (d->model)
        return 0;

    if (!cache || !*cache) {
        cache = home ? home : "";
        below = "/.cache";
    }

    (void) snprintf(d->found_model, PATH_MAX, "%s%s/kvcobra/SmolLM2-135M-Instruct.Q4_1.gguf", cache, below);
    if (access(d->found_model, R_OK) != 0)
        return fail(
            e, -ENOENT,
            "there is no model at %s; 'sh tools/fetch_model.sh' downloads it, or name another GGUF file",
            d->found_model);

    d->model = d->found_model;
    return 0;
}

/* ---- the folder and the signals ---- */

static void demo_deinit(struct demo *d)
{
    temp_folder_remove(d->dir);
    closep(&d->signal_fd);
}

/* From here on signals do not end the process: process_wait() reports them. */
static int cmd_demo_take_signals(struct demo *d, struct errmsg *e)
{
    sigset_t stop;

    (void) sigemptyset(&stop);
    (void) sigaddset(&stop, SIGINT);
    (void) sigaddset(&stop, SIGTERM);
    (void) sigaddset(&stop, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &stop, NULL) < 0)
        return fail(e, -errno, "cannot block signals: %s", strerror(errno));

    d->signal_fd = signalfd(-1, &stop, SFD_CLOEXEC);
    return d->signal_fd < 0 ? fail(e, -errno, "cannot watch for signals: %s", strerror(errno)) : 0;
}

static int cmd_demo_run_steps(struct demo *d, const char *daemon, struct errmsg *e)
{
    int r = find_daemon(daemon, d->self, d->daemon, e);

    if (r < 0)
        return r;

    r = cmd_demo_find_model(d, e);
    if (r < 0)
        return r;

    r = cmd_demo_find_texts(d, e);
    if (r < 0)
        return r;

    r = cmd_demo_take_signals(d, e);
    if (r < 0)
        return r;

    r = temp_folder_make(NULL, "demo", d->dir, sizeof(d->dir), e);
    if (r < 0)
        return r;

    terminal_print(stdout, 0, "This takes about two minutes. Model: %s. Files are in %s until the end.\n",
                   d->model, d->dir);
    r = demo_compress(d, e);
    return r < 0 ? r : demo_share(d, e);
}

static int cmd_demo_run(int argc, char **argv)
{
    struct demo_options o = {
        .demo =
            {
                .signal_fd = -1,
                .calibrate_tokens = "4096",
                .eval_tokens = "1024",
                .eval_window = "1024",
                .prompt_bytes = "6000",
                .generate_tokens = "256",
            },
    };
    struct errmsg e = {""};
    double start = clock_seconds();
    char took[HUMAN_BYTES], dir[PATH_MAX];
    int r;

    command_parse(&argp, argc, argv, &o);
    r = cmd_demo_run_steps(&o.demo, o.daemon, &e);
    memcpy(dir, o.demo.dir, sizeof(dir));
    demo_deinit(&o.demo);
    if (r == -EINTR)
        return command_fail("stopped");
    if (r < 0)
        return command_fail("%s", e.text);
    if (access(dir, F_OK) == 0)
        return command_fail("cannot remove %s", dir);

    printf("\nDone in %s; kvcobrad has ended and %s is removed.\n",
           human_seconds(clock_seconds() - start, took), dir);
    return COMMAND_OK;
}

COMMAND(cmd_demo) = {
    .name = "demo",
    .summary = "run a demonstration of these commands on this machine",
    .run = cmd_demo_run,
    .rank = 310,
    .related = "generate",
};
