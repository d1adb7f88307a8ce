/* See tier_place.h. */
#include "tools/bench/tier_place.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/command/clock.h"
#include "tools/command/find_daemon.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"
#include "tools/command/temp_folder.h"

enum {
    MIB = 1 << 20,
    SPAN_PAGES = 4,
    SPAN_BYTES_MAX = 2 * MIB, /* of kvcobrad's setting */
    SPANS_PER_EXTENT = 8,
    ARENA_BYTES = 64 << 20,
    DISK_BUFFER_BYTES_MAX = 64 << 20,
    PATIENCE_S = 600,
    ANSWER_MS = 8000, /* as long as a match waits for pages */
    POLL_MS = 1,
    KEY_BYTES = 32,
};

static uint64_t tier_place_round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- files ---- */

/* Secrets of this run alone. */
static int tier_place_write_keys(struct tier_place *p, struct errmsg *e)
{
    uint8_t secret[KEY_BYTES];
    char digits[2][2 * KEY_BYTES + 1], text[256];
    int r;

    for (int i = 0; i < 2; i++) {
        randombytes_buf(secret, sizeof(secret));
        (void) sodium_bin2hex(digits[i], sizeof(digits[i]), secret, sizeof(secret));
    }
    (void) snprintf(text, sizeof(text), "index %s\nseal 1 %s\n", digits[0], digits[1]);
    r = stream_file_write(p->keys, text, strlen(text), e);
    if (r == 0 && chmod(p->keys, 0600) < 0)
        return fail(e, -errno, "cannot change the mode of %s: %s", p->keys, strerror(errno));
    return r;
}

static int tier_place_write_config(struct tier_place *p, struct errmsg *e)
{
    char text[512];

    /* a bench writes as fast as it can, and a busy machine makes a page late, not a miss */
    (void) snprintf(text, sizeof(text),
                    "socket = %s\nservers = 127.0.0.1:%u\nwrite-bytes-per-second = 100G\nstall-ms = 60000\n"
                    "log-level = error\n",
                    p->cluster_socket, (unsigned) p->redis_port);
    return stream_file_write(p->cluster_config, text, strlen(text), e);
}

static int tier_place_make_files(struct tier_place *p, struct errmsg *e)
{
    const struct tier_place_options *o = p->options;
    int r = temp_folder_make("/tmp", "bench", p->folder, sizeof(p->folder), e);

    if (r == 0 && o->disk_parent)
        r = temp_folder_make(o->disk_parent, "bench-disk", p->disk, sizeof(p->disk), e);
    if (r < 0)
        return r;

    (void) snprintf(p->keys, sizeof(p->keys), "%s/keys", p->folder);
    (void) snprintf(p->cluster_socket, sizeof(p->cluster_socket), "%s/cluster.sock", p->folder);
    (void) snprintf(p->cluster_config, sizeof(p->cluster_config), "%s/cluster.conf", p->folder);
    return tier_place_write_keys(p, e);
}

/* ---- processes ---- */

static int tier_place_free_port(uint16_t *ret, struct errmsg *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    _cleanup_(closep) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof(a);

    if (fd < 0 || bind(fd, (struct sockaddr *) &a, sizeof(a)) < 0 ||
        getsockname(fd, (struct sockaddr *) &a, &bytes) < 0)
        return fail(e, -errno, "cannot find a free port: %s", strerror(errno));
    *ret = ntohs(a.sin_port);
    return 0;
}

static int tier_place_start_redis(struct tier_place *p, struct errmsg *e)
{
    char path[PATH_MAX], port[8], log[96];
    const char *const argv[] = {"redis-server", "--port",    port,    "--bind",  "127.0.0.1",
                                "--save",       "",          "--dir", p->folder, "--appendonly",
                                "no",           "--logfile", log,     NULL};
    int r = find_command("redis-server", "redis-server", path, e);

    if (r == 0)
        r = tier_place_free_port(&p->redis_port, e);
    if (r < 0)
        return r;
    (void) snprintf(port, sizeof(port), "%u", (unsigned) p->redis_port);
    (void) snprintf(log, sizeof(log), "%s/redis.log", p->folder);
    return process_start(&p->redis, path, argv, PROCESS_SHOW, e);
}

