/* See cluster_config.h. inih parses the file. */
#include "cluster/cluster_config.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "cluster/request.h"
#include "daemon/config/config.h"

enum cluster_config_kind {
    CLUSTER_CONFIG_TEXT,
    CLUSTER_CONFIG_NUMBER,
    CLUSTER_CONFIG_YES_NO,
    CLUSTER_CONFIG_CHOICE
};

struct cluster_config_row {
    const char *name;
    enum cluster_config_kind kind;
    size_t offset; /* of the member */
    uint64_t min, max, number;
    const char *text;           /* default of texts; NULL: none */
    const char *const *choices; /* ends with NULL; the value is the number of the choice */
    const char *help;
};

static const char *const cluster_config_levels[] = {"emerg",  "alert", "crit",  "error", "warning",
                                                    "notice", "info",  "debug", NULL};

#define CLUSTER_CONFIG_OFFSET(member) offsetof(struct cluster_config, member)

static const struct cluster_config_row cluster_config_rows[] = {
    {"socket", CLUSTER_CONFIG_TEXT, CLUSTER_CONFIG_OFFSET(socket_path), 0, 0, 0,
     "/run/kvcobra-cluster/cluster.sock", NULL, "kvcobrad's socket for this process"},
    {"servers", CLUSTER_CONFIG_TEXT, CLUSTER_CONFIG_OFFSET(servers_text), 0, 0, 0, NULL, NULL,
     "HOST:PORT of some nodes of the cluster, or of one server that is no cluster; commas between them"},
    {"user", CLUSTER_CONFIG_TEXT, CLUSTER_CONFIG_OFFSET(user), 0, 0, 0, NULL, NULL,
     "user of the servers (their ACL); needs password-file"},
    {"password-file", CLUSTER_CONFIG_TEXT, CLUSTER_CONFIG_OFFSET(password_file), 0, 0, 0, NULL, NULL,
     "file with the password in its first line, or the name of a credential of the unit"},
    {"allow-clear-password", CLUSTER_CONFIG_YES_NO, CLUSTER_CONFIG_OFFSET(allows_clear_password), 0, 1, 0,
     NULL, NULL, "whether the password may be sent to other hosts; it is sent in clear, as all bytes are"},
    {"key-prefix", CLUSTER_CONFIG_TEXT, CLUSTER_CONFIG_OFFSET(key_prefix), 0, 0, 0, "kvcobra:", NULL,
     "first part of all keys in the cluster"},
    {"buffer-bytes", CLUSTER_CONFIG_NUMBER, CLUSTER_CONFIG_OFFSET(buffer_bytes), 1 << 16,
     CLUSTER_MEMORY_BYTES_MAX, 64 << 20, NULL, NULL,
     "most bytes that wait for one server, and of one value from it"},
    {"write-bytes-per-second", CLUSTER_CONFIG_NUMBER, CLUSTER_CONFIG_OFFSET(write_bytes_per_s), 1 << 16,
     UINT64_C(1) << 40, 64 << 20, NULL, NULL, "rate at which pages are written to the cluster"},
    {"connect-ms", CLUSTER_CONFIG_NUMBER, CLUSTER_CONFIG_OFFSET(connect_ms), 10, 60000, 1000, NULL, NULL,
     "time for a connection and its greeting"},
    {"stall-ms", CLUSTER_CONFIG_NUMBER, CLUSTER_CONFIG_OFFSET(stall_ms), 10, 60000, 250, NULL, NULL,
     "a server that sends and takes no byte for so long while requests wait is left alone for a while"},
    {"log-level", CLUSTER_CONFIG_CHOICE, CLUSTER_CONFIG_OFFSET(log_level), 0, 0, LOG_INFO, NULL,
     cluster_config_levels, "least important lines that are logged"},
    {"log-format", CLUSTER_CONFIG_CHOICE, CLUSTER_CONFIG_OFFSET(log_format), 0, 0, LOG_FORMAT_LOGFMT, NULL,
     log_format_names, "form of the lines"},
};

enum { CLUSTER_CONFIG_N_ROWS = sizeof(cluster_config_rows) / sizeof(cluster_config_rows[0]) };

static void *cluster_config_member(struct cluster_config *c, const struct cluster_config_row *row)
{
    return (char *) c + row->offset;
}

/* ---- values ---- */

static int cluster_config_choice(const struct cluster_config_row *row, const char *value, uint64_t *ret)
{
    for (uint64_t i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], value) == 0) {
            *ret = i;
            return 0;
        }
    }
    return -EINVAL;
}

