/* A file that becomes shorter while it is mapped ends the process with a sentence; no other SIGBUS does. */
#include "tools/engine/mapped_file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/threads.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/engine/engine.h"

const char test_suite[] = "mapped_file";

enum { BYTES = 1 << 16 };

/* Runs @child in a process. Return: its status, with what it wrote to standard error in @ret. */
static int run(void (*child)(void), char *ret, size_t room)
{
    size_t n = 0;
    ssize_t got;
    int fds[2], status;
    pid_t pid;

    CU_ASSERT_EQUAL_FATAL(pipe(fds), 0);
    (void) fflush(NULL);
    pid = fork();
    CU_ASSERT_FATAL(pid >= 0);
    if (pid == 0) {
        (void) dup2(fds[1], STDERR_FILENO);
        (void) close(fds[0]);
        (void) close(fds[1]);
        child();
        _exit(77);
    }
    (void) close(fds[1]);
    while ((got = read(fds[0], ret + n, room - 1 - n)) > 0)
        n += (size_t) got;
    ret[n] = '\0';
    (void) close(fds[0]);
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    return status;
}

/* A mapped file of BYTES bytes. */
static const volatile char *map_file(int *ret_fd)
{
    int fd = memfd_create("mapped", MFD_CLOEXEC);
    void *p;

    if (fd < 0 || ftruncate(fd, BYTES) < 0)
        _exit(78);
    p = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        _exit(78);
    *ret_fd = fd;
    return p;
}

static void use_model(void)
{
    struct tiny_gguf *t = tiny_gguf_new(&(struct tiny_gguf_options){0});
    char path[] = "/tmp/kvc-test-mapped-XXXXXX";
    struct engine *en = NULL;
    struct exact_cache *c = NULL;
    const uint32_t token = 1;
    struct kv_cache ops;
    int fd = mkstemp(path);

    if (fd < 0 || tiny_gguf_write(t, path) < 0 ||
        engine_open(path, &(struct engine_options){.n_threads = 2}, &en, NULL) < 0)
        _exit(78);
    (void) unlink(path);
    if (ftruncate(fd, 0) < 0 || exact_cache_new(engine_geometry(en), 4, &c, NULL) < 0)
        _exit(78);
    ops = exact_cache_ops(c);
    (void) engine_forward(en, &ops, &token, 1, NULL, NULL);
}

static const volatile char *shared;

/* The first worker waits for its end, so that the other one reads. */
static void read_in_worker(void *ctx, size_t item, unsigned worker)
{
    (void) ctx, (void) item;
    while (worker == 0)
        (void) pause();
    _exit(shared[0] + 79);
}

static void use_worker(void)
{
    struct threads *t = NULL;
    int fd;

    shared = map_file(&fd);
    mapped_file_watch((const void *) shared, BYTES, "/watched");
    if (ftruncate(fd, 0) < 0 || threads_new(2, &t, NULL) < 0)
        _exit(78);
    threads_run(t, read_in_worker, NULL, 2);
}

/* The workers of the engine block all signals but those of faults. */
static void test_worker(void)
{
    char text[1024];
    int status = run(use_worker, text, sizeof(text));

    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CU_ASSERT_EQUAL(strncmp(text, "kvcobra: /watched: the file became shorter", 42), 0);
}

static void test_model(void)
{
    char text[1024];
    int status = run(use_model, text, sizeof(text));

    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CU_ASSERT_EQUAL(strncmp(text, "kvcobra: /tmp/kvc-test-mapped-", 30), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ": the file became shorter while it was read"));
    CU_ASSERT(strchr(text, '\n') == text + strlen(text) - 1);
}

static void read_other_file(void)
{
    int watched, other;
    const volatile char *at = map_file(&watched), *p = map_file(&other);

    mapped_file_watch((const void *) at, BYTES, "/watched");
    if (at[BYTES - 1] != 0 || ftruncate(other, 0) < 0)
        _exit(78);
    _exit(p[0]);
}

static void read_forgotten_file(void)
{
    int fd;
    const volatile char *at = map_file(&fd);

    mapped_file_watch((const void *) at, BYTES, "/watched");
    mapped_file_forget((const void *) at);
    if (ftruncate(fd, 0) < 0)
        _exit(78);
    _exit(at[0]);
}

static void send_signal(void)
{
    int fd;

    mapped_file_watch((const void *) map_file(&fd), BYTES, "/watched");
    (void) raise(SIGBUS);
}

/* A sanitizer takes the signal before the default action does, and ends the process in its own way. */
static void test_others(void)
{
    void (*const children[])(void) = {read_other_file, read_forgotten_file, send_signal};

    for (size_t i = 0; i < sizeof(children) / sizeof(children[0]); i++) {
        char text[8192];
        int status = run(children[i], text, sizeof(text));

        CU_ASSERT((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) || strstr(text, "Sanitizer"));
        CU_ASSERT_PTR_NULL(strstr(text, "/watched"));
    }
}

const struct test_case test_cases[] = {TEST(test_model), TEST(test_worker), TEST(test_others), TEST_END};
