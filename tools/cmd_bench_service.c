/*
 * kvcobra bench service: what a daemon's answers cost under load, beside a bare exchange of packets.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/bench.h"
#include "tools/bench_service.h"
#include "tools/find_daemon.h"
#include "tools/machine.h"
#include "tools/process.h"
#include "tools/report.h"

enum { OPT_CLIENTS = 1, OPT_ROUNDS, OPT_QUICK, OPT_DAEMON };

struct bench_options {
    struct common_options common;
    unsigned n_clients, n_rounds;
    const char *daemon;
};

static const char doc[] =
    "Start a daemon in a temporary folder, with a synthetic model, and time under load from several processes: a lease and a "
    "commit beside a bare exchange of packets with a process that does nothing else, and the lookup of a prefix of 512 chunks "
    "in the shared index, which is also done where a system call would be killed.\v"
    "The load is the same for all: every client does each once per round. 'copy' is what a commit cannot do without: a copy "
    "of the page and its CRC.";

static const struct argp_option options[] = {
    { "clients", OPT_CLIENTS, "N", 0, "Processes, 1 to 64 (default 8)", 1 },
    { "rounds", OPT_ROUNDS, "N", 0, "Of each (default 2000)", 1 },
    { "quick", OPT_QUICK, NULL, 0, "20 rounds: only to see that it works", 1 },
    { "daemon", OPT_DAEMON, "PATH", 0, "The kvcobrad to run (default: the one beside this program, or in PATH)", 1 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct bench_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_CLIENTS:
        o->n_clients = (unsigned) option_uint(state, "--clients", arg, 1, 64);
        return 0;
    case OPT_ROUNDS:
        o->n_rounds = (unsigned) option_uint(state, "--rounds", arg, 10, 1000000);
        return 0;
    case OPT_QUICK:
        o->n_rounds = 20;
        return 0;
    case OPT_DAEMON:
        o->daemon = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = { options, parse, NULL, doc, common_children, NULL, NULL };

/* ---- a daemon of our own ----------------------------------------------------------------------------------------- */

struct stage {
    char folder[64], socket[96], operator_socket[96];
    struct process daemon;
    int signal_fd;
};

static void stage_deinit(struct stage *s)
{
    process_deinit(&s->daemon);
    closep(&s->signal_fd);
    if (s->folder[0])
        (void) rmdir(s->folder); /* the daemon took its sockets away */
}

