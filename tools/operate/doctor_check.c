/* See doctor_check.h. */
#include "tools/operate/doctor_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/attend.h"
#include "tools/command/client_model.h"
#include "tools/command/human.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/operate/tier_state.h"

enum { SOCKET_PATH_BYTES = 108 /* struct sockaddr_un */, MEMORY_NOTE_PERCENT = 80 };

void doctor_add(struct doctor *d, enum doctor_result result, const char *subject, const char *fmt, ...)
{
    struct doctor_finding *f = &d->findings[d->n];
    va_list ap;

    if (d->n == DOCTOR_FINDINGS_MAX)
        return;

    *f = (struct doctor_finding){.result = result, .subject = subject};
    va_start(ap, fmt);
    (void) vsnprintf(f->text, sizeof(f->text), fmt, ap);
    va_end(ap);
    d->n++;
}

/* ---- the machine ---- */

static void doctor_check_clock(struct doctor *d)
{
    struct timex t = {.modes = 0};

    if (adjtimex(&t) == TIME_ERROR || (t.status & STA_UNSYNC))
        doctor_add(
            d, DOCTOR_NOTE, "clock",
            "no program keeps this machine's clock right: times in logs of several hosts cannot be compared "
            "(systemd-timesyncd or chrony do)");
    else
        doctor_add(d, DOCTOR_OK, "clock", "synchronised");
}

void doctor_add_unit(struct doctor *d, const char *load_state, const char *active_state)
{
    if (strcmp(load_state, "loaded") != 0)
        doctor_add(d, DOCTOR_NOTE, "systemd", "kvcobrad.service is %s: %s",
                   strcmp(load_state, "not-found") == 0 ? "not installed" : load_state,
                   strcmp(load_state, "masked") == 0
                       ? "'systemctl unmask kvcobrad.service' allows it to start"
                       : "the package kvcobrad has it; 'kvcobrad --user' runs without it");
    else if (strcmp(active_state, "active") == 0)
        doctor_add(d, DOCTOR_OK, "systemd", "kvcobrad.service is active");
    else if (strcmp(active_state, "failed") == 0)
        doctor_add(
            d, DOCTOR_WRONG, "systemd",
            "kvcobrad.service failed: 'journalctl -u kvcobrad' has the reason, 'systemctl reset-failed "
            "\"kvcobrad*\"' lets it start again");
    else
        doctor_add(d, DOCTOR_NOTE, "systemd",
                   "kvcobrad.service is %s: 'systemctl enable --now kvcobrad.socket kvcobrad-operator.socket "
                   "kvcobrad.service' starts it",
                   active_state);
}

/* is-active would call a unit that does not exist "inactive". */
static void doctor_check_systemd(struct doctor *d)
{
    char line[64], load_state[64] = "", active_state[64] = "";
    FILE *f;

    if (access("/run/systemd/system", F_OK) != 0) {
        doctor_add(d, DOCTOR_NOTE, "systemd",
                   "this system does not run systemd: a restart of kvcobrad loses the pool");
        return;
    }

    /* NOLINTNEXTLINE(cert-env33-c): a constant */
    f = popen("systemctl show --property=LoadState,ActiveState kvcobrad.service 2>/dev/null", "re");
    while (f && fgets(line, sizeof(line), f)) {
        (void) sscanf(line, "LoadState=%63s", load_state);
        (void) sscanf(line, "ActiveState=%63s", active_state);
    }
    if (f)
        (void) pclose(f);
    if (load_state[0])
        doctor_add_unit(d, load_state, active_state);
    else
        doctor_add(d, DOCTOR_NOTE, "systemd",
                   "systemctl does not answer: the state of kvcobrad.service is unknown");
}

void doctor_check_machine(struct doctor *d)
{
    const char *kernels = attend_kernel_name();
    char memory[HUMAN_BYTES], unused[HUMAN_BYTES];
    struct sysinfo info;
    struct utsname os;

    if (uname(&os) == 0)
        doctor_add(d, DOCTOR_OK, "version", "library %s, Linux %s, %s", kvc_version(), os.release,
                   os.machine);
    doctor_add(d, strcmp(kernels, "reference") == 0 ? DOCTOR_NOTE : DOCTOR_OK, "kernels", "%s%s", kernels,
               strcmp(kernels, "reference") == 0
                   ? ": this processor has neither AVX2 nor AVX-512, attention is slow"
                   : " on this processor");
    if (sysinfo(&info) == 0)
        doctor_add(d, DOCTOR_OK, "memory", "%s, %s of it free",
                   human_bytes((uint64_t) info.totalram * info.mem_unit, memory),
                   human_bytes((uint64_t) info.freeram * info.mem_unit, unused));
    doctor_check_clock(d);
    doctor_check_systemd(d);
}

/* ---- sockets ---- */

static bool doctor_has_wrong_config(const struct doctor *d)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->findings[i].result == DOCTOR_WRONG && strcmp(d->findings[i].subject, DOCTOR_CONFIG) == 0)
            return true;
    return false;
}

