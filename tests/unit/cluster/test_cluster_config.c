/* Tests of cluster/cluster_config.c. */
#include "cluster/cluster_config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/fd_io.h"
#include "cluster/request.h"
#include "tests/lib/test.h"

const char test_suite[] = "cluster_config";

static struct cluster_config c;
static struct errmsg e;

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);

    assert(fd >= 0 && fd_write_all(fd, text, strlen(text)) == 0);
    (void) close(fd);
}

static int load(const char *text)
{
    char path[] = "/tmp/kvc-cluster-XXXXXX";
    int r;

    write_file(path, text);
    e = (struct errmsg){""};
    r = cluster_config_load(path, NULL, &c, &e);
    (void) unlink(path);
    CU_ASSERT_EQUAL(r == 0, e.text[0] == '\0');
    return r;
}

static void test_defaults(void)
{
    CU_ASSERT_EQUAL_FATAL(load("servers = 10.0.0.1:6379\n"), 0);
    CU_ASSERT_STRING_EQUAL(c.socket_path, "/run/kvcobra-cluster/cluster.sock");
    CU_ASSERT_STRING_EQUAL(c.key_prefix, "kvcobra:");
    CU_ASSERT(!c.user && !c.password && !c.allows_clear_password && c.log_level == LOG_INFO);
    CU_ASSERT(c.buffer_bytes == 64 << 20 && c.write_bytes_per_s == 64 << 20);
    CU_ASSERT(c.connect_ms == 1000 && c.stall_ms == 250);
    CU_ASSERT_EQUAL(c.n_servers, 1);
    CU_ASSERT_STRING_EQUAL(c.servers[0].host, "10.0.0.1");
    cluster_config_deinit(&c);
}

static void test_values(void)
{
    CU_ASSERT_EQUAL_FATAL(
        load("# comment\nservers = a.example:1, [::1]:65535\nsocket = /x\nkey-prefix = k/\n"
             "buffer-bytes = 1M\nwrite-bytes-per-second = 2M\nconnect-ms = 10\nstall-ms = 60000\n"
             "log-level = debug\nlog-format = json\nallow-clear-password = yes\n"),
        0);
    CU_ASSERT_EQUAL(c.n_servers, 2);
    CU_ASSERT_STRING_EQUAL(c.servers[1].host, "::1");
    CU_ASSERT_EQUAL(c.servers[1].port, 65535);
    CU_ASSERT(c.buffer_bytes == 1 << 20 && c.write_bytes_per_s == 2 << 20 && c.allows_clear_password);
    CU_ASSERT(c.log_level == LOG_DEBUG && c.log_format == LOG_FORMAT_JSON);
    cluster_config_deinit(&c);
}

/* Names of a Kubernetes service are long: a list of them needs more than 200 bytes, or several lines. */
static void test_long_servers(void)
{
    static const char host[] = "kvcobra-redis-%u.kvcobra-redis-headless.inference.svc.cluster.local";
    char text[4096] = "log-level = 7 # numbers too\nservers =", last[100];
    size_t at = strlen(text);

    for (unsigned i = 0; i < 6; i++) {
        (void) snprintf(last, sizeof(last), host, i);
        at += (size_t) snprintf(text + at, sizeof(text) - at, "%s%s:6379", i % 3 ? ", " : "\n    ", last);
    }
    (void) strcpy(text + at, "\nsocket = /run/k/c.sock # the daemon's\n");
    CU_ASSERT_EQUAL_FATAL(load(text), 0);
    CU_ASSERT_EQUAL(c.n_servers, 6);
    CU_ASSERT_STRING_EQUAL(c.servers[5].host, last);
    CU_ASSERT_STRING_EQUAL(c.socket_path, "/run/k/c.sock");
    CU_ASSERT_EQUAL(c.log_level, LOG_DEBUG);
    cluster_config_deinit(&c);
}

