/*
 * kvcobra-cluster: speaks to a Redis or Valkey cluster for kvcobrad; see README.md. Reads its configuration,
 * then checks it or serves.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/core_file.h"
#include "base/errmsg.h"
#include "base/entry.h"
#include "cluster/cluster_config.h"
#include "cluster/link.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"

/* argp finds this symbol by its name, so it must be visible. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvcobra-cluster " KVCOBRA_VERSION;

enum {
    EXIT_USAGE = 2,
    TICK_MS = 5, /* while requests wait: deadlines are tens of milliseconds */
    IDLE_TICK_MS = 100,
};

struct program {
    struct ev *ev;
    struct supervisor supervisor;
    struct tls_client *tls; /* NULL: none */
    struct router *router;
    struct link link;
    int signal_fd;
    struct ev_source *signals;
    bool is_fast;
    uint64_t watchdog_ms, notified_ms; /* half the time that the supervisor waits; when it was notified */
};

/* ---- serving ---- */

static void program_on_signal(void *ctx)
{
    struct program *p = ctx;
    struct signalfd_siginfo info;

    if (read(p->signal_fd, &info, sizeof(info)) != sizeof(info))
        return;
    log_event(LOG_INFO, "stopping", "signal=%" PRIu32, info.ssi_signo);
    ev_stop(p->ev);
}

static void program_on_tick(void *ctx)
{
    struct program *p = ctx;
    uint64_t now_ms = ev_now_ms(p->ev);
    bool is_busy;

    router_tick(p->router);
    link_tick(&p->link);
    router_flush(p->router);
    is_busy = link_is_busy(&p->link);
    if (is_busy != p->is_fast)
        ev_tick_every(p->ev, is_busy ? TICK_MS : IDLE_TICK_MS, program_on_tick, p);
    p->is_fast = is_busy;
    if (p->watchdog_ms > 0 && now_ms - p->notified_ms >= p->watchdog_ms) {
        supervisor_notify(&p->supervisor, "WATCHDOG=1");
        p->notified_ms = now_ms;
    }
}

/* The next tick may be IDLE_TICK_MS away: the timer starts anew. */
static void program_hurry(void *ctx)
{
    struct program *p = ctx;

    if (p->is_fast)
        return;
    p->is_fast = true;
    ev_tick_every(p->ev, 0, program_on_tick, p);
    ev_tick_every(p->ev, TICK_MS, program_on_tick, p);
}

static int program_watch_signals(struct program *p, struct errmsg *e)
{
    sigset_t mask;
    int r;

    (void) sigemptyset(&mask);
    (void) sigaddset(&mask, SIGTERM);
    (void) sigaddset(&mask, SIGINT);
    if (sigprocmask(SIG_BLOCK, &mask, NULL) < 0)
        return fail(e, -errno, "cannot block signals: %s", strerror(errno));

    p->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (p->signal_fd < 0)
        return fail(e, -errno, "cannot receive signals: %s", strerror(errno));
    r = ev_watch(p->ev, p->signal_fd, program_on_signal, p, &p->signals);
    return r < 0 ? fail(e, r, "cannot watch for signals: %s", strerror(-r)) : 0;
}

/* Before threads start: they inherit the blocked signals. */
static int program_start(struct program *p, const struct cluster_config *c, struct router_settings *s,
                         struct errmsg *e)
{
    int r = ev_new(&p->ev, e);

    if (r == 0 && c->has_tls)
        r = tls_client_new(&c->tls, &p->tls, e);
    s->node.tls = p->tls;

    if (r == 0)
        r = program_watch_signals(p, e);
    if (r == 0)
        r = supervisor_init(&p->supervisor, KEEP_NO, e);
    if (r == 0)
        r = router_new(p->ev, s, &p->router, e);
    if (r < 0)
        return r;

    p->link.ev = p->ev;
    p->link.router = p->router;
    p->link.path = c->socket_path;
    p->link.hurry = program_hurry;
    p->link.ctx = p;
    p->link.fleet.ev = p->ev;
    p->link.fleet.router = p->router;
    p->link.fleet.prefix = c->key_prefix;
    p->link.requests.ev = p->ev;
    p->link.requests.router = p->router;
    p->link.requests.prefix = c->key_prefix;
    p->link.requests.write_bytes_per_s = c->write_bytes_per_s;
    p->link.requests.value_bytes_max = c->buffer_bytes;
    p->watchdog_ms = supervisor_watchdog_ms() / 2;
    ev_tick_every(p->ev, IDLE_TICK_MS, program_on_tick, p);
    return 0;
}

