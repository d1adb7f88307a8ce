/*
 * Core files: none without --allow-core; with it, one in which neither pages nor keys nor secrets are found.
 * Where the kernel passes cores to a program, the flags of the mappings are checked only.
 */
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "core";

enum { NEEDLE_BYTES = 64, PAYLOAD = 1000, SECRET_BYTES = 32, PAGES = 8 };

static const char *const forbids[] = {"--pool-bytes=64M", NULL};
static const char *const allows[] = {"--pool-bytes=64M", "--allow-core", NULL};

/* Whether the kernel writes core files into the folder of the process. */
static bool cores_are_files(void)
{
    _cleanup_(fclosep) FILE *f = fopen("/proc/sys/kernel/core_pattern", "re");
    char pattern[256] = "";
    struct rlimit limit;

    return f && fgets(pattern, sizeof(pattern), f) && pattern[0] != '|' && !strchr(pattern, '/') &&
           getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max > 1u << 30;
}

/* Ends the daemon as the watchdog does. Return: the status of waitpid(). */
static int abort_daemon(void)
{
    int status = 0;

    CU_ASSERT_EQUAL(kill(raw_daemon.pid, SIGABRT), 0);
    CU_ASSERT_EQUAL(waitpid(raw_daemon.pid, &status, 0), raw_daemon.pid);
    CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    return status;
}

/* Ends the daemon by a fault in a thread of its workers, which block the signals for the process. */
static void end_worker(void)
{
    long worker = 0;
    glob_t tasks = {.gl_pathc = 0};
    char pattern[64];
    int status = 0;

    (void) snprintf(pattern, sizeof(pattern), "/proc/%ld/task/*", (long) raw_daemon.pid);
    CU_ASSERT_EQUAL_FATAL(glob(pattern, 0, NULL, &tasks), 0);
    for (size_t i = 0; i < tasks.gl_pathc; i++) {
        long id = strtol(strrchr(tasks.gl_pathv[i], '/') + 1, NULL, 10);

        worker = id != raw_daemon.pid ? id : worker;
    }
    globfree(&tasks);
    CU_ASSERT_NOT_EQUAL_FATAL(worker, 0);
    CU_ASSERT_EQUAL(syscall(SYS_tgkill, (long) raw_daemon.pid, worker, SIGSEGV), 0);
    CU_ASSERT_EQUAL(waitpid(raw_daemon.pid, &status, 0), raw_daemon.pid);
    CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* Maps the core file and removes it. NULL: there is none. */
static void *take_core(size_t *ret_bytes)
{
    glob_t found = {.gl_pathc = 0};
    struct stat st;
    void *p = NULL;

    if (glob("core*", 0, NULL, &found) == 0) {
        _cleanup_(closep) int fd = open(found.gl_pathv[0], O_RDONLY | O_CLOEXEC);

        CU_ASSERT_FATAL(found.gl_pathc == 1 && fd >= 0 && fstat(fd, &st) == 0);
        *ret_bytes = (size_t) st.st_size;
        p = mmap(NULL, *ret_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        CU_ASSERT_FATAL(p != MAP_FAILED);
        (void) unlink(found.gl_pathv[0]);
    }
    globfree(&found);
    return p;
}

/* Mappings of memory objects whose flags lack "dd", which keeps them out of cores; -1: not readable. */
static int n_dumped_objects(void)
{
    _cleanup_(fclosep) FILE *f = NULL;
    char path[64], line[512];
    bool is_object = false;
    int n = 0, n_objects = 0;

    (void) snprintf(path, sizeof(path), "/proc/%ld/smaps", (long) raw_daemon.pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "VmFlags:", 8) == 0) {
            n_objects += is_object;
            if (is_object && !strstr(line, " dd")) {
                printf("    a memory object is in core files: %s", line);
                n++;
            }
        } else if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' ')) {
            is_object = strstr(line, "/memfd:") != NULL;
        }
    }
    return n_objects > 0 ? n : -1;
}

struct secrets {
    uint8_t page[NEEDLE_BYTES], index_key[INDEX_KEY_BYTES];
    uint8_t *state;
};

/* A client that publishes pages, and what it knows of them. */
static struct raw_model publish(struct secrets *ret)
{
    struct raw_model m = raw_model_open();
    struct raw_slot slot;
    uint64_t lease;
    char path[128];
    size_t n;
    void *bytes;

    for (uint64_t i = 0; i < PAGES; i++)
        CU_ASSERT_EQUAL(raw_publish(&m, i, &slot, &lease), 0);
    memcpy(ret->page, m.arena + PAYLOAD, NEEDLE_BYTES);
    memcpy(ret->index_key, m.index_key, INDEX_KEY_BYTES);
    (void) snprintf(path, sizeof(path), "%s/secret", raw_daemon.state);
    CU_ASSERT_EQUAL_FATAL(atomic_file_read(path, SECRET_BYTES, &bytes, &n, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(n, SECRET_BYTES);
    ret->state = bytes;
    return m;
}

static void begin(const char *const *args, char *folder)
{
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    CU_ASSERT_EQUAL_FATAL(chdir(folder), 0); /* the daemon's folder, too: cores are made there */
    raw_start(DAEMON_WITH_STATE, args);
}

static void end(const char *const *args, const char *folder)
{
    CU_ASSERT(daemon_start_again(&raw_daemon, args));
    raw_stop();
    CU_ASSERT_EQUAL(chdir("/"), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static void test_no_core(void)
{
    char folder[] = "/tmp/kvcobra-core-XXXXXX";
    size_t n;

    begin(forbids, folder);
    CU_ASSERT_FALSE(WCOREDUMP(abort_daemon()));
    CU_ASSERT_PTR_NULL(take_core(&n));
    end(forbids, folder);
}

static void check_core(bool ends_worker)
{
    char folder[] = "/tmp/kvcobra-core-XXXXXX";
    struct secrets x;
    struct raw_model m;
    void *core;
    size_t n = 0;

    begin(allows, folder);
    m = publish(&x);
    for (struct wait w = wait_begin(); n_dumped_objects() > 0 && wait_again(&w);)
        ; /* one that a thread is mapping has the mark a moment later */
    CU_ASSERT_EQUAL(n_dumped_objects(), 0);
    if (ends_worker)
        end_worker();
    else
        (void) abort_daemon();
    if (cores_are_files()) {
        core = take_core(&n);
        CU_ASSERT_PTR_NOT_NULL_FATAL(core);
        CU_ASSERT(memmem(core, n, "\177ELF", 4) == core);
        CU_ASSERT_PTR_NULL(memmem(core, n, x.page, NEEDLE_BYTES));
        CU_ASSERT_PTR_NULL(memmem(core, n, x.index_key, INDEX_KEY_BYTES));
        CU_ASSERT_PTR_NULL(memmem(core, n, x.state, SECRET_BYTES));
        CU_ASSERT(n < 64u << 20);
        /* and it has what a back-trace needs: the stack of the main thread has the arguments */
        CU_ASSERT_PTR_NOT_NULL(memmem(core, n, "--allow-core", 12));
        (void) munmap(core, n);
    }
    free(x.state);
    raw_close_model(&m);
    end(allows, folder);
}

static void test_core_without_secrets(void)
{
    check_core(false);
}

static void test_core_of_a_fault_in_a_worker(void)
{
    check_core(true);
}

const struct test_case test_cases[] = {
    TEST(test_no_core),
    TEST(test_core_without_secrets),
    TEST(test_core_of_a_fault_in_a_worker),
    TEST_END,
};
