/* kvcobrad: parse the command line, set up, serve, clean up. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"
#include "daemon/server.h"
#include "daemon/loop/supervisor.h"

/* libc finds it by its name, which must not be hidden. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvcobrad " KVCOBRA_VERSION;

enum { EXIT_USAGE = 2 };

/* Other options are keys of the configuration, by their names; their numbers only have to differ. */
enum option_key {
    KEY_CONFIG = 'c',
    KEY_CHECK = 0x100,
    KEY_LISTEN_FD,
    KEY_OPERATOR_FD,
    KEY_READY_FD,
    KEY_NO_OPERATOR,
    KEY_SETTING, /* to KEY_SETTING_LAST */
    KEY_SETTING_LAST = KEY_SETTING + 95,
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Where:", 1},
    {"config", KEY_CONFIG, "FILE", 0,
     "Settings, see kvcobrad.conf(5); options of the command line win over them", 0},
    {"check-config", KEY_CHECK, "FILE", 0, "Only say whether FILE makes sense", 0},
    {"socket", 's', "PATH", 0, "Client socket (default " CONFIG_SOCKET_DEFAULT ")", 0},
    {"socket-mode", KEY_SETTING + 0, "OCTAL", 0, "Mode of the client socket (default 0660)", 0},
    {"operator-socket", 'o', "PATH", 0,
     "Operator socket, mode 0600 (default " CONFIG_OPERATOR_SOCKET_DEFAULT ")", 0},
    {"no-operator-socket", KEY_NO_OPERATOR, NULL, 0, "Serve no operator", 0},
    {"listen-fd", KEY_LISTEN_FD, "FD", 0, "Already listening client socket, instead of --socket", 0},
    {"operator-fd", KEY_OPERATOR_FD, "FD", 0, "Already listening operator socket", 0},
    {"ready-fd", KEY_READY_FD, "FD", 0, "Write a byte here and close it once the sockets listen", 0},
    {"metrics-socket", KEY_SETTING + 40, "PATH", 0, "Figures for monitoring, over HTTP (default: none)", 0},
    {"metrics-socket-mode", KEY_SETTING + 41, "OCTAL", 0, "Mode of it (default 0600)", 0},
    {"metrics-address", KEY_SETTING + 42, "ADDRESS", 0, "Or at a loopback address, such as 127.0.0.1:9110",
     0},
    {"state-dir", 'd', "DIR", 0, "Keep tables and what is active here (default: forget at exit)", 0},
    {"keep-pool", 'k', "WHEN", 0,
     "auto, yes or no: pages outlive a restart in the descriptor store of systemd; "
     "needs --state-dir (default auto: if $FDSTORE says that there is one)",
     0},
    {NULL, 0, NULL, 0, "Memory (65536, 64K, 64M, 2G):", 2},
    {"pool-bytes", KEY_SETTING + 1, "SIZE", 0, "All pages together (default 4G)", 0},
    {"extent-bytes", KEY_SETTING + 2, "SIZE", 0, "One memory object of the pool (default 64M)", 0},
    {"span-bytes", KEY_SETTING + 3, "SIZE", 0, "Unit that extents are cut in (default 2M)", 0},
    {"arena-bytes", KEY_SETTING + 4, "SIZE", 0, "What one client writes its pages in (default 64M)", 0},
    {"quota-bytes", KEY_SETTING + 5, "SIZE", 0, "Pages and arenas of one tenant (default: --pool-bytes)", 0},
    {"guarantee-bytes", KEY_SETTING + 58, "SIZE", 0,
     "Of the pool, for each tenant, whatever others do (default 0)", 0},
    {"lendable", KEY_SETTING + 59, "PERCENT", 0,
     "Of a guarantee that is not used, for others to borrow (default 75)", 0},
    {"moments-bytes", KEY_SETTING + 55, "SIZE", 0,
     "Moments of live traffic, which clients may report for operators "
     "to solve tables of (default 0: none are taken)",
     0},
    {"ghosts", KEY_SETTING + 6, "N", 0, "Evicted chunks remembered per tenant (default 16384)", 0},
    {NULL, 0, NULL, 0, "GPUs:", 3},
    {"gpu", KEY_SETTING + 70, "UUIDS", 0,
     "Keep pages on these GPUs too: UUIDs with commas, or first (default: none)", 0},
    {"gpu-pool-bytes", KEY_SETTING + 71, "SIZE", 0, "All pages of each GPU (default 1G)", 0},
    {"gpu-extent-bytes", KEY_SETTING + 72, "SIZE", 0, "One piece of a GPU's memory (default 64M)", 0},
    {"gpu-span-bytes", KEY_SETTING + 73, "SIZE", 0, "Unit that those are cut in (default 2M)", 0},
    {"gpu-quota-bytes", KEY_SETTING + 74, "SIZE", 0,
     "Pages of one tenant on one GPU (default: --gpu-pool-bytes)", 0},
    {"gpu-guarantee-bytes", KEY_SETTING + 75, "SIZE", 0, "Of each GPU's pool, for each tenant (default 0)",
     0},
    {"gpu-spare-extents", KEY_SETTING + 76, "N", 0, "Of each GPU, made before they are needed (default 1)",
     0},
    {"gpu-lend", KEY_SETTING + 79, "YES", 0,
     "Take memory of each GPU that clients allocated and lend (default no)", 0},
    {"gpu-reuse-ms", KEY_SETTING + 77, "MS", 0,
     "What a dead process could still write to rests this long after the driver "
     "forgot it (default 2000)",
     0},
    {"mover", KEY_SETTING + 78, "PATH", 0,
     "kvcobra-mover, the process that uses the driver (default " KVCOBRA_MOVER_PATH ")", 0},
    {NULL, 0, NULL, 0, "Time:", 4},
    {"lease-ms", KEY_SETTING + 7, "MS", 0,
     "Leases and reservations of a silent client end after this (default 30000)", 0},
    {"handshake-ms", KEY_SETTING + 8, "MS", 0, "From connecting to being known (default 5000)", 0},
    {"drain-ms", KEY_SETTING + 9, "MS", 0, "A replaced table takes pages for this long (default 600000)", 0},
    {NULL, 0, NULL, 0, "Counts:", 5},
    {"connections", KEY_SETTING + 10, "N", 0, "At one time (default 1024)", 0},
    {"connections-per-uid", KEY_SETTING + 11, "N", 0, "Of one user (default 1024)", 0},
    {"sessions-per-tenant", KEY_SETTING + 12, "N", 0,
     "With those that disconnected and still hold pages (default 1024)", 0},
    {"tenants", KEY_SETTING + 13, "N", 0, "Users since the start (default 256)", 0},
    {"models-per-session", KEY_SETTING + 20, "N", 0, "(default 16)", 0},
    {"leases-per-session", KEY_SETTING + 14, "N", 0, "(default 65536)", 0},
    {"reservations-per-session", KEY_SETTING + 15, "N", 0, "(default 8192)", 0},
    {"lent-extents-per-session", KEY_SETTING + 80, "N", 0, "(default 256)", 0},
    {"tables", KEY_SETTING + 16, "N", 0, "In any state (default 256)", 0},
    {"table-bytes", KEY_SETTING + 17, "SIZE", 0, "Of one table file (default 1G)", 0},
    {NULL, 0, NULL, 0, "Running:", 6},
    {"work-threads", KEY_SETTING + 60, "N", 0,
     "Threads that copy and check pages and tables beside the loop (default 2)", 0},
    {"work-queue", KEY_SETTING + 61, "N", 0,
     "Requests that wait for them or have one; more are told to come again (default 256)", 0},
    {"work-inline-bytes", KEY_SETTING + 62, "SIZE", 0, "Up to this the loop does it itself (default 64K)", 0},
    {"event-backend", KEY_SETTING + 18, "NAME", 0,
     "auto, io_uring or epoll (default auto: io_uring where the kernel allows it)", 0},
    {"log-level", KEY_SETTING + 19, "N", 0,
     "3 errors, 4 warnings, 5 notices, 6 what happens, 7 all (default 6)", 0},
    {0},
};