/* It tries again until kvcobrad and the server are there. */
static int tier_place_start_cluster(struct tier_place *p, struct errmsg *e)
{
    const char *const argv[] = {"kvcobra-cluster", "--config", p->cluster_config, NULL};
    char path[PATH_MAX];
    int r = find_cluster(path, e);

    if (r == 0)
        r = tier_place_start_redis(p, e);
    if (r == 0)
        r = tier_place_write_config(p, e);
    return r < 0 ? r : process_start(&p->cluster, path, argv, PROCESS_SHOW, e);
}

static int tier_place_start_daemon(struct tier_place *p, struct errmsg *e)
{
    const struct tier_place_options *o = p->options;
    uint64_t wanted = tier_place_round_up(SPAN_PAGES * o->page_bytes, 1 << 16);
    uint64_t span = wanted < SPAN_BYTES_MAX ? wanted : SPAN_BYTES_MAX;
    uint64_t extent = span * SPANS_PER_EXTENT, per_span = span / o->page_bytes;
    /* two extents more: the first page of a prompt has spans of its own */
    uint64_t pool = tier_place_round_up((o->n_pages / per_span + 1) * span, extent) + 2 * extent;
    uint64_t buffers =
        tier_place_round_up(2 * o->depth * (o->page_bytes + 4096), MIB); /* writes have half of them */
    char texts[12][PATH_MAX + 32];
    const char *args[16];
    size_t n = 0;
    double began;
    int r;

    while (pool / extent > 200) { /* few descriptors */
        extent *= 2;
        pool = tier_place_round_up(pool, extent);
    }
    if (buffers > DISK_BUFFER_BYTES_MAX)
        buffers = DISK_BUFFER_BYTES_MAX;
    (void) snprintf(texts[n++], sizeof(texts[0]), "--span-bytes=%" PRIu64, span);
    (void) snprintf(texts[n++], sizeof(texts[0]), "--extent-bytes=%" PRIu64, extent);
    (void) snprintf(texts[n++], sizeof(texts[0]), "--pool-bytes=%" PRIu64, pool);
    (void) snprintf(texts[n++], sizeof(texts[0]), "--quota-bytes=%" PRIu64, 2 * pool + (UINT64_C(1) << 32));
    (void) snprintf(texts[n++], sizeof(texts[0]), "--arena-bytes=%d", ARENA_BYTES);
    (void) snprintf(texts[n++], sizeof(texts[0]), "--key-file=%s", p->keys);
    if (o->disk_parent) {
        (void) snprintf(texts[n++], sizeof(texts[0]), "--disk-dir=%s", p->disk);
        (void) snprintf(texts[n++], sizeof(texts[0]), "--disk-bytes=%" PRIu64,
                        2 * pool + (UINT64_C(1) << 29));
        (void) snprintf(texts[n++], sizeof(texts[0]), "--disk-buffer-bytes=%" PRIu64, buffers);
    }
    if (o->has_cluster) {
        (void) snprintf(texts[n++], sizeof(texts[0]), "--cluster-socket=%s", p->cluster_socket);
        (void) snprintf(texts[n++], sizeof(texts[0]), "--cluster-answer-ms=%d", ANSWER_MS);
        (void) snprintf(texts[n++], sizeof(texts[0]), "--cluster-tenants=uid-%lu", (unsigned long) geteuid());
    }
    for (size_t i = 0; i < n; i++)
        args[i] = texts[i];
    args[n] = NULL;

    began = clock_seconds();
    p->daemon = (struct bench_daemon) BENCH_DAEMON_INIT;
    r = bench_daemon_init(&p->daemon, o->daemon, args, e);
    p->start_s = clock_seconds() - began;
    return r < 0 ? r : client_open(p->daemon.operator_socket, &p->control, e);
}

int tier_place_begin(struct tier_place *p, const struct tier_place_options *o, struct errmsg *e)
{
    int r;

    p->options = o;
    r = tier_place_make_files(p, e);
    if (r == 0)
        r = tier_place_start_daemon(p, e);
    if (r == 0 && o->has_cluster)
        r = tier_place_start_cluster(p, e);
    return r;
}