static int stage_init(struct stage *s, const char *daemon, struct errmsg *e)
{
    const char *argv[] = { "kvcobrad", "--socket", s->socket, "--operator-socket", s->operator_socket, "--pool-bytes", "1G",
                           "--quota-bytes", "2G", "--arena-bytes", "8M", "--log-level", "4", "--ready-fd", "3", NULL };
    struct process *ps[] = { &s->daemon };
    sigset_t mask;
    int r;

    (void) snprintf(s->folder, sizeof(s->folder), "/tmp/kvcobra-bench-XXXXXX");
    if (!mkdtemp(s->folder)) {
        s->folder[0] = '\0';
        return fail(e, -errno, "cannot make a temporary folder");
    }
    (void) snprintf(s->socket, sizeof(s->socket), "%s/kvcobra.sock", s->folder);
    (void) snprintf(s->operator_socket, sizeof(s->operator_socket), "%s/operator.sock", s->folder);
    (void) sigemptyset(&mask);
    (void) sigaddset(&mask, SIGINT);
    (void) sigaddset(&mask, SIGTERM);
    (void) sigaddset(&mask, SIGHUP);
    (void) sigprocmask(SIG_BLOCK, &mask, NULL);
    s->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    r = process_start(&s->daemon, daemon, argv, PROCESS_READY, e);
    if (r == 0)
        r = process_wait(ps, 1, 0, PROCESS_WRITES, s->signal_fd, e);
    if (r == 0)
        (void) sigprocmask(SIG_UNBLOCK, &mask, NULL); /* from here on a signal ends all of us: children die with this process */
    return r == 0 && s->daemon.n_out == 0 ? fail(e, -ECANCELED, "kvcobrad does not start") : r;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

struct verdict { /* what is asked, and what came out */
    const char *what;
    double asked, got;
};

enum { N_VERDICTS = 4 };

static void judge(const struct service_figures *f, struct verdict ret[N_VERDICTS])
{
    ret[0] = (struct verdict) { "lease, p50 / exchange", 3, f->lease.median / f->ping.median };
    ret[1] = (struct verdict) { "lease, p99 / exchange", 10, f->lease.p99 / f->ping.p99 };
    ret[2] = (struct verdict) { "commit, p50 / (3 exchanges + 1.5 copies)", 1,
                                f->commit.median / (3 * f->ping.median + 1.5 * f->copy.median) };
    ret[3] = (struct verdict) { "lookup of a chunk, p50, us", 1, f->lookup.median * 1e6 };
}

static int print_json(const struct service_figures *f, unsigned n_clients)
{
    struct verdict v[N_VERDICTS];
    json_t *asked = json_array();
    char cpu[CPU_NAME_BYTES];

    judge(f, v);
    cpu_name(cpu);
    for (unsigned i = 0; i < N_VERDICTS; i++)
        (void) json_array_append_new(asked, json_pack("{s:s, s:f, s:f, s:b}", "what", v[i].what, "asked", v[i].asked, "got",
                                                      v[i].got, "met", v[i].got < v[i].asked));
    return report_json(json_pack("{s:s, s:s, s:I, s:i, s:i, s:I, s:{s:o, s:o, s:o, s:o, s:o}, s:i, s:o}", "cpu", cpu,
                                 "compiler", COMPILER, "cpus", (json_int_t) sysconf(_SC_NPROCESSORS_ONLN), "clients",
                                 (int) n_clients, "samples", (int) f->n_samples, "page_bytes", (json_int_t) f->page_bytes,
                                 "us", "exchange", timing_json(f->ping, 1e6), "lease", timing_json(f->lease, 1e6), "commit",
                                 timing_json(f->commit, 1e6), "copy", timing_json(f->copy, 1e6), "lookup_per_chunk",
                                 timing_json(f->lookup, 1e6), "lookup_system_calls", 0, "asked", asked));
}

static int print_text(const struct service_figures *f, unsigned n_clients)
{
    _cleanup_(report_freep) struct report *r = report_new("<microseconds\t>min\t>median\t>p99");
    _cleanup_(report_freep) struct report *asked = report_new("<asked\t>below\t>got\t<");
    const struct { const char *name; const struct timing *t; } rows[] = {
        { "exchange of packets", &f->ping }, { "lease", &f->lease }, { "commit", &f->commit }, { "copy and CRC", &f->copy },
        { "lookup, per chunk", &f->lookup },
    };
    struct verdict v[N_VERDICTS];
    char cpu[CPU_NAME_BYTES];

    judge(f, v);
    cpu_name(cpu);
    printf("%s, %ld processors; %u clients, %u rounds in all, pages of %zu bytes\n\n", cpu, sysconf(_SC_NPROCESSORS_ONLN),
           n_clients, f->n_samples, f->page_bytes);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        report_row(r, "%s\t%.3f\t%.3f\t%.3f", rows[i].name, rows[i].t->min * 1e6, rows[i].t->median * 1e6,
                   rows[i].t->p99 * 1e6);
    for (unsigned i = 0; i < N_VERDICTS; i++)
        report_row(asked, "%s\t%g\t%.3f\t%s", v[i].what, v[i].asked, v[i].got, v[i].got < v[i].asked ? "" : "missed");
    if (report_print(r, stdout) < 0)
        return command_fail("out of memory");
    putchar('\n');
    return report_print(asked, stdout) < 0 ? command_fail("out of memory") : COMMAND_OK;
}

static int run(int argc, char **argv)
{
    struct bench_options o = { .n_clients = 8, .n_rounds = 2000 };
    _cleanup_(stage_deinit) struct stage s = { .daemon = PROCESS_INIT("kvcobrad"), .signal_fd = -1 };
    char self[PATH_MAX], daemon[PATH_MAX];
    struct service_figures f;
    struct errmsg e = { "" };
    int r;

    command_parse(&argp, argc, argv, &o);
    r = find_daemon(o.daemon, self, daemon, &e);
    if (r == 0)
        r = stage_init(&s, daemon, &e);
    if (r == 0)
        r = service_measure(&(struct service_options) { s.socket, s.operator_socket, o.n_clients, o.n_rounds }, &f, &e);
    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : "interrupted");
    return o.common.json ? print_json(&f, o.n_clients) : print_text(&f, o.n_clients);
}

const struct command bench_service = { "service", "a daemon's answers under load, the lookup of a prefix", run };