static const char doc[] =
    "Serve compressed key-value caches of language models to the processes of this host."
    "\v"
    "kvcobrad runs in the foreground until SIGTERM or SIGINT and logs to standard error; under systemd it "
    "says when it "
    "is ready. Sockets that systemd passes are used instead of paths; the one named \"operator\" is the "
    "operator's. "
    "Tables are managed with \"kvcobra table\", figures come from \"kvcobra status\".";

struct arguments {
    struct config *config;
    const char *file, *check;
    bool settings; /* of the command line are wanted: the second time, after the file's */
};

static int kvcobrad_descriptor(struct argp_state *state, const char *arg)
{
    uint64_t v;

    if (config_parse_bytes(arg, &v) < 0 || v < 3 || v > 1u << 20)
        argp_error(state, "\"%s\" is not a descriptor that was passed", arg);
    return (int) v;
}

static const char *kvcobrad_option_name(int key)
{
    const struct argp_option *o = options;

    while (o->key != key)
        o++;
    return o->name;
}

static error_t kvcobrad_parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct errmsg e;

    switch (key) {
    case KEY_CONFIG:
        a->file = arg;
        return 0;
    case KEY_CHECK:
        a->check = arg;
        return 0;
    case KEY_LISTEN_FD:
        a->config->listen_fd = kvcobrad_descriptor(state, arg);
        return 0;
    case KEY_OPERATOR_FD:
        a->config->operator_fd = kvcobrad_descriptor(state, arg);
        return 0;
    case KEY_READY_FD:
        a->config->ready_fd = kvcobrad_descriptor(state, arg);
        return 0;
    case KEY_NO_OPERATOR:
        a->config->operator_socket_path = NULL;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; kvcobrad takes no other arguments", arg);
        return 0;
    }
    if (key != 's' && key != 'o' && key != 'd' && key != 'k' && (key < KEY_SETTING || key > KEY_SETTING_LAST))
        return ARGP_ERR_UNKNOWN;
    if (a->settings && config_set(a->config, kvcobrad_option_name(key), arg, &e) < 0)
        argp_error(state, "--%s", e.text);
    return 0;
}