static void refused_as(int err, const char *text, const char *word)
{
    CU_ASSERT_EQUAL(load(text), err);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, word));
    if (!strstr(e.text, word))
        fprintf(stderr, "%s -> %s\n", text, e.text);
    cluster_config_deinit(&c);
}

static void refused(const char *text, const char *word)
{
    refused_as(-EINVAL, text, word);
}

static void test_refusals(void)
{
    refused("", "servers is not set");
    refused("servers = ,\n", "servers is empty");
    refused("servers = a\n", "HOST:PORT");
    refused("servers = :1\n", "HOST:PORT");
    refused("servers = a:0\n", "HOST:PORT");
    refused("servers = a:65536\n", "HOST:PORT");
    refused("servers = ::1:5\n", "HOST:PORT"); /* without brackets: which part is the port? */
    refused("servers = a;b:1\n", "HOST:PORT");
    refused("servers = a:1\nservers = b:1\n", "line 2: servers is set a second time");
    refused("server = a:1\n", "line 1: there is no setting \"server\"");
    refused("[x]\nservers = a:1\n", "no sections");
    refused("servers\n", "line 1");
    refused("servers = a:1\nbuffer_bytes = 1M\n", "did you mean buffer-bytes?");
    refused("servers = a:1\nsocket = x\n", "nor a path");
    refused("servers = a:1\nsocket = none\n", "socket cannot be none");
    refused("servers = a:1\nkey-prefix = none\n", "key-prefix cannot be none");
    refused("servers = a:1\nlog-level = 8\n", "log-level");
    refused("servers = a:1\nstall-ms = 9\n", "stall-ms: \"9\" is not a number from 10 to 60000");
    refused("servers = a:1\nstall-ms = 60001\n", "stall-ms");
    refused("servers = a:1\nbuffer-bytes = x\n", "buffer-bytes");
    refused("servers = a:1\nlog-level = loud\n", "log-level");
    refused("servers = a:1\nallow-clear-password = maybe\n", "neither yes nor no");
    refused("servers = a:1\nkey-prefix = {x}\n", "key-prefix");
    refused("servers = a:1\nkey-prefix = 012345678901234567890123456789012\n", "key-prefix");
    refused("servers = a:1\nkey-prefix =\n", "key-prefix has no value");
    refused("servers = a:1\nuser = u\n", "user needs password-file");
    refused_as(-ENOENT, "servers = a:1\npassword-file = /nonexistent/x\n", "/nonexistent/x");
    refused_as(-ENOENT, "servers = a:1\npassword-file = x\n", "LoadCredential=x");
}

/* Each setting of TLS alone, and half of a pair. */
static void test_tls_refusals(void)
{
    static const char *const names[] = {"tls-ca-file", "tls-server-name", "tls-cert-file", "tls-key-file"};
    char text[200];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void) snprintf(text, sizeof(text), "servers = a:1\n%s = x\n", names[i]);
        refused(text, "need tls = yes");
        (void) snprintf(text, sizeof(text), "servers = a:1\ntls = yes\n%s = x\n", names[i]);
        if (i >= 2)
            refused(text, "belong together");
    }
}

/* The longest prefix and the longest path of a socket; one byte more. */
static void test_lengths(void)
{
    char text[300], value[200];

    memset(value, 'p', sizeof(value));
    for (int more = 0; more <= 1; more++) {
        (void) snprintf(text, sizeof(text), "servers = a:1\nkey-prefix = %.*s\n",
                        REQUEST_PREFIX_BYTES_MAX + more, value);
        if (more) {
            refused(text, "key-prefix has 1 to");
        } else {
            CU_ASSERT_EQUAL(load(text), 0);
            cluster_config_deinit(&c);
        }
        (void) snprintf(text, sizeof(text), "servers = a:1\nsocket = /%.*s\n",
                        (int) sizeof(((struct sockaddr_un *) NULL)->sun_path) - 2 + more, value);
        if (more) {
            refused(text, "longer than a socket's path");
        } else {
            CU_ASSERT_EQUAL(load(text), 0);
            cluster_config_deinit(&c);
        }
    }
}

