/* kvcobrad: read the configuration, then check it, print it or serve. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/core_file.h"
#include "base/entry.h"
#include "base/errmsg.h"
#include "daemon/config/command_line.h"
#include "daemon/config/config.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/config_warnings.h"
#include "daemon/config/machine.h"
#include "daemon/config/user_folders.h"
#include "daemon/loop/heap.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/server.h"
#include "daemon/server_parts.h"
#include "daemon/start_check.h"

/* argp finds this symbol by its name, so it must be visible. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvcobrad " KVCOBRA_VERSION;

static struct command_line command_line; /* SIGHUP reads it again */

static int kvcobrad_reload(struct config *fresh, struct errmsg *e)
{
    struct command_line_mode mode;

    return command_line_load(&command_line, fresh, &mode, e);
}

static void kvcobrad_report_ready(struct server *s)
{
    const struct config *c = s->config;

    supervisor_notify(s->supervisor, "READY=1");
    if (c->ready_fd < 0)
        return;

    if (write(c->ready_fd, "\n", 1) != 1)
        log_event(LOG_WARNING, "ready-fd", "message=\"%s\", ignoring", strerror(errno));
    (void) close(c->ready_fd);
}

static const char *kvcobrad_metrics_place(const struct server *s)
{
    if (!s->frame->metrics_http)
        return "none";
    if (s->config->metrics_socket_path)
        return s->config->metrics_socket_path;
    return s->config->metrics_address ? s->config->metrics_address : "inherited";
}

/*
 * Whether only a person can help, so that the unit does not start kvcobrad again. A missing file or folder
 * may be there at the next attempt.
 */
static bool kvcobrad_is_for_person(int r)
{
    switch (r) {
    case -EINVAL:
    case -EBADMSG:
    case -EPERM:
    case -EACCES:
    case -EFBIG:
    case -EISDIR:
    case -ENOTDIR:
    case -EEXIST:
    case -ENAMETOOLONG:
        return true;
    default:
        return false;
    }
}

/* Return: the exit status. */
static int kvcobrad_run(struct config *c)
{
    _cleanup_(server_freep) struct server *s = NULL;
    struct errmsg e = {""};
    int r = server_new(c, kvcobrad_reload, &s, &e),
        code = kvcobrad_is_for_person(r) ? EX_CONFIG : EXIT_FAILURE;

    if (r == 0) {
        log_event(LOG_INFO, "serving",
                  "version=%s pid=%ld socket=%s operator_socket=%s metrics=%s state_dir=%s config=%s "
                  "pool_bytes=%" PRIu64,
                  KVCOBRA_VERSION, (long) getpid(), s->client_path, s->operator_path,
                  kvcobrad_metrics_place(s), c->state_dir ? c->state_dir : "none", c->file ? c->file : "none",
                  c->pool_bytes);
        kvcobrad_report_ready(s);
        r = server_run(s, &e);
        supervisor_notify(s->supervisor, "STOPPING=1");
    }

    if (r < 0)
        log_event(LOG_ERR, "failed", "message=\"%s\"", e.text[0] ? e.text : strerror(-r));
    return r < 0 ? code : EXIT_SUCCESS;
}

/* ---- --check-config, --print-config ---- */

static void kvcobrad_print_warning(void *ctx, const char *event, const char *sentence)
{
    (void) event;
    printf("%s: warning: %s\n", (const char *) ctx, sentence);
}

/* Return: the exit status. */
static int kvcobrad_check(const struct command_line_mode *mode, const struct config *c, int r,
                          struct errmsg *e)
{
    uint64_t memory_bytes = machine_memory_bytes();
    bool printed = r < 0 && mode->printed_errors;

    if (r == 0)
        r = start_check(c, mode->is_user, kvcobrad_print_warning, (void *) mode->check, e);
    if (r < 0) {
        if (!printed)
            fprintf(stderr, "kvcobrad: %s\n", e->text);
        return EXIT_FAILURE;
    }

    config_warnings(c, memory_bytes, kvcobrad_print_warning, (void *) mode->check);
    printf("%s: ok\n", mode->check);
    printf("memory: a pool of %.2f GiB on a machine or control group with %.2f GiB; a tenant has room for "
           "%" PRIu64 " clients with a page each\n",
           (double) c->pool_bytes / 0x1p30, (double) memory_bytes / 0x1p30, config_clients_per_tenant(c));
    tenant_rules_print(&c->tenants, stdout);
    return EXIT_SUCCESS;
}

/* Return: the exit status. */
static int kvcobrad_print(const struct config *c, int r, const struct errmsg *e)
{
    if (r < 0) {
        fprintf(stderr, "kvcobrad: %s\n", e->text);
        return EXIT_FAILURE;
    }

    config_print(c, stdout);
    return EXIT_SUCCESS;
}

/* ---- serving ---- */

static void kvcobrad_log_warning(void *ctx, const char *event, const char *sentence)
{
    (void) ctx;
    log_event(LOG_WARNING, event, "message=\"%s\"", sentence);
}

/*
 * Return: the exit status. The unit does not start kvcobrad again after EX_CONFIG. -EAGAIN: a name service
 * did not answer.
 */
static int kvcobrad_serve(const struct command_line_mode *mode, struct config *c, int r, struct errmsg *e)
{
    if (r == 0)
        config_warnings(c, machine_memory_bytes(), kvcobrad_log_warning, NULL);
    if (r == 0 && mode->is_user)
        r = user_folders_create(c, e);
    if (r == 0)
        r = needs_check(c, e);
    if (r == 0) {
        heap_init();
        return kvcobrad_run(c);
    }

    log_event(LOG_ERR, "failed", "message=\"%s\"", e->text);
    return kvcobrad_is_for_person(r) || r == -ENOENT ? EX_CONFIG : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    _cleanup_(config_deinit) struct config config;
    struct command_line_mode mode = {.check = NULL};
    struct errmsg e = {""};
    int r;

    entry_prepare(ENTRY_PIPES_FAIL);
    command_line = (struct command_line){argc, argv};
    r = command_line_load(&command_line, &config, &mode, &e);
    log_open(config.log_level);
    log_set_format(config.log_format);
    if (config.allows_core)
        core_file_allow();
    else
        core_file_forbid();

    if (mode.check)
        return kvcobrad_check(&mode, &config, r, &e);
    if (mode.prints)
        return kvcobrad_print(&config, r, &e);
    return kvcobrad_serve(&mode, &config, r, &e);
}
