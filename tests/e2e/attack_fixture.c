/* See attack_fixture.h. */
#include "tests/e2e/attack_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/attack_client.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/free_port.h"
#include "tests/lib/test.h"

enum {
    NEIGHBOUR_PAUSE_MS = 2,
    STATUS_PAUSE_MS = 20,
    ECHO_BYTES = 64,
    OBJECTS_MAX = 16384,
    NEIGHBOUR_UID = OTHER_USER_UID - 1,
};

static const char *const daemon_args[] = {
    "--pool-bytes=256M",
    "--quota-bytes=16M",
    "--arena-bytes=1M",
    "--socket-mode=666",
};
enum { ARGS = sizeof(daemon_args) / sizeof(daemon_args[0]), ARGS_MAX = ARGS + 5 };

static char disk_folder[64];

static char cgroup_folder[128];

static uint64_t now_us(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

static void add_wait(struct attack_waits *w, uint64_t since_us)
{
    if (w->n < ATTACK_WAITS_MAX)
        w->us[w->n++] = (uint32_t) (now_us() - since_us);
}

static int by_length(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

    return (x > y) - (x < y);
}

uint32_t attack_quantile(struct attack_waits *w, double q)
{
    uint32_t rank = (uint32_t) (q * w->n);

    if (w->n == 0)
        return UINT32_MAX; /* no answer at all */
    qsort(w->us, w->n, sizeof(w->us[0]), by_length);
    return w->us[rank < w->n ? rank : w->n - 1];
}

/* ---- the cgroup of the hostile processes ---- */

/* Folders in which a group with a share of the processors can be made: cgroup v1, then v2. */
static const struct {
    const char *folder, *share;
} hierarchies[] = {{"/sys/fs/cgroup/cpu", "cpu.shares"}, {"/sys/fs/cgroup", "cpu.weight"}};

static void make_cgroup(void)
{
    char share[160];

    for (size_t i = 0; i < sizeof(hierarchies) / sizeof(hierarchies[0]); i++) {
        (void) snprintf(cgroup_folder, sizeof(cgroup_folder), "%s/kvcobra-attack-%ld", hierarchies[i].folder,
                        (long) getpid());
        (void) snprintf(share, sizeof(share), "%s/%s", cgroup_folder, hierarchies[i].share);
        if (mkdir(cgroup_folder, 0755) == 0 && access(share, F_OK) == 0)
            return;
        (void) rmdir(cgroup_folder);
    }
    cgroup_folder[0] = '\0';
}

/* The group has no process left. */
static void remove_cgroup(void)
{
    if (cgroup_folder[0])
        (void) rmdir(cgroup_folder);
    cgroup_folder[0] = '\0';
}

bool attack_has_cgroup(void)
{
    bool made;

    make_cgroup();
    made = cgroup_folder[0] != '\0';
    remove_cgroup();
    return made;
}

static void join_cgroup(void)
{
    char path[160];
    int fd;

    if (!cgroup_folder[0])
        return;
    (void) snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup_folder);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert(fd >= 0 && write(fd, "0", 1) == 1);
    (void) close(fd);
}

/* ---- processes ---- */

/* A child that dies with the test. Return: 0 in the child. */
static pid_t fork_child(void)
{
    pid_t pid;

    (void) fflush(stdout);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0)
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static pid_t start_attack(attack_fn *attack)
{
    struct rlimit descriptors = {8192, 8192};
    pid_t pid = fork_child();

    if (pid == 0) {
        (void) setrlimit(RLIMIT_NOFILE, &descriptors);
        join_cgroup();
        other_user_become(OTHER_USER_UID);
        attack();
        _exit(1);
    }
    return pid;
}

static void end_child(pid_t pid)
{
    (void) kill(pid, SIGKILL);
    assert(waitpid(pid, NULL, 0) == pid);
}