static void tier_place_end_daemon(struct tier_place *p)
{
    p->control = kvc_client_free(p->control);
    bench_daemon_deinit(&p->daemon);
}

int tier_place_restart(struct tier_place *p, struct errmsg *e)
{
    tier_place_end_daemon(p);
    return tier_place_start_daemon(p, e);
}

void tier_place_end(struct tier_place *p)
{
    tier_place_end_daemon(p);
    process_deinit(&p->cluster);
    process_deinit(&p->redis);
    temp_folder_remove(p->disk);
    temp_folder_remove(p->folder);
}

/* ---- requests ---- */

int tier_place_activate(struct tier_place *p, const void *table, size_t bytes, struct errmsg *e)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    int r = operator_stage_table(p->control, table, bytes, digest, e);

    if (r >= 0)
        r = operator_activate_table(p->control, digest, 0, NULL, e);
    return r < 0 ? r : 0;
}

int tier_place_ask(struct tier_place *p, Kvcobra__TierAction action, Kvcobra__ControlTierReply **ret,
                   struct errmsg *e)
{
    Kvcobra__ControlTier m = KVCOBRA__CONTROL_TIER__INIT;

    m.action = action;
    return operator_call(p->control, KVCOBRA__REQUEST__BODY_CONTROL_TIER, &m.base, ret, e);
}

/* Return: 1: the tiers are ready and have all pages; 0: not yet; negative errno. */
static int tier_place_look(struct tier_place *p, bool asks_to_write, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *s = NULL;
    const struct tier_place_options *o = p->options;
    int r = tier_place_ask(p, KVCOBRA__TIER_ACTION__TIER_ASK, &s, e);

    if (r < 0)
        return r;
    if (o->disk_parent && strcmp(s->state, "off") == 0)
        return fail(e, -ENODEV, "the disk tier is off: %s", s->message);
    if (o->has_cluster && (!process_running(&p->cluster) || !process_running(&p->redis)))
        return fail(e, -ENODEV, "kvcobra-cluster or redis-server has ended");
    if (o->has_cluster && (strcmp(s->cluster_state, "ready") != 0 || s->cluster_waiting > 0))
        return 0;
    if (o->disk_parent && (strcmp(s->state, "ready") != 0 || (asks_to_write && !s->all_written)))
        return 0;
    return 1;
}

/* Until the disk is ready; then a pass over all pages, until it ends. */
int tier_place_wait_written(struct tier_place *p, struct errmsg *e)
{
    double until = clock_seconds() + PATIENCE_S;
    bool asked = !p->options->disk_parent;
    int r = 0;

    while (r == 0) {
        r = tier_place_look(p, asked && p->options->disk_parent, e);
        if (r == 1 && !asked) {
            _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *s = NULL;

            r = tier_place_ask(p, KVCOBRA__TIER_ACTION__TIER_WRITE_ALL, &s, e);
            asked = true;
        }
        if (r == 0 && clock_seconds() >= until)
            return fail(e, -ETIMEDOUT, "the tiers do not have all pages after %d s", PATIENCE_S);
        if (r == 0)
            (void) poll(NULL, 0, POLL_MS);
    }
    return r < 0 ? r : 0;
}

int tier_place_evict(struct tier_place *p, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    double until = clock_seconds() + PATIENCE_S;
    int r = 0;

    do { /* a page that was just fetched is held for a moment */
        operator_message_freep(&s);
        s = NULL;
        r = operator_evict(p->control, NULL, NULL, NULL, e);
        if (r == 0)
            r = operator_get_status(p->control, &s, e);
        if (r == 0 && s->page_bytes > 0)
            (void) poll(NULL, 0, POLL_MS);
    } while (r == 0 && s->page_bytes > 0 && clock_seconds() < until);

    if (r == 0 && s->page_bytes > 0)
        return fail(e, -EBUSY, "%" PRIu64 " bytes of pages stay in memory", s->page_bytes);
    return r;
}

int tier_place_drop(struct tier_place *p, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ControlTierReply *s = NULL;

    return tier_place_ask(p, KVCOBRA__TIER_ACTION__TIER_DROP, &s, e);
}