static kvc_client *doctor_check_socket(struct doctor *d, enum kvc_socket which, const char *given,
                                       uint32_t timeout_ms)
{
    const char *subject = which == KVC_SOCKET_OPERATORS ? "operator socket" : "client socket";
    char path[SOCKET_PATH_BYTES];
    struct errmsg e = {""};
    kvc_client *c = NULL;
    int r;

    if (kvc_socket_path(which, given, path, sizeof(path)) < 0) {
        doctor_add(d, DOCTOR_WRONG, subject, "its path is longer than %d bytes", SOCKET_PATH_BYTES - 1);
        return NULL;
    }

    r = client_open_at(which, given, timeout_ms, &c, &e);
    if (r == -EACCES && which == KVC_SOCKET_OPERATORS) { /* as it should be for a client */
        doctor_add(d, DOCTOR_NOTE, subject,
                   "this user is no operator, so the daemon itself was not looked at: %s", e.text);
        return NULL;
    }
    if ((r == -ENOENT || r == -ECONNREFUSED) && doctor_has_wrong_config(d)) { /* starting it would not help */
        doctor_add(d, DOCTOR_WRONG, subject,
                   "no kvcobrad at %s: mend its configuration first, and start it then", path);
        return NULL;
    }
    if (r < 0) {
        doctor_add(d, DOCTOR_WRONG, subject, "%s", e.text);
        return NULL;
    }

    doctor_add(d, DOCTOR_OK, subject, "kvcobrad answers at %s", path);
    return c;
}

void doctor_check_sockets(struct doctor *d, const char *client_path, const char *operator_path,
                          uint32_t timeout_ms, kvc_client **ret_operator)
{
    _cleanup_(kvc_client_freep) kvc_client *c =
        doctor_check_socket(d, KVC_SOCKET_CLIENTS, client_path, timeout_ms);

    *ret_operator = doctor_check_socket(d, KVC_SOCKET_OPERATORS, operator_path, timeout_ms);
}

/* ---- the daemon ---- */

static void doctor_check_pool(struct doctor *d, const Kvcobra__StatusReply *s)
{
    char pool[HUMAN_BYTES], all[HUMAN_BYTES], used[HUMAN_BYTES];
    struct sysinfo info;
    uint64_t memory;

    if (sysinfo(&info) < 0)
        return;

    memory = (uint64_t) info.totalram * info.mem_unit;
    (void) human_bytes(s->pool_bytes, pool);
    (void) human_bytes(memory, all);
    if (s->pool_bytes > memory)
        doctor_add(d, DOCTOR_WRONG, "pool",
                   "its maximum of %s is more than this machine's %s: lower pool-bytes", pool, all);
    else if (s->pool_bytes > memory / 100 * MEMORY_NOTE_PERCENT)
        doctor_add(d, DOCTOR_NOTE, "pool",
                   "its maximum of %s leaves little of this machine's %s to the models", pool, all);
    else
        doctor_add(d, DOCTOR_OK, "pool", "%s allocated of %s", human_bytes(s->extent_bytes, used), pool);
}

/* The number at "Max open files" of /proc/PID/limits; 0: unknown, as for another user's process. */
static uint64_t doctor_descriptor_limit(uint64_t pid)
{
    static const char key[] = "Max open files";
    char path[48], line[256];
    uint64_t limit = 0;
    FILE *f;

    (void) snprintf(path, sizeof(path), "/proc/%" PRIu64 "/limits", pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, key, strlen(key)) == 0)
            limit = strtoull(line + strlen(key), NULL, 10);
    if (f)
        (void) fclose(f);
    return limit;
}

static void doctor_check_descriptors(struct doctor *d, const Kvcobra__StatusReply *s)
{
    /* sockets, pidfds and objects of a session, and two for each extent: as kvcobrad counts them */
    uint64_t limit = doctor_descriptor_limit(s->pid), used = 64 + s->sessions * 9;

    for (size_t i = 0; i < s->n_devices; i++)
        used += s->devices[i]->extent_bytes / (1 << 20) / 32;
    if (limit == 0)
        doctor_add(d, DOCTOR_NOTE, "descriptors",
                   "the limit of process %" PRIu64 " cannot be read: run this as root", s->pid);
    else if (used > limit / 4 * 3)
        doctor_add(d, DOCTOR_NOTE, "descriptors",
                   "about %" PRIu64 " of %" PRIu64
                   " are in use: raise LimitNOFILE= of the unit, or lower connections",
                   used, limit);
    else
        doctor_add(d, DOCTOR_OK, "descriptors", "a limit of %" PRIu64, limit);
}

/* Whether the daemon is a process of this user, as after 'kvcobra up': so are its clients. */
static bool doctor_is_own_daemon(uint64_t pid)
{
    struct stat info;
    char path[32];

    (void) snprintf(path, sizeof(path), "/proc/%" PRIu64, pid);
    return stat(path, &info) == 0 && info.st_uid == geteuid();
}