/* A process that only receives packets and sends them back. Return: the socket. */
static int start_echo(pid_t *ret_pid)
{
    char packet[ECHO_BYTES];
    int fds[2];

    assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    *ret_pid = fork_child();
    if (*ret_pid == 0) {
        (void) close(fds[0]);
        for (;;) {
            ssize_t n = recv(fds[1], packet, sizeof(packet), 0);

            if (n <= 0 || send(fds[1], packet, (size_t) n, MSG_NOSIGNAL) != n)
                _exit(0);
        }
    }
    (void) close(fds[1]);
    return fds[0];
}

/* ---- the neighbour ---- */

static void neighbour_exchange(struct attack_result *r, struct raw_model *m, const struct raw_slot *page,
                               bool leases)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
    struct chunk_key key = raw_key(1);
    uint64_t since = now_us(), lease = 0;
    size_t granted = 0;
    int reason;

    if (!leases) {
        r->n_refused += raw_errno(m->fd, &q) != 0;
        add_wait(&r->daemon, since);
        return;
    }
    r->n_refused += raw_lease(m, &key, page, 1, &granted, &lease, &reason) != 0 || granted != 1;
    add_wait(&r->daemon, since);
    since = now_us();
    r->n_refused += granted == 1 && raw_release(m, lease) != 0;
    add_wait(&r->daemon, since);
}

/* Has a page of its own and leases it, as a process that serves prompts does. */
static _Noreturn void neighbour(struct attack_result *r, int echo, int ready, unsigned ms)
{
    char packet[ECHO_BYTES] = "echo";
    struct raw_slot page;
    struct raw_model m;
    uint64_t end;
    char go = 'r';

    other_user_become(NEIGHBOUR_UID);
    m = raw_model_open();
    assert(raw_publish(&m, 1, &page, NULL) == 0); /* its lease keeps the page */
    assert(write(ready, &go, 1) == 1 && read(ready, &go, 1) == 1);
    end = now_us() + UINT64_C(1000) * ms;
    for (unsigned i = 0; now_us() < end; i++) {
        uint64_t since = now_us();

        assert(send(echo, packet, sizeof(packet), MSG_NOSIGNAL) == ECHO_BYTES);
        assert(recv(echo, packet, sizeof(packet), 0) == ECHO_BYTES);
        add_wait(&r->echo, since);
        neighbour_exchange(r, &m, &page, i % 2);
        (void) poll(NULL, 0, NEIGHBOUR_PAUSE_MS);
    }
    r->done = true;
    _exit(0);
}

/* ---- the daemon's memory ---- */

/* Memory objects that the daemon has open, each once, without pages and arenas. */
static uint64_t object_bytes(void)
{
    static ino_t seen[OBJECTS_MAX];
    char path[64], name[128];
    uint64_t bytes = 0;
    size_t n = 0;
    DIR *d;

    (void) snprintf(path, sizeof(path), "/proc/%ld/fd", (long) raw_daemon.pid);
    d = opendir(path);
    assert(d);
    for (const struct dirent *e; (e = readdir(d));) {
        ssize_t length = readlinkat(dirfd(d), e->d_name, name, sizeof(name) - 1);
        struct stat st;
        size_t i = 0;

        name[length > 0 ? length : 0] = '\0';
        if (strncmp(name, "/memfd:kvcobra-", 15) != 0 || strncmp(name + 15, "pages", 5) == 0 ||
            strncmp(name + 15, "arena", 5) == 0 || fstatat(dirfd(d), e->d_name, &st, 0) != 0)
            continue;
        while (i < n && seen[i] != st.st_ino)
            i++;
        if (i < n || n == OBJECTS_MAX)
            continue;
        seen[n++] = st.st_ino;
        bytes += (uint64_t) st.st_blocks * 512;
    }
    (void) closedir(d);
    return bytes;
}

/* ---- the daemon ---- */

/* A service manager that never reads what the daemon sends. Return: its socket. */
static int start_deaf_manager(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int n = snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, "kvcobra-attack-%ld", (long) getpid());
    char name[sizeof(sa.sun_path)];

    assert(fd >= 0 && bind(fd, (const struct sockaddr *) &sa,
                           (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1 + (size_t) n)) == 0);
    (void) snprintf(name, sizeof(name), "@%s", sa.sun_path + 1);
    assert(setenv("NOTIFY_SOCKET", name, 1) == 0);
    return fd;
}