static int cluster_config_set_row(struct cluster_config *c, const struct cluster_config_row *row,
                                  const char *value, struct errmsg *e)
{
    uint64_t v = 0;
    char *copy;

    switch (row->kind) {
    case CLUSTER_CONFIG_TEXT:
        copy = value[0] ? strdup(value) : NULL;
        if (!copy)
            return value[0] ? fail(e, -ENOMEM, "out of memory")
                            : fail(e, -EINVAL, "%s has no value", row->name);
        free(*(char **) cluster_config_member(c, row));
        *(char **) cluster_config_member(c, row) = copy;
        return 0;
    case CLUSTER_CONFIG_YES_NO:
        if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
            return fail(e, -EINVAL, "%s is yes or no, not \"%.60s\"", row->name, value);
        *(bool *) cluster_config_member(c, row) = value[0] == 'y';
        return 0;
    case CLUSTER_CONFIG_CHOICE:
        if (cluster_config_choice(row, value, &v) < 0)
            return fail(e, -EINVAL, "\"%.60s\" is no value of %s", value, row->name);
        break;
    case CLUSTER_CONFIG_NUMBER:
        if (config_parse_bytes(value, &v) < 0 || v < row->min || v > row->max)
            return fail(e, -EINVAL,
                        "%s is a number from %" PRIu64 " to %" PRIu64 ", or one such as 64M, not \"%.60s\"",
                        row->name, row->min, row->max, value);
        break;
    }

    *(uint64_t *) cluster_config_member(c, row) = v;
    return 0;
}