static void program_stop(struct program *p)
{
    link_deinit(&p->link);
    if (p->router && router_is_busy(p->router)) {
        log_event(LOG_INFO, "stopped", "message=\"a look-up of a name still ran\"");
        _exit(EXIT_SUCCESS); /* getaddrinfo() may take minutes, and cannot be cancelled */
    }
    p->router = router_free(p->router);
    p->tls = tls_client_free(p->tls);
    supervisor_deinit(&p->supervisor);
    p->signals = ev_source_free(p->signals);
    closep(&p->signal_fd);
    p->ev = ev_free(p->ev);
}

/* Return: the exit status. */
static int program_serve(const struct cluster_config *c)
{
    struct router_settings settings = {
        .node = {.user = c->user,
                 .password = c->password,
                 .allows_clear_password = c->allows_clear_password,
                 .buffer_bytes = c->buffer_bytes,
                 .connect_ms = c->connect_ms,
                 .stall_ms = c->stall_ms},
        .servers = c->servers,
        .n_servers = c->n_servers,
    };
    struct program p = {.signal_fd = -1};
    struct errmsg e = {""};
    int r = program_start(&p, c, &settings, &e);

    if (r == 0) {
        log_event(LOG_INFO, "serving", "version=%s pid=%ld socket=\"%s\" servers=\"%s\"", KVCOBRA_VERSION,
                  (long) getpid(), c->socket_path, c->servers_text);
        program_on_tick(&p);
        supervisor_notify(&p.supervisor, "READY=1");
        r = ev_run(p.ev);
        supervisor_notify(&p.supervisor, "STOPPING=1");
    }
    if (r < 0)
        log_event(LOG_ERR, "failed", "message=\"%s\"", e.text[0] ? e.text : strerror(-r));
    if (p.ev)
        program_stop(&p);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- the command line ---- */

struct arguments {
    const char *config;
    bool checks;
};

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "The configuration; this option is needed", 0},
    {"check-config", 'C', "FILE", 0, "Check the configuration, print \"FILE: ok\" or what is wrong, and exit",
     0},
    {0},
};

static error_t program_parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    switch (key) {
    case 'c':
        a->config = arg;
        return 0;
    case 'C':
        a->config = arg;
        a->checks = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (!a->config)
            argp_error(state, "name the configuration: --config FILE");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The text behind the options: the settings of the file. */
static char *program_help(int key, const char *text, void *input)
{
    char *help = NULL;
    size_t bytes = 0;
    FILE *f;

    (void) input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *) text;
    f = open_memstream(&help, &bytes);
    if (!f)
        return (char *) text;
    fputs("Example: kvcobra-cluster --check-config /etc/kvcobra/cluster.conf\n\n"
          "Lines of the file are \"key = value\". Settings, and their defaults:\n",
          f);
    cluster_config_describe(f);
    (void) fclose(f);
    return help; /* argp frees it */
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = program_parse,
        .doc = "Speak to a Redis or Valkey cluster for kvcobrad: pages that kvcobrad has sealed are stored "
               "there, for other hosts.\v",
        .help_filter = program_help};
    _cleanup_(cluster_config_deinit) struct cluster_config c = {.socket_path = NULL};
    struct arguments a = {.config = NULL};
    struct errmsg e = {""};
    int r;

    entry_prepare(ENTRY_PIPES_FAIL);
    argp_err_exit_status = EXIT_USAGE;
    (void) argp_parse(&argp, argc, argv, 0, NULL, &a);
    core_file_forbid(); /* it would have the password */
    r = cluster_config_load(a.config, a.checks ? stderr : NULL, &c, &e);
    log_open(r == 0 ? c.log_level : LOG_INFO);
    if (r == 0)
        log_set_format(c.log_format);

    if (a.checks && r < 0)
        return EXIT_FAILURE; /* the errors were printed */
    if (a.checks) {
        printf("%s: ok\n", a.config);
        return EXIT_SUCCESS;
    }
    if (r < 0) {
        log_event(LOG_ERR, "failed", "message=\"%s\"", e.text);
        return EX_CONFIG; /* the unit does not start it again */
    }
    return program_serve(&c);
}
