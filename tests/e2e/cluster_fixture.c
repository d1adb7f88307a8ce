/* See cluster_fixture.h. */
#include "tests/e2e/cluster_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/random_table.h"
#include "tests/lib/free_port.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { REPLY_BYTES_MAX = 1 << 16, STARTS = 8 };

/* ---- processes ---- */

/* @argv[0]: looked for in PATH. The process ends with the test. */
static pid_t cluster_spawn(const char *const *argv, const char *log)
{
    pid_t pid = fork();

    assert(pid >= 0);
    if (pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || fd < 0 || dup2(fd, STDOUT_FILENO) < 0 ||
            dup2(fd, STDERR_FILENO) < 0)
            _exit(126);
        (void) execvp(argv[0], (char *const *) argv);
        _exit(127);
    }
    return pid;
}

static void cluster_kill(pid_t *pid)
{
    if (*pid > 0) {
        (void) kill(*pid, SIGKILL);
        assert(waitpid(*pid, NULL, 0) == *pid);
    }
    *pid = 0;
}

/* ---- redis ---- */

static struct sockaddr_in redis_address(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t) port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static int redis_connect(const struct redis *r)
{
    struct sockaddr_in a = redis_address(r->port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert(fd >= 0);
    if (connect(fd, (struct sockaddr *) &a, sizeof(a)) == 0)
        return fd;
    (void) close(fd);
    return -1;
}

/* Reads a reply that ends with a line; lists have @n_lines further lines per item. */
static long redis_read(FILE *f, char (*keys)[64], long n_max)
{
    char line[128];
    long n;

    if (!fgets(line, sizeof(line), f))
        return -1;
    n = line[0] == '+' ? 0 : strtol(line + 1, NULL, 10);
    CU_ASSERT_NOT_EQUAL(line[0], '-');
    for (long i = 0; line[0] == '*' && i < n; i++) {
        assert(fgets(line, sizeof(line), f)); /* "$" and the length */
        assert(fgets(line, sizeof(line), f));
        line[strcspn(line, "\r")] = '\0';
        if (keys && i < n_max)
            (void) snprintf(keys[i], sizeof(keys[i]), "%.63s", line);
        line[0] = '*';
    }
    return n;
}

static long redis_send(const struct redis *r, const char *command, char (*keys)[64], long n_max)
{
    int fd = redis_connect(r);
    FILE *f;
    long n;

    if (fd < 0)
        return -1;

    f = fdopen(fd, "r+");
    assert(f && fprintf(f, "%s\r\n", command) > 0 && fflush(f) == 0);
    n = redis_read(f, keys, n_max);
    (void) fclose(f);
    return n;
}

long redis_ask(const struct redis *r, const char *fmt, ...)
{
    char command[256];
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(command, sizeof(command), fmt, ap);
    va_end(ap);
    return redis_send(r, command, NULL, 0);
}

static bool redis_try(struct redis *r)
{
    char port[16], log[96];
    const char *const argv[] = {"redis-server", "--port", port, "--bind",       "127.0.0.1", "--dir",
                                r->folder,      "--save", "",   "--appendonly", "no",        NULL};
    int status;

    r->port = free_port();
    (void) snprintf(port, sizeof(port), "%d", r->port);
    (void) snprintf(log, sizeof(log), "%s/log", r->folder);
    r->pid = cluster_spawn(argv, log);
    for (struct wait w = wait_begin(); wait_again(&w);) {
        if (redis_ask(r, "PING") == 0)
            return true;
        if (waitpid(r->pid, &status, WNOHANG) == r->pid) { /* another process took the port, or no program */
            r->pid = 0;
            return false;
        }
    }
    return false;
}

bool redis_start(struct redis *r)
{
    if (system("redis-server --version > /dev/null 2>&1") != 0) /* NOLINT(cert-env33-c): fixed words */
        return false;

    *r = (struct redis){.folder = "/tmp/kvcobra-redis-XXXXXX"};
    assert(mkdtemp(r->folder));
    for (int i = 0; i < STARTS; i++)
        if (redis_try(r))
            return true;
    CU_FAIL_FATAL("redis-server does not start");
    return false;
}

void redis_end(struct redis *r)
{
    char log[96];

    cluster_kill(&r->pid);
    (void) snprintf(log, sizeof(log), "%s/log", r->folder);
    (void) unlink(log);
    CU_ASSERT_EQUAL(rmdir(r->folder), 0);
}

bool redis_reaches(const struct redis *r, long n)
{
    long now = redis_ask(r, "DBSIZE");

    for (struct wait w = wait_begin(); now != n && wait_again(&w);)
        now = redis_ask(r, "DBSIZE");
    return now == n;
}

enum { KEYS_MAX = 1024 };

/* Keys of pages: without that of the fleet's id. Return: how many. */
static long redis_page_keys(const struct redis *r, char (*ret)[64])
{
    long n = redis_send(r, "KEYS kvcobra:*", ret, KEYS_MAX), n_pages = 0;

    assert(n <= KEYS_MAX);
    for (long i = 0; i < n; i++)
        if (strcmp(ret[i], "kvcobra:fleet") != 0)
            memmove(ret[n_pages++], ret[i], sizeof(ret[i]));
    return n_pages;
}

long redis_damage_pages(const struct redis *r)
{
    static char keys[KEYS_MAX][64];
    long n = redis_page_keys(r, keys);

    for (long i = 0; i < n; i++)
        (void) redis_ask(r, "SETRANGE %s 300 damage", keys[i]);
    return n;
}

long redis_page_ttl_ms(const struct redis *r)
{
    static char keys[KEYS_MAX][64];
    long n = redis_page_keys(r, keys), least = n > 0 ? LONG_MAX : -1;

    for (long i = 0; i < n; i++) {
        long ms = redis_ask(r, "PTTL %s", keys[i]);

        least = ms < least ? ms : least;
    }
    return least;
}

/* ---- hosts ---- */

static void host_write_files(struct host *h, const char *servers, const char *settings, char index)
{
    FILE *f = fopen(h->keys, "wx");

    assert(f && fchmod(fileno(f), 0600) == 0);
    fprintf(f, "index ");
    for (int i = 0; i < 64; i++)
        fputc(index, f);
    fprintf(f, "\nseal 1 ");
    for (int i = 0; i < 64; i++)
        fputc('b', f);
    fprintf(f, "\n");
    assert(fclose(f) == 0);

    f = fopen(h->config, "wx");
    assert(f);
    fprintf(f, "socket = %s/cluster.sock\nservers = %s\n%s", h->folder, servers, settings);
    assert(fclose(f) == 0);
}

void host_start_process(struct host *h)
{
    const char *program = getenv("KVC_CLUSTER");
    const char *const argv[] = {program, "--config", h->config, NULL};
    char log[96];

    assert(program);
    (void) snprintf(log, sizeof(log), "%s/log", h->folder);
    h->process = cluster_spawn(argv, log);
}

void host_kill_process(struct host *h)
{
    cluster_kill(&h->process);
}

static void host_prepare(struct host *h, const char *servers, const char *settings, char index,
                         const char *tenants)
{
    *h = (struct host){.folder = "/tmp/kvcobra-host-XXXXXX"};
    assert(mkdtemp(h->folder));
    (void) snprintf(h->keys, sizeof(h->keys), "%s/keys", h->folder);
    (void) snprintf(h->key_arg, sizeof(h->key_arg), "--key-file=%s", h->keys);
    (void) snprintf(h->config, sizeof(h->config), "%s/cluster.conf", h->folder);
    (void) snprintf(h->socket_arg, sizeof(h->socket_arg), "--cluster-socket=%s/cluster.sock", h->folder);
    if (tenants)
        (void) snprintf(h->tenants_arg, sizeof(h->tenants_arg), "--cluster-tenants=%s", tenants);
    else
        (void) snprintf(h->tenants_arg, sizeof(h->tenants_arg), "--cluster-tenants=uid-%ld", (long) getuid());
    host_write_files(h, servers, settings, index);
    memcpy(h->args,
           (const char *[]){"--pool-bytes=16M", "--extent-bytes=512K", "--span-bytes=128K",
                            "--arena-bytes=2M", "--quota-bytes=64M", h->key_arg, h->socket_arg,
                            h->tenants_arg, "--cluster-answer-ms=10000", NULL},
           10 * sizeof(char *));
}

void host_run(struct host *h)
{
    struct daemon d;

    assert(daemon_start(&d, DAEMON_BY_PATH | DAEMON_WITH_STATE, h->args));
    scene_attach(&h->scene, &d, random_table_geometry(2, 4, 2, 64), 3, 1);
    host_start_process(h);
}

void host_start(struct host *h, const struct redis *r, char index, const char *tenants)
{
    char servers[32];

    (void) snprintf(servers, sizeof(servers), "127.0.0.1:%d", r->port);
    host_prepare(h, servers, "stall-ms = 30000\nconnect-ms = 30000\n", index, tenants);
    host_run(h);
}

void host_prepare_small(struct host *h, const char *servers, char index)
{
    host_prepare(h, servers, "", index, NULL);
    (void) snprintf(h->disk, sizeof(h->disk), "%s/disk", h->folder);
    assert(mkdir(h->disk, 0700) == 0);
    (void) snprintf(h->disk_arg, sizeof(h->disk_arg), "--disk-dir=%s", h->disk);
    h->args[0] = "--pool-bytes=3M";
    h->args[8] = h->disk_arg;
    h->args[9] = "--disk-bytes=8M";
    h->args[10] = NULL;
}

void host_restart(struct host *h)
{
    CU_ASSERT(daemon_end(&h->scene.daemon));
    CU_ASSERT_FATAL(daemon_start_again(&h->scene.daemon, h->args));
    scene_reconnect(h->scene.control, h->scene.daemon.operator_socket);
}

static void host_remove_disk(const struct host *h)
{
    static const char *const files[] = {"records", "records.new", "pages"};

    if (!h->disk[0])
        return;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[128];

        (void) snprintf(path, sizeof(path), "%s/%s", h->disk, files[i]);
        (void) unlink(path);
    }
    CU_ASSERT_EQUAL(rmdir(h->disk), 0);
}

void host_end(struct host *h)
{
    char log[96];

    scene_end(&h->scene);
    host_kill_process(h);
    host_remove_disk(h);
    (void) snprintf(log, sizeof(log), "%s/log", h->folder);
    CU_ASSERT_EQUAL(unlink(h->keys), 0);
    CU_ASSERT_EQUAL(unlink(h->config), 0);
    (void) unlink(log);
    CU_ASSERT_EQUAL(rmdir(h->folder), 0);
}
