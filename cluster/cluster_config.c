/* See cluster_config.h. */
#include "cluster/cluster_config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/nearest.h"
#include "cluster/request.h"
#include "daemon/config/config.h"
#include "daemon/config/ini_file.h"
#include "daemon/config/loopback.h"
#include "daemon/config/settings.h"

#define ROW(the_name, the_kind, member, ...)                                                                 \
    {                                                                                                        \
        .name = the_name, .kind = the_kind, .offset = offsetof(struct cluster_config, member), __VA_ARGS__   \
    }

static const struct setting cluster_config_rows[] = {
    ROW("socket", SETTING_PATH, socket_path, .text = "/run/kvcobra-cluster/cluster.sock",
        .help = "kvcobrad's socket for this process"),
    ROW("servers", SETTING_TEXT, servers_text,
        .help = "HOST:PORT of some nodes of the cluster, or of one server that is no cluster; commas between "
                "them"),
    ROW("user", SETTING_TEXT, user, .help = "user of the servers (their ACL); needs password-file"),
    ROW("password-file", SETTING_TEXT, password_file,
        .help = "file with the password in its first line, or the name of a credential of the unit"),
    ROW("allow-clear-password", SETTING_BOOL, allows_clear_password,
        .help = "without TLS: whether the password may be sent to other hosts, in clear, as all bytes are"),
    ROW("tls", SETTING_BOOL, has_tls, .help = "whether connections to servers are encrypted by TLS"),
    ROW("tls-ca-file", SETTING_TEXT, tls_ca_file,
        .help = "file with the certificates of the authorities that sign those of servers, instead of the "
                "system's"),
    ROW("tls-server-name", SETTING_TEXT, tls_server_name,
        .help = "the name that all certificates of servers have, instead of the host's"),
    ROW("tls-cert-file", SETTING_TEXT, tls_cert_file,
        .help = "file with the certificate that this process shows to servers; needs tls-key-file"),
    ROW("tls-key-file", SETTING_TEXT, tls_key_file,
        .help = "file with the private key of tls-cert-file, or the name of a credential of the unit"),
    ROW("key-prefix", SETTING_TEXT, key_prefix,
        .text = "kvcobra:", .help = "first part of all keys in the cluster"),
    ROW("buffer-bytes", SETTING_BYTES, buffer_bytes, .min = 1 << 16, .max = CLUSTER_MEMORY_BYTES_MAX,
        .number = 64 << 20, .help = "most bytes that wait for one server, and of one value from it"),
    ROW("write-bytes-per-second", SETTING_BYTES, write_bytes_per_s, .min = 1 << 16, .max = UINT64_C(1) << 40,
        .number = 64 << 20, .help = "rate at which pages are written to the cluster"),
    ROW("connect-ms", SETTING_U64, connect_ms, .min = 10, .max = 60000, .number = 1000,
        .help = "time for a connection and its greeting"),
    ROW("stall-ms", SETTING_U64, stall_ms, .min = 10, .max = 60000, .number = 250,
        .help = "a server that sends and takes no byte for so long while requests wait is left alone for a "
                "while"),
    ROW("log-level", SETTING_LEVEL, log_level, .number = LOG_INFO,
        .help = "most detailed level that is logged: error, warning, notice, info or debug"),
    ROW("log-format", SETTING_CHOICE, log_format, .number = LOG_FORMAT_LOGFMT, .choices = log_format_names,
        .help = "form of the lines"),
};

enum { CLUSTER_CONFIG_N_ROWS = sizeof(cluster_config_rows) / sizeof(cluster_config_rows[0]) };

/* ---- the file ---- */

struct cluster_config_reading {
    struct cluster_config *config;
    bool seen[CLUSTER_CONFIG_N_ROWS];
};

static int cluster_config_set(void *ctx, const char *section, const char *key, const char *value,
                              struct errmsg *e)
{
    struct cluster_config_reading *f = ctx;
    const struct setting *s = key ? settings_find(cluster_config_rows, CLUSTER_CONFIG_N_ROWS, key) : NULL;
    bool *seen = s ? &f->seen[s - cluster_config_rows] : NULL;
    struct nearest n;

