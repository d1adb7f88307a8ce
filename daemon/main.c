/* kvcobrad: parse the command line, set up, serve, clean up. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config.h"
#include "daemon/lease.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "daemon/supervisor.h"

const char *argp_program_version = "kvcobrad " KVCOBRA_VERSION;

enum { EXIT_USAGE = 2 };

enum option_key {
    KEY_SOCKET = 's',
    KEY_OPERATOR = 'o',
    KEY_STATE = 'd',
    KEY_KEEP = 'k',
    KEY_LISTEN_FD = 0x100,
    KEY_OPERATOR_FD,
    KEY_READY_FD,
    KEY_SOCKET_MODE,
    KEY_NO_OPERATOR,
    KEY_BACKEND,
    KEY_LOG_LEVEL,
    KEY_POOL,
    KEY_EXTENT,
    KEY_SPAN,
    KEY_ARENA,
    KEY_QUOTA,
    KEY_GHOSTS,
    KEY_LEASE,
    KEY_HANDSHAKE,
    KEY_DRAIN,
    KEY_CONNECTIONS,
    KEY_CONNECTIONS_UID,
    KEY_SESSIONS,
    KEY_TENANTS,
    KEY_LEASES,
    KEY_RESERVATIONS,
    KEY_TABLES,
    KEY_TABLE_BYTES,
};

static const struct argp_option options[] = {
    { NULL, 0, NULL, 0, "Where:", 1 },
    { "socket", KEY_SOCKET, "PATH", 0, "Client socket (default " CONFIG_SOCKET_DEFAULT ")", 0 },
    { "socket-mode", KEY_SOCKET_MODE, "OCTAL", 0, "Mode of the client socket (default 0660)", 0 },
    { "operator-socket", KEY_OPERATOR, "PATH", 0,
      "Operator socket, mode 0600 (default " CONFIG_OPERATOR_SOCKET_DEFAULT ")", 0 },
    { "no-operator-socket", KEY_NO_OPERATOR, NULL, 0, "Serve no operator", 0 },
    { "listen-fd", KEY_LISTEN_FD, "FD", 0, "Already listening client socket, instead of --socket", 0 },
    { "operator-fd", KEY_OPERATOR_FD, "FD", 0, "Already listening operator socket", 0 },
    { "ready-fd", KEY_READY_FD, "FD", 0, "Write a byte here and close it once the sockets listen", 0 },
    { "state-dir", KEY_STATE, "DIR", 0, "Keep tables and what is active here (default: forget at exit)", 0 },
    { "keep-pool", KEY_KEEP, "WHEN", 0, "auto, yes or no: pages outlive a restart in the descriptor store of systemd; "
      "needs --state-dir (default auto: if $FDSTORE says that there is one)", 0 },
    { NULL, 0, NULL, 0, "Memory (65536, 64K, 64M, 2G):", 2 },
    { "pool-bytes", KEY_POOL, "SIZE", 0, "All pages together (default 4G)", 0 },
    { "extent-bytes", KEY_EXTENT, "SIZE", 0, "One memory object of the pool (default 64M)", 0 },
    { "span-bytes", KEY_SPAN, "SIZE", 0, "Unit that extents are cut in (default 2M)", 0 },
    { "arena-bytes", KEY_ARENA, "SIZE", 0, "What one client writes its pages in (default 64M)", 0 },
    { "quota-bytes", KEY_QUOTA, "SIZE", 0, "Pages and arenas of one tenant (default: --pool-bytes)", 0 },
    { "ghosts", KEY_GHOSTS, "N", 0, "Evicted chunks remembered per tenant (default 16384)", 0 },
    { NULL, 0, NULL, 0, "Time:", 3 },
    { "lease-ms", KEY_LEASE, "MS", 0, "Leases and reservations of a silent client end after this (default 30000)", 0 },
    { "handshake-ms", KEY_HANDSHAKE, "MS", 0, "From connecting to being known (default 5000)", 0 },
    { "drain-ms", KEY_DRAIN, "MS", 0, "A replaced table takes pages for this long (default 600000)", 0 },
    { NULL, 0, NULL, 0, "Counts:", 4 },
    { "connections", KEY_CONNECTIONS, "N", 0, "At one time (default 1024)", 0 },
    { "connections-per-uid", KEY_CONNECTIONS_UID, "N", 0, "Of one user (default 1024)", 0 },
    { "sessions-per-tenant", KEY_SESSIONS, "N", 0,
      "With those that disconnected and still hold pages (default 1024)", 0 },
    { "tenants", KEY_TENANTS, "N", 0, "Users since the start (default 256)", 0 },
    { "leases-per-session", KEY_LEASES, "N", 0, "(default 65536)", 0 },
    { "reservations-per-session", KEY_RESERVATIONS, "N", 0, "(default 8192)", 0 },
    { "tables", KEY_TABLES, "N", 0, "In any state (default 256)", 0 },
    { "table-bytes", KEY_TABLE_BYTES, "SIZE", 0, "Of one table file (default 1G)", 0 },
    { NULL, 0, NULL, 0, "Running:", 5 },
    { "event-backend", KEY_BACKEND, "NAME", 0,
      "auto, io_uring or epoll (default auto: io_uring where the kernel allows it)", 0 },
    { "log-level", KEY_LOG_LEVEL, "N", 0, "3 errors, 4 warnings, 5 notices, 6 what happens, 7 all (default 6)", 0 },
    { 0 },
};

static const char doc[] =
    "Serve compressed key-value caches of language models to the processes of this host."
    "\v"
    "kvcobrad runs in the foreground until SIGTERM or SIGINT and logs to standard error; under systemd it says when it "
    "is ready. Sockets that systemd passes are used instead of paths; the one named \"operator\" is the operator's. "
    "Tables are managed with \"kvcobra table\", figures come from \"kvcobra status\".";

struct arguments {
    struct config config;
    bool quota_given;
};

static uint64_t number(struct argp_state *state, const char *arg, uint64_t min, uint64_t max)
{
    uint64_t v;

    if (config_parse_bytes(arg, &v) < 0 || v < min || v > max)
        argp_error(state, "\"%s\" is not a number from %" PRIu64 " to %" PRIu64, arg, min, max);
    return v;
}

static uint64_t size(struct argp_state *state, const char *arg)
{
    uint64_t v;

    if (config_parse_bytes(arg, &v) < 0)
        argp_error(state, "\"%s\" is not a size such as 65536, 64K, 64M or 2G", arg);
    return v;
}

static mode_t mode(struct argp_state *state, const char *arg)
{
    char *end;
    unsigned long v = strtoul(arg, &end, 8);

    if (*arg == '\0' || *end != '\0' || v > 0777)
        argp_error(state, "\"%s\" is not an octal mode up to 0777", arg);
    return (mode_t) v;
}

static bool parse_memory(struct arguments *a, int key, const char *arg, struct argp_state *state)
{
    struct config *c = &a->config;

    switch (key) {
    case KEY_POOL:
        c->pool_bytes = size(state, arg);
        return true;
    case KEY_EXTENT:
        c->extent_bytes = size(state, arg);
        return true;
    case KEY_SPAN:
        c->span_bytes = size(state, arg);
        return true;
    case KEY_ARENA:
        c->arena_bytes = size(state, arg);
        return true;
    case KEY_QUOTA:
        c->quota_bytes = size(state, arg);
        a->quota_given = true;
        return true;
    case KEY_TABLE_BYTES:
        c->table_bytes_max = size(state, arg);
        return true;
    case KEY_GHOSTS:
        c->ghosts_per_tenant = (uint32_t) number(state, arg, 16, 1u << 24);
        return true;
    default:
        return false;
    }
}

static bool parse_limits(struct config *c, int key, const char *arg, struct argp_state *state)
{
    enum { DAY_MS = 86400000 };

    switch (key) {
    case KEY_LEASE:
        c->lease_ms = number(state, arg, 100, DAY_MS);
        return true;
    case KEY_HANDSHAKE:
        c->handshake_ms = number(state, arg, 100, DAY_MS);
        return true;
    case KEY_DRAIN:
        c->drain_ms = number(state, arg, 0, UINT64_C(365) * DAY_MS);
        return true;
    case KEY_CONNECTIONS:
        c->connections_max = (uint32_t) number(state, arg, 1, 1u << 20);
        return true;
    case KEY_CONNECTIONS_UID:
        c->connections_per_uid_max = (uint32_t) number(state, arg, 1, 1u << 20);
        return true;
    case KEY_SESSIONS:
        c->sessions_per_tenant_max = (uint32_t) number(state, arg, 1, 1u << 20);
        return true;
    case KEY_TENANTS:
        c->tenants_max = (uint32_t) number(state, arg, 1, 1u << 16);
        return true;
    case KEY_LEASES:
        c->leases_per_session_max = (uint32_t) number(state, arg, 1, 1u << LEASE_INDEX_BITS);
        return true;
    case KEY_RESERVATIONS:
        c->reservations_per_session_max = (uint32_t) number(state, arg, 1, 1u << 24);
        return true;
    case KEY_TABLES:
        c->tables_max = (uint32_t) number(state, arg, 1, 1u << 16);
        return true;
    default:
        return false;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct config *c = &a->config;

    switch (key) {
    case KEY_SOCKET:
        c->socket_path = arg;
        break;
    case KEY_OPERATOR:
        c->operator_socket_path = arg;
        break;
    case KEY_NO_OPERATOR:
        c->operator_socket_path = NULL;
        break;
    case KEY_SOCKET_MODE:
        c->socket_mode = mode(state, arg);
        break;
    case KEY_LISTEN_FD:
        c->listen_fd = (int) number(state, arg, 3, 1u << 20);
        break;
    case KEY_OPERATOR_FD:
        c->operator_fd = (int) number(state, arg, 3, 1u << 20);
        break;
    case KEY_READY_FD:
        c->ready_fd = (int) number(state, arg, 3, 1u << 20);
        break;
    case KEY_STATE:
        c->state_dir = arg;
        break;
    case KEY_KEEP:
        if (config_parse_keep(arg, &c->keep_pool) < 0)
            argp_error(state, "\"%s\" is none of auto, yes, no", arg);
        break;
    case KEY_LOG_LEVEL:
        c->log_level = (int) number(state, arg, 0, 7);
        break;
    case KEY_BACKEND:
        if (ev_backend_from_name(arg, &c->backend) < 0)
            argp_error(state, "\"%s\" is no event backend: auto, io_uring or epoll", arg);
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; kvcobrad takes no other arguments", arg);
        break;
    default:
        if (!parse_memory(a, key, arg, state) && !parse_limits(c, key, arg, state))
            return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void say_ready(const struct config *c)
{
    supervisor_say("READY=1");
    if (c->ready_fd < 0)
        return;
    if (write(c->ready_fd, "\n", 1) != 1)
        log_event(LOG_WARNING, "ready-fd", "message=\"%s\", ignoring", strerror(errno));
    (void) close(c->ready_fd);
}

static int run(const struct config *c)
{
    _cleanup_(server_freep) struct server *s = NULL;
    struct errmsg e = { "" };
    int r = config_check(c, &e);

    if (r == 0)
        r = server_new(c, &s, &e);
    if (r == 0) {
        log_event(LOG_INFO, "serving", "version=%s pid=%ld socket=%s backend=%s pool_bytes=%" PRIu64, KVCOBRA_VERSION,
                  (long) getpid(), c->listen_fd >= 0 ? "inherited" : c->socket_path, ev_backend_name(s->ev),
                  c->pool_bytes);
        say_ready(c);
        r = server_run(s, &e);
    }
    supervisor_say("STOPPING=1");
    if (r < 0)
        log_event(LOG_ERR, "failed", "message=\"%s\"", e.text[0] ? e.text : strerror(-r));
    return r;
}

int main(int argc, char **argv)
{
    static const struct argp argp = { .options = options, .parser = parse, .doc = doc };
    struct arguments a = { 0 };

    config_init(&a.config);
    argp_err_exit_status = EXIT_USAGE;
    (void) argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (!a.quota_given)
        a.config.quota_bytes = a.config.pool_bytes > a.config.arena_bytes ? a.config.pool_bytes : a.config.arena_bytes;
    log_open(a.config.log_level);
    (void) signal(SIGPIPE, SIG_IGN); /* a reader of our log may go away */
    return run(&a.config) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