/* Return: the socket of the deaf manager, or -1. */
static int start_daemon(unsigned with)
{
    char metrics[64], disk[96];
    const char *args[ARGS_MAX] = {NULL};
    size_t n = ARGS;
    int manager = -1;

    memcpy(args, daemon_args, sizeof(daemon_args));
    attack_metrics_port = free_port();
    (void) snprintf(metrics, sizeof(metrics), "--metrics-address=127.0.0.1:%u", attack_metrics_port);
    args[n++] = metrics;
    if (with & ATTACK_DEAF_MANAGER) {
        args[n++] = "--keep-pool=yes";
        manager = start_deaf_manager();
    }
    if (with & ATTACK_DISK) {
        (void) snprintf(disk_folder, sizeof(disk_folder), "/tmp/kvcobra-attack-XXXXXX");
        assert(mkdtemp(disk_folder));
        (void) snprintf(disk, sizeof(disk), "--disk-dir=%s", disk_folder);
        args[n++] = disk;
        args[n++] = "--disk-bytes=256M";
    }
    raw_start(DAEMON_WITH_STATE, args);
    assert(chmod(raw_daemon.folder, 0711) == 0); /* other users reach the socket */
    assert(unsetenv("NOTIFY_SOCKET") == 0);
    return manager;
}

static void stop_daemon(unsigned with)
{
    static const char *const files[] = {"records", "pages"};
    char path[96];

    raw_stop();
    for (size_t i = 0; i < 2 && with & ATTACK_DISK; i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", disk_folder, files[i]);
        (void) unlink(path);
    }
    if (with & ATTACK_DISK)
        (void) rmdir(disk_folder);
}

/* ---- the measurement ---- */

static struct attack_result *shared_result(void)
{
    static struct attack_result *r;

    if (!r)
        r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(r != MAP_FAILED);
    memset(r, 0, sizeof(*r));
    return r;
}

/* Asks for the status until the neighbour has ended. */
static void watch(struct attack_result *r, pid_t neighbour_pid, uint64_t before)
{
    while (waitpid(neighbour_pid, NULL, WNOHANG) == 0) {
        uint64_t since = now_us(), bytes;

        wire_reply_free(raw_status());
        add_wait(&r->status, since);
        bytes = daemon_heap_bytes(&raw_daemon) + object_bytes();
        if (bytes > before && bytes - before > r->grown_bytes)
            r->grown_bytes = bytes - before;
        (void) poll(NULL, 0, STATUS_PAUSE_MS);
    }
}

struct attack_result *attack_measure(attack_fn *const *attacks, size_t n, unsigned with, unsigned ms)
{
    struct attack_result *r = shared_result();
    pid_t echo_pid, neighbour_pid, pids[ATTACK_PROCESSES_MAX];
    int echo = start_echo(&echo_pid), gate[2], manager;
    uint64_t before;
    char ready;

    assert(n <= ATTACK_PROCESSES_MAX);
    manager = start_daemon(with);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, gate) == 0);
    neighbour_pid = fork_child();
    if (neighbour_pid == 0)
        neighbour(r, echo, gate[1], ms);
    assert(read(gate[0], &ready, 1) == 1);
    before = daemon_heap_bytes(&raw_daemon) + object_bytes();

    make_cgroup();
    for (size_t i = 0; i < n; i++)
        pids[i] = start_attack(attacks[i]);
    assert(write(gate[0], &ready, 1) == 1);
    watch(r, neighbour_pid, before);
    for (size_t i = 0; i < n; i++)
        end_child(pids[i]);
    remove_cgroup();

    end_child(echo_pid);
    (void) close(echo);
    (void) close(gate[0]);
    (void) close(gate[1]);
    raw_wait_for_no_sessions();
    stop_daemon(with);
    if (manager >= 0)
        (void) close(manager);
    return r;
}