static const struct argp argp = {.options = options, .parser = kvcobrad_parse, .doc = doc};

static struct {
    int argc;
    char **argv;
} command_line;

/* Defaults, then the file, then the command line. A wrong command line ends the process; it was right before
 * a reload. */
static int kvcobrad_load(struct config *c, const char **ret_check, struct errmsg *e)
{
    struct arguments a = {.config = c};
    int r = 0;

    config_init(c);
    c->quota_bytes = c->gpu_quota_bytes = 0;
    (void) argp_parse(&argp, command_line.argc, command_line.argv, 0, NULL, &a);
    *ret_check = a.check;
    if (a.check || a.file)
        r = config_load(c, a.check ? a.check : a.file, e);
    if (r == 0 && !a.check) {
        a.settings = true;
        (void) argp_parse(&argp, command_line.argc, command_line.argv, 0, NULL, &a);
    }
    if (c->quota_bytes == 0)
        c->quota_bytes = c->pool_bytes > c->arena_bytes ? c->pool_bytes : c->pool_bytes + c->arena_bytes;
    if (c->gpu_quota_bytes == 0)
        c->gpu_quota_bytes = c->gpu_pool_bytes;
    return r == 0 ? config_check(c, e) : r;
}

static int kvcobrad_reload(struct config *fresh, struct errmsg *e)
{
    const char *check;

    return kvcobrad_load(fresh, &check, e);
}

static void kvcobrad_say_ready(const struct config *c)
{
    supervisor_notify("READY=1");
    if (c->ready_fd < 0)
        return;
    if (write(c->ready_fd, "\n", 1) != 1)
        log_event(LOG_WARNING, "ready-fd", "message=\"%s\", ignoring", strerror(errno));
    (void) close(c->ready_fd);
}

static int kvcobrad_run(struct config *c)
{
    _cleanup_(server_freep) struct server *s = NULL;
    struct errmsg e = {""};
    int r = server_new(c, kvcobrad_reload, &s, &e);

    if (r == 0) {
        log_event(LOG_INFO, "serving", "version=%s pid=%ld socket=%s backend=%s pool_bytes=%" PRIu64,
                  KVCOBRA_VERSION, (long) getpid(), c->listen_fd >= 0 ? "inherited" : c->socket_path,
                  ev_backend_name(s->ev), c->pool_bytes);
        kvcobrad_say_ready(c);
        r = server_run(s, &e);
    }
    supervisor_notify("STOPPING=1");
    if (r < 0)
        log_event(LOG_ERR, "failed", "message=\"%s\"", e.text[0] ? e.text : strerror(-r));
    return r;
}

/* --check-config: a sentence and an exit status. */
static int kvcobrad_check(const char *path, int r, const struct errmsg *e)
{
    if (r < 0) {
        fprintf(stderr, "kvcobrad: %s\n", e->text);
        return EXIT_FAILURE;
    }
    printf("%s: ok\n", path);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *check_path = NULL;
    struct errmsg e = {""};
    struct config config;
    int r;

    command_line.argc = argc;
    command_line.argv = argv;
    argp_err_exit_status = EXIT_USAGE;
    r = kvcobrad_load(&config, &check_path, &e);
    log_open(config.log_level);
    (void) signal(SIGPIPE, SIG_IGN); /* a reader of our log may go away */
    if (check_path) {
        r = kvcobrad_check(check_path, r, &e);
    } else {
        if (r < 0)
            log_event(LOG_ERR, "failed", "message=\"%s\"", e.text);
        else
            r = kvcobrad_run(&config);
        r = r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    config_deinit(&config);
    return r;
}