static void doctor_check_tenants(struct doctor *d, const Kvcobra__StatusReply *s)
{
    bool is_own = doctor_is_own_daemon(s->pid);

    for (size_t i = 0; i < s->n_tenants; i++) {
        const Kvcobra__TenantStatus *t = s->tenants[i];

        if (!t->isolated && !is_own)
            doctor_add(d, DOCTOR_NOTE, "tenant",
                       "%s is not isolated: one of its clients runs as root or as the user of kvcobrad",
                       t->name);
        if (t->used_bytes > t->quota_bytes / 100 * 95)
            doctor_add(d, DOCTOR_NOTE, "tenant",
                       "%s uses %" PRIu64 " %% of its quota: 'kvcobra quota' raises it", t->name,
                       t->used_bytes / (t->quota_bytes / 100 + 1));
    }
}

static void doctor_check_tables(struct doctor *d, kvc_client *control)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    struct errmsg e = {""};
    size_t n_active = 0, n_exact = 0;

    if (operator_list_tables(control, &list, &e) < 0) {
        doctor_add(d, DOCTOR_WRONG, "tables", "%s", e.text);
        return;
    }

    for (size_t i = 0; i < list->n_tables; i++) {
        bool is_active = list->tables[i]->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE;

        n_active += is_active;
        n_exact += is_active && list->tables[i]->exact != 0;
    }
    if (n_exact > 0)
        doctor_add(
            d, DOCTOR_NOTE, "tables",
            "%zu active, of which %zu are exact: their pages have the engines' own 16 or 32 bits; a table "
            "of 3 bits ('kvcobra calibrate', 'kvcobra solve') needs a fifth or less",
            n_active, n_exact);
    else if (n_active == 0)
        doctor_add(
            d, DOCTOR_NOTE, "tables",
            "no table is active, so no client can share pages: 'kvcobra table stage FILE' and 'kvcobra table "
            "activate FILE'");
    else
        doctor_add(d, DOCTOR_OK, "tables", "%zu active, %zu in all", n_active, list->n_tables);
}

void doctor_add_tier(struct doctor *d, const char *subject, const char *state, const char *message)
{
    if (!tier_state_exists(state))
        return;
    if (strcmp(state, "ready") == 0)
        doctor_add(d, message[0] ? DOCTOR_NOTE : DOCTOR_OK, subject, "ready%s%s", message[0] ? ": " : "",
                   message);
    else if (strcmp(state, "opening") == 0 || strcmp(state, "joining") == 0)
        doctor_add(d, DOCTOR_NOTE, subject, "%s%s%s", state, message[0] ? ": " : "", message);
    else
        doctor_add(d, DOCTOR_WRONG, subject, "%s: %s", state, message);
}

static void doctor_check_tiers(struct doctor *d, const Kvcobra__StatusReply *s, kvc_client *control)
{
    _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *t = NULL;
    Kvcobra__ControlTier ask = KVCOBRA__CONTROL_TIER__INIT;
    struct errmsg e = {""};

    if (!tier_state_exists(s->disk_tier) && !tier_state_exists(s->cluster_tier))
        return;

    ask.action = KVCOBRA__TIER_ACTION__TIER_ASK;
    if (operator_call(control, KVCOBRA__REQUEST__BODY_CONTROL_TIER, &ask.base, &t, &e) < 0) {
        doctor_add(d, DOCTOR_WRONG, "tiers", "%s", e.text);
        return;
    }

    doctor_add_tier(d, "disk tier", t->state, t->message);
    doctor_add_tier(d, "cluster tier", t->cluster_state, t->cluster_message);
}

void doctor_check_daemon(struct doctor *d, kvc_client *control)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    struct errmsg e = {""};
    char up[HUMAN_BYTES];

    if (operator_get_status(control, &s, &e) < 0) {
        doctor_add(d, DOCTOR_WRONG, "daemon", "%s", e.text);
        return;
    }

    (void) human_seconds((double) s->uptime_ms * 1e-3, up);
    if (strcmp(s->version, kvc_version()) == 0)
        doctor_add(d, DOCTOR_OK, "daemon", "version %s, up %s", s->version, up);
    else
        doctor_add(d, DOCTOR_NOTE, "daemon",
                   "version %s, and the library is %s: restart the daemon after an upgrade", s->version,
                   kvc_version());
    if (strcmp(s->restart, "kept") != 0)
        doctor_add(d, DOCTOR_NOTE, "restart",
                   "a restart loses the pool: pages are kept under systemd with state-dir");
    if (s->lost_names > 0)
        doctor_add(d, DOCTOR_WRONG, "names",
                   "%u sockets, locks or folders of kvcobrad were removed or replaced while it runs: see "
                   "event=name-lost "
                   "in its log, and restart it",
                   (unsigned) s->lost_names);
    if (s->draining)
        doctor_add(d, DOCTOR_NOTE, "draining", "new work is refused until 'kvcobra drain --off'");
    for (size_t i = 0; i < s->n_devices; i++)
        if (s->devices[i]->state == KVCOBRA__DEVICE_STATE__DEVICE_UNAVAILABLE)
            doctor_add(d, DOCTOR_WRONG, "GPU", "%s: %s", s->devices[i]->name, s->devices[i]->message);
    doctor_check_tiers(d, s, control);
    doctor_check_pool(d, s);
    doctor_check_descriptors(d, s);
    doctor_check_tenants(d, s);
    doctor_check_tables(d, control);
}