static int cluster_config_init(struct cluster_config *c, struct errmsg *e)
{
    *c = (struct cluster_config){.socket_path = NULL};
    for (size_t i = 0; i < CLUSTER_CONFIG_N_ROWS; i++) {
        const struct cluster_config_row *row = &cluster_config_rows[i];
        int r = 0;

        if (row->kind == CLUSTER_CONFIG_NUMBER || row->kind == CLUSTER_CONFIG_CHOICE)
            *(uint64_t *) cluster_config_member(c, row) = row->number;
        else if (row->text)
            r = cluster_config_set_row(c, row, row->text, e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the file ---- */

struct cluster_config_reading {
    struct cluster_config *config;
    const char *path;
    FILE *from;
    int line;
    bool seen[CLUSTER_CONFIG_N_ROWS];
    int r;
    struct errmsg why;
};

static char *cluster_config_read_line(char *to, int room, void *stream)
{
    struct cluster_config_reading *f = stream;

    f->line++;
    return f->r < 0 ? NULL : fgets(to, room, f->from); /* the first failure ends the reading */
}

static int cluster_config_on_line(void *user, const char *section, const char *name, const char *value)
{
    struct cluster_config_reading *f = user;

    if (f->r < 0)
        return 0;
    for (size_t i = 0; i < CLUSTER_CONFIG_N_ROWS; i++) {
        if (strcmp(cluster_config_rows[i].name, name) != 0)
            continue;
        if (section[0] != '\0')
            f->r = fail(&f->why, -EINVAL, "there are no sections in this file: [%.60s]", section);
        else if (f->seen[i])
            f->r = fail(&f->why, -EINVAL, "%s is set a second time", name);
        else
            f->r = cluster_config_set_row(f->config, &cluster_config_rows[i], value ? value : "", &f->why);
        f->seen[i] = true;
        return f->r == 0;
    }
    f->r = fail(&f->why, -EINVAL, "there is no setting \"%.60s\"", name);
    return 0;
}

static int cluster_config_read(struct cluster_config *c, const char *path, struct errmsg *e)
{
    _cleanup_(fclosep) FILE *from = fopen(path, "re");
    struct cluster_config_reading f = {.config = c, .path = path, .from = from};
    int line;

    if (!from)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));

    line = ini_parse_stream(cluster_config_read_line, &f, cluster_config_on_line, &f);
    if (ferror(from))
        return fail(e, -EIO, "cannot read %s", path);
    if (f.r < 0)
        return fail(e, f.r, "%s, line %d: %.250s", path, line, f.why.text);
    if (line < 0)
        return fail(e, -ENOMEM, "out of memory while reading %s", path);
    if (line > 0)
        return fail(e, -EINVAL, "%s, line %d: the line is not \"key = value\", or is longer than 198 bytes",
                    path, line);
    return 0;
}

/* ---- what follows from several settings ---- */

/* "HOST:PORT", "[::1]:7000". */
static int cluster_config_add_server(struct cluster_config *c, const char *text, struct errmsg *e)
{
    struct router_server *s = &c->servers[c->n_servers];
    const char *colon = strrchr(text, ':'), *host = text;
    size_t n = colon ? (size_t) (colon - text) : 0;
    uint64_t port = 0;

    if (c->n_servers == CLUSTER_CONFIG_SERVERS_MAX)
        return fail(e, -EINVAL, "servers has more than %d entries: a few nodes are enough",
                    CLUSTER_CONFIG_SERVERS_MAX);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof(s->host) || config_parse_bytes(colon + 1, &port) < 0 || port == 0 ||
        port > 65535 ||
        strspn(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:%") < n)
        return fail(e, -EINVAL, "servers: \"%.80s\" is not HOST:PORT, such as 10.0.0.5:6379 or [::1]:6379",
                    text);

    memcpy(s->host, host, n);
    s->host[n] = '\0';
    s->port = (uint16_t) port;
    c->n_servers++;
    return 0;
}

static int cluster_config_take_servers(struct cluster_config *c, struct errmsg *e)
{
    _cleanup_(freep) char *list = c->servers_text ? strdup(c->servers_text) : NULL;
    char *rest = NULL;
    int r = 0;

    if (!c->servers_text)
        return fail(e, -EINVAL, "servers is not set: name HOST:PORT of some nodes of the cluster");
    if (!list)
        return fail(e, -ENOMEM, "out of memory");

    for (char *s = strtok_r(list, ", ", &rest); s && r == 0; s = strtok_r(NULL, ", ", &rest))
        r = cluster_config_add_server(c, s, e);
    if (r == 0 && c->n_servers == 0)
        return fail(e, -EINVAL, "servers is empty: name HOST:PORT of some nodes of the cluster");
    return r;
}

/* A "{" would put all keys into one slot, and a glob would be hard to name in an ACL. */
static int cluster_config_check_prefix(const struct cluster_config *c, struct errmsg *e)
{
    size_t n = strlen(c->key_prefix);

    if (n > REQUEST_PREFIX_BYTES_MAX ||
        strspn(c->key_prefix, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:/") < n)
        return fail(e, -EINVAL, "key-prefix has 1 to %d letters, digits and . - _ : /, not \"%.60s\"",
                    REQUEST_PREFIX_BYTES_MAX, c->key_prefix);
    return 0;
}

/*
 * @others: the mode's bits that must be off. systemd gives the service's user access to a credential by an
 * access list, whose mask stands in the group's bits.
 */
static int cluster_config_read_password(struct cluster_config *c, const char *path, mode_t others,
                                        struct errmsg *e)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    char text[CLUSTER_CONFIG_PASSWORD_BYTES_MAX + 2];
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read password-file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_mode & others)
        return fail(e, -EPERM, "password-file %s must be a file that other users cannot read: chmod 0400 it",
                    path);
    n = read(fd, text, sizeof(text) - 1);
    if (n < 0)
        return fail(e, -errno, "cannot read password-file %s: %s", path, strerror(errno));

    text[n] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    if (text[0] == '\0' || strlen(text) > CLUSTER_CONFIG_PASSWORD_BYTES_MAX)
        return fail(e, -EINVAL, "the first line of password-file %s must have 1 to %d bytes", path,
                    CLUSTER_CONFIG_PASSWORD_BYTES_MAX);
    c->password = strdup(text);
    explicit_bzero(text, sizeof(text));
    return c->password ? 0 : fail(e, -ENOMEM, "out of memory");
}

static int cluster_config_take_password(struct cluster_config *c, struct errmsg *e)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    _cleanup_(freep) char *path = NULL;

    if (!c->password_file)
        return c->user ? fail(e, -EINVAL, "user needs password-file") : 0;
    if (strchr(c->password_file, '/'))
        return cluster_config_read_password(c, c->password_file, 0077, e);
    if (!folder)
        return fail(e, -ENOENT, "the unit passes no credential %s: add LoadCredential=%s:PATH to it",
                    c->password_file, c->password_file);
    if (c->password_file[0] == '.' || asprintf(&path, "%s/%s", folder, c->password_file) < 0) {
        path = NULL;
        return fail(e, -EINVAL, "\"%s\" is not the name of a credential", c->password_file);
    }
    return cluster_config_read_password(c, path, 0037, e);
}

int cluster_config_load(const char *path, struct cluster_config *ret, struct errmsg *e)
{
    struct errmsg why = {""};
    int r = cluster_config_init(ret, e);

    if (r == 0)
        r = cluster_config_read(ret, path, e);
    if (r < 0)
        return r;

    r = cluster_config_take_servers(ret, &why);
    if (r == 0)
        r = cluster_config_check_prefix(ret, &why);
    if (r == 0 && strlen(ret->socket_path) >= sizeof(((struct sockaddr_un *) NULL)->sun_path))
        r = fail(&why, -EINVAL, "socket is longer than a socket's path can be");
    if (r == 0)
        r = cluster_config_take_password(ret, &why);
    return r < 0 ? fail(e, r, "%s: %.300s", path, why.text) : 0;
}

void cluster_config_deinit(struct cluster_config *c)
{
    if (c->password)
        explicit_bzero(c->password, strlen(c->password));
    free(c->password);
    for (size_t i = 0; i < CLUSTER_CONFIG_N_ROWS; i++)
        if (cluster_config_rows[i].kind == CLUSTER_CONFIG_TEXT)
            free(*(char **) cluster_config_member(c, &cluster_config_rows[i]));
    *c = (struct cluster_config){.socket_path = NULL};
}

void cluster_config_describe(FILE *f)
{
    for (size_t i = 0; i < CLUSTER_CONFIG_N_ROWS; i++) {
        const struct cluster_config_row *row = &cluster_config_rows[i];

        fprintf(f, "  %-22s  %s (", row->name, row->help);
        if (row->kind == CLUSTER_CONFIG_CHOICE)
            fprintf(f, "%s", row->choices[row->number]);
        else if (row->kind == CLUSTER_CONFIG_NUMBER)
            fprintf(f, "%" PRIu64, row->number);
        else if (row->kind == CLUSTER_CONFIG_YES_NO)
            fprintf(f, "no");
        else
            fprintf(f, "%s", row->text ? row->text : "none");
        fprintf(f, ")\n");
    }
}
