/* See tier_peer.h. */
#include "tools/bench/tier_peer.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/find_daemon.h"
#include "tools/command/process.h"

enum { BLOCK_UNIT = 4096, ARGS_MAX = 20, TEXT_BYTES = PATH_MAX + 32 };

/* The words of a command, as they are shown and run. */
struct tier_command {
    char texts[ARGS_MAX][TEXT_BYTES];
    const char *argv[ARGS_MAX + 1];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void tier_command_add(struct tier_command *c, const char *fmt,
                                                                   ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(c->texts[c->n], sizeof(c->texts[c->n]), fmt, ap);
    va_end(ap);
    c->argv[c->n] = c->texts[c->n];
    c->argv[++c->n] = NULL;
}

static void tier_command_show(const struct tier_command *c, char ret[static TIER_COMMAND_BYTES])
{
    size_t at = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < c->n && at < TIER_COMMAND_BYTES - 1; i++)
        at += (size_t) snprintf(ret + at, TIER_COMMAND_BYTES - at, "%s%s", i > 0 ? " " : "", c->argv[i]);
}

/* Runs it. *ret: what it printed, to be freed. */
static int tier_command_run(const struct tier_command *c, char **ret, struct errmsg *e)
{
    _cleanup_(process_deinit) struct process p = PROCESS_INIT(c->argv[0]);
    struct process *const ps[] = {&p};
    char path[PATH_MAX];
    int r = find_command(c->argv[0], c->argv[0], path, NULL);

    if (r < 0)
        return fail(e, r, "there is no %s on this machine", c->argv[0]);

    r = process_start(&p, path, c->argv, PROCESS_CAPTURE, e);
    if (r == 0)
        r = process_wait(ps, 1, 0, PROCESS_EXITS, -1, e);
    if (r < 0)
        return r;
    if (!process_succeeded(&p, e))
        return -ECANCELED;

    *ret = strdup(p.out ? p.out : "");
    return *ret ? 0 : fail(e, -ENOMEM, "out of memory");
}

/* ---- fio ---- */

/* What fio printed: notes, and one JSON document. */
static int tier_peer_read_fio(const char *text, const char *side, double *ret, struct errmsg *e)
{
    const char *begin = strchr(text, '{');
    json_t *all = begin ? json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const json_t *job = json_array_get(json_object_get(all, "jobs"), 0);
    const json_t *bytes = json_object_get(json_object_get(job, side), "bw_bytes");

    *ret = json_number_value(bytes);
    json_decref(all);
    return *ret > 0 ? 0 : fail(e, -EPROTO, "fio's output has no \"bw_bytes\" above 0");
}

int tier_peer_fio(const struct tier_fio_options *o, enum tier_fio kind, double *ret, char *ret_command,
                  struct errmsg *e)
{
    static const char *const names[] = {"write", "read", "randread"};
    uint64_t block = (o->block_bytes + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
    struct tier_command c = {.n = 0};
    _cleanup_(freep) char *text = NULL;
    char file[PATH_MAX];
    int r;

    if (snprintf(file, sizeof(file), "%s/kvcobra-bench-fio", o->folder) >= (int) sizeof(file))
        return fail(e, -ENAMETOOLONG, "the path %.60s is too long", o->folder);
    tier_command_add(&c, "fio");
    tier_command_add(&c, "--name=kvcobra");
    tier_command_add(&c, "--filename=%s", file);
    tier_command_add(&c, "--size=%" PRIu64, (o->file_bytes + block - 1) / block * block);
    tier_command_add(&c, "--io_size=%" PRIu64, (o->io_bytes + block - 1) / block * block);
    tier_command_add(&c, "--bs=%" PRIu64, block);
    tier_command_add(&c, "--rw=%s", names[kind]);
    tier_command_add(&c, "--iodepth=%" PRIu32, o->depth);
    tier_command_add(&c, "--ioengine=libaio");
    tier_command_add(&c, "--direct=1");
    tier_command_add(&c, "--overwrite=1"); /* as kvcobrad does, whose file has its size before */
    tier_command_add(&c, "--output-format=json");
    tier_command_show(&c, ret_command);
    r = tier_command_run(&c, &text, e);
    (void) unlink(file);
    if (r < 0)
        return r;
    return tier_peer_read_fio(text, kind == TIER_FIO_WRITE ? "write" : "read", ret, e);
}

/* ---- redis-benchmark ---- */

/* "GET","123.45",... */
static int tier_peer_read_redis(const char *text, double *ret, struct errmsg *e)
{
    const char *get = strstr(text, "\"GET\",\"");

    *ret = get ? strtod(get + strlen("\"GET\",\""), NULL) : 0;
    return *ret > 0 ? 0 : fail(e, -EPROTO, "redis-benchmark printed no rate of GET");
}

int tier_peer_redis(const struct tier_redis_options *o, double *ret, char *ret_command, struct errmsg *e)
{
    struct tier_command c = {.n = 0};
    _cleanup_(freep) char *text = NULL;
    int r;

    tier_command_add(&c, "redis-benchmark");
    tier_command_add(&c, "-p");
    tier_command_add(&c, "%u", (unsigned) o->port);
    tier_command_add(&c, "-t");
    tier_command_add(&c, "set,get"); /* SET makes the value that GET reads */
    tier_command_add(&c, "-d");
    tier_command_add(&c, "%" PRIu64, o->value_bytes);
    tier_command_add(&c, "-c");
    tier_command_add(&c, "%" PRIu32, o->n_clients);
    tier_command_add(&c, "-P");
    tier_command_add(&c, "%" PRIu32, o->depth);
    tier_command_add(&c, "-n");
    tier_command_add(&c, "%" PRIu32, o->n_requests);
    tier_command_add(&c, "--csv");
    tier_command_show(&c, ret_command);
    r = tier_command_run(&c, &text, e);
    if (r == 0)
        r = tier_peer_read_redis(text, ret, e);
    *ret *= (double) o->value_bytes;
    return r;
}