    if (section[0] != '\0')
        return fail(e, -EINVAL, "there are no sections in this file: [%.60s]", section);
    if (s && *seen)
        return fail(e, -EINVAL, "%s is set a second time", key);
    if (s) {
        *seen = true;
        return setting_set(s, f->config, &f->config->texts, value, e);
    }

    nearest_init(&n, key);
    for (size_t i = 0; i < CLUSTER_CONFIG_N_ROWS; i++)
        nearest_try(&n, cluster_config_rows[i].name);
    if (n.best)
        return fail(e, -EINVAL, "there is no setting \"%.60s\"; did you mean %s?", key, n.best);
    return fail(e, -EINVAL, "there is no setting \"%.60s\"; kvcobra-cluster --help lists all settings", key);
}

static int cluster_config_read(struct cluster_config *c, const char *path, FILE *errors, struct errmsg *e)
{
    struct cluster_config_reading f = {.config = c};
    const struct ini_handler handler = {cluster_config_set, &f};

    return ini_file_read(path, &handler, errors, "kvcobra-cluster --check-config", e);
}

/* ---- what follows from several settings ---- */

/* "HOST:PORT", "[::1]:7000". */
static int cluster_config_add_server(struct cluster_config *c, const char *text, struct errmsg *e)
{
    struct router_server *s = &c->servers[c->n_servers];
    const char *colon = strrchr(text, ':'), *host = text;
    size_t n = colon ? (size_t) (colon - text) : 0;
    bool has_brackets = n > 2 && host[0] == '[' && host[n - 1] == ']';
    uint64_t port = 0;

    if (c->n_servers == CLUSTER_CONFIG_SERVERS_MAX)
        return fail(e, -EINVAL, "servers has more than %d entries: a few nodes are enough",
                    CLUSTER_CONFIG_SERVERS_MAX);
    if (has_brackets) {
        host++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof(s->host) || (memchr(host, ':', n) && !has_brackets) ||
        config_parse_bytes(colon + 1, &port) < 0 || port == 0 || port > 65535 ||
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
    size_t n = c->key_prefix ? strlen(c->key_prefix) : 0;

    if (!c->key_prefix)
        return fail(e, -EINVAL, "key-prefix cannot be none: keys of other programs may be in the cluster");
    if (n > REQUEST_PREFIX_BYTES_MAX ||
        strspn(c->key_prefix, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:/") < n)
        return fail(e, -EINVAL, "key-prefix has 1 to %d letters, digits and . - _ : /, not \"%.60s\"",
                    REQUEST_PREFIX_BYTES_MAX, c->key_prefix);
    return 0;
}

static int cluster_config_check_socket(const struct cluster_config *c, struct errmsg *e)
{
    if (!c->socket_path)
        return fail(e, -EINVAL, "socket cannot be none: kvcobrad is reached there");
    if (strlen(c->socket_path) >= sizeof(((struct sockaddr_un *) NULL)->sun_path))
        return fail(e, -EINVAL, "socket is longer than a socket's path can be");
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

/* The path of a file with a secret, or of the unit's credential of that name. *ret: to be freed. */
static int cluster_config_find_secret(const char *name, char **ret, struct errmsg *e)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");

    if (strchr(name, '/')) {
        *ret = strdup(name);
        return *ret ? 0 : fail(e, -ENOMEM, "out of memory");
    }
    if (!folder)
        return fail(e, -ENOENT, "the unit passes no credential %s: add LoadCredential=%s:PATH to it", name,
                    name);
    if (name[0] == '.' || asprintf(ret, "%s/%s", folder, name) < 0) {
        *ret = NULL;
        return fail(e, -EINVAL, "\"%s\" is not the name of a credential", name);
    }
    return 0;
}

static int cluster_config_take_password(struct cluster_config *c, struct errmsg *e)
{
    _cleanup_(freep) char *path = NULL;
    int r;

    if (!c->password_file)
        return c->user ? fail(e, -EINVAL, "user needs password-file") : 0;
    r = cluster_config_find_secret(c->password_file, &path, e);
    if (r < 0)
        return r;
    return cluster_config_read_password(c, path, strchr(c->password_file, '/') ? 0077 : 0037, e);
}

static int cluster_config_check_key(const char *path, mode_t others, struct errmsg *e)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return fail(e, -errno, "cannot read tls-key-file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_mode & others)
        return fail(e, -EPERM, "tls-key-file %s must be a file that other users cannot read: chmod 0400 it",
                    path);
    return 0;
}

/* The files are read once now, so that a wrong one is found before the service starts. */
static int cluster_config_take_tls(struct cluster_config *c, struct errmsg *e)
{
    struct tls_client *tls = NULL;
    int r = 0;

    if (!c->has_tls && (c->tls_ca_file || c->tls_server_name || c->tls_cert_file || c->tls_key_file))
        return fail(e, -EINVAL, "settings whose names begin with tls- need tls = yes");
    if (!c->has_tls)
        return 0;
    if (!c->tls_cert_file != !c->tls_key_file)
        return fail(e, -EINVAL, "tls-cert-file and tls-key-file belong together");

    if (c->tls_key_file)
        r = cluster_config_find_secret(c->tls_key_file, &c->tls_key_path, e);
    if (r == 0 && c->tls_key_file)
        r = cluster_config_check_key(c->tls_key_path, strchr(c->tls_key_file, '/') ? 0077 : 0037, e);
    if (r < 0)
        return r;
    c->tls = (struct tls_settings){.ca_file = c->tls_ca_file,
                                   .server_name = c->tls_server_name,
                                   .cert_file = c->tls_cert_file,
                                   .key_file = c->tls_key_path};
    r = tls_client_new(&c->tls, &tls, e);
    if (r == 0)
        (void) tls_client_free(tls);
    return r;
}

/* Whether it is an address of the loopback interface. A name is not looked up: that may take long. */
static bool cluster_config_is_loopback(const char *host)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    struct addrinfo *found = NULL;

    if (strcmp(host, "localhost") == 0)
        return true;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;

    memcpy(&address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return loopback_is_address(&address);
}

/* node.c would refuse to greet such a server, for ever. */
static int cluster_config_check_clear_password(const struct cluster_config *c, struct errmsg *e)
{
    if (!c->password || c->has_tls || c->allows_clear_password)
        return 0;

    for (unsigned i = 0; i < c->n_servers; i++)
        if (!cluster_config_is_loopback(c->servers[i].host))
            return fail(e, -EINVAL,
                        "the password would cross the network in clear to %.200s: set tls = yes, or "
                        "allow-clear-password = yes",
                        c->servers[i].host);
    return 0;
}

int cluster_config_load(const char *path, FILE *errors, struct cluster_config *ret, struct errmsg *e)
{
    struct errmsg why = {""};
    int r;

    *ret = (struct cluster_config){.password = NULL};
    settings_init(cluster_config_rows, CLUSTER_CONFIG_N_ROWS, ret);
    r = cluster_config_read(ret, path, errors, e);
    if (r < 0)
        return r;

    r = cluster_config_take_servers(ret, &why);
    if (r == 0)
        r = cluster_config_check_prefix(ret, &why);
    if (r == 0)
        r = cluster_config_check_socket(ret, &why);
    if (r == 0)
        r = cluster_config_take_password(ret, &why);
    if (r == 0)
        r = cluster_config_take_tls(ret, &why);
    if (r == 0)
        r = cluster_config_check_clear_password(ret, &why);
    if (r < 0 && errors)
        fprintf(errors, "%s: %s\n", path, why.text);
    return r < 0 ? fail(e, r, "%s: %.300s", path, why.text) : 0;
}

void cluster_config_deinit(struct cluster_config *c)
{
    if (c->password)
        explicit_bzero(c->password, strlen(c->password));
    free(c->password);
    free(c->tls_key_path);
    setting_texts_free(&c->texts);
    *c = (struct cluster_config){.password = NULL};
}

void cluster_config_describe(FILE *f)
{
    char value[SETTINGS_VALUE_BYTES];

    for (size_t i = 0; i < CLUSTER_CONFIG_N_ROWS; i++) {
        const struct setting *s = &cluster_config_rows[i];

        fprintf(f, "  %-22s  %s (%s)\n", s->name, s->help, settings_default(s, value));
    }
}
