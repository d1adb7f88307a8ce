/* kvcobrad: read the configuration, then check it or serve. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/command_line.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/server.h"

/* argp finds this symbol by its name, so it must be visible. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvcobrad " KVCOBRA_VERSION;

static struct command_line command_line; /* SIGHUP reads it again */

static int kvcobrad_reload(struct config *fresh, struct errmsg *e)
{
    const char *check;

    return command_line_load(&command_line, fresh, &check, e);
}

static void kvcobrad_report_ready(const struct config *c)
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
        kvcobrad_report_ready(c);
        r = server_run(s, &e);
    }

    supervisor_notify("STOPPING=1");
    if (r < 0)
        log_event(LOG_ERR, "failed", "message=\"%s\"", e.text[0] ? e.text : strerror(-r));
    return r;
}

/* --check-config. Return: the exit status. */
static int kvcobrad_check(const char *path, int r, const struct errmsg *e)
{
    if (r < 0) {
        fprintf(stderr, "kvcobrad: %s\n", e->text);
        return EXIT_FAILURE;
    }
    printf("%s: ok\n", path);
    return EXIT_SUCCESS;
}

static int kvcobrad_serve(struct config *c, int r, const struct errmsg *e)
{
    if (r < 0)
        log_event(LOG_ERR, "failed", "message=\"%s\"", e->text);
    else
        r = kvcobrad_run(c);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    _cleanup_(config_deinit) struct config config;
    const char *check_path = NULL;
    struct errmsg e = {""};
    int r;

    command_line = (struct command_line){argc, argv};
    r = command_line_load(&command_line, &config, &check_path, &e);
    log_open(config.log_level);
    (void) signal(SIGPIPE, SIG_IGN); /* the reader of the log may exit */

    if (check_path)
        return kvcobrad_check(check_path, r, &e);
    return kvcobrad_serve(&config, r, &e);
}