static void test_many_servers(void)
{
    char text[1000] = "servers = a:1";
    int r;

    for (unsigned i = 1; i < CLUSTER_CONFIG_SERVERS_MAX; i++)
        (void) strcat(text, ",a:1");
    r = load(text);
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT_EQUAL(c.n_servers, CLUSTER_CONFIG_SERVERS_MAX);
    cluster_config_deinit(&c);
    refused(strcat(text, ",a:1"), "more than 32");
}

/* ---- the password ---- */

static int load_password_for(const char *password, mode_t mode, const char *settings)
{
    char path[] = "/tmp/kvc-password-XXXXXX", text[200];
    int r;

    write_file(path, password);
    assert(chmod(path, mode) == 0);
    (void) snprintf(text, sizeof(text), "%s\npassword-file = %s\n", settings, path);
    r = load(text);
    (void) unlink(path);
    return r;
}

static int load_password(const char *password, mode_t mode)
{
    return load_password_for(password, mode, "servers = localhost:1");
}

/* A server that would be refused for ever is an error now. */
static void test_clear_password(void)
{
    static const struct {
        const char *settings;
        int want;
    } cases[] = {
        {"servers = 127.0.0.1:1, [::1]:2, 127.8.0.1:3, localhost:4", 0},
        {"servers = 127.0.0.1:1, 10.0.0.5:2", -EINVAL},
        {"servers = redis.example:1", -EINVAL},
        {"servers = [fe80::1]:1", -EINVAL},
        {"servers = 10.0.0.5:2\nallow-clear-password = yes", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CU_ASSERT_EQUAL(load_password_for("secret\n", 0600, cases[i].settings), cases[i].want);
        CU_ASSERT_EQUAL(strstr(e.text, "in clear to") != NULL, cases[i].want < 0);
        cluster_config_deinit(&c);
    }
}

static void test_password(void)
{
    CU_ASSERT_EQUAL_FATAL(load_password("geheim\r\nsecond line\n", 0600), 0);
    CU_ASSERT_STRING_EQUAL(c.password, "geheim");
    cluster_config_deinit(&c);
    CU_ASSERT_EQUAL(load_password("geheim\n", 0640), -EPERM);
    cluster_config_deinit(&c);
    CU_ASSERT_EQUAL(load_password("\n", 0600), -EINVAL);
    CU_ASSERT_PTR_NULL(c.password);
    cluster_config_deinit(&c);
}

static void test_credential(void)
{
    char folder[] = "/tmp/kvc-credentials-XXXXXX", path[100];
    FILE *f;

    assert(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/redis", folder);
    f = fopen(path, "we");
    assert(f && fputs("geheim", f) >= 0 && fclose(f) == 0 && chmod(path, 0440) == 0);
    assert(setenv("CREDENTIALS_DIRECTORY", folder, 1) == 0);
    CU_ASSERT_EQUAL(load("servers = 127.0.0.1:1\npassword-file = redis\nuser = u\n"), 0);
    CU_ASSERT_STRING_EQUAL(c.password, "geheim");
    cluster_config_deinit(&c);
    refused("servers = a:1\npassword-file = ..\n", "not the name of a credential");
    assert(unsetenv("CREDENTIALS_DIRECTORY") == 0);
    (void) unlink(path);
    (void) rmdir(folder);
}

const struct test_case test_cases[] = {
    TEST(test_defaults),
    TEST(test_values),
    TEST(test_refusals),
    TEST(test_long_servers),
    TEST(test_many_servers),
    TEST(test_password),
    TEST(test_clear_password),
    TEST(test_credential),
    TEST(test_tls_refusals),
    TEST(test_lengths),
    TEST_END,
};
