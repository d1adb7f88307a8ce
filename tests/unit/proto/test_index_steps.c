/*
 * The shared index between any two instructions of its reader or of its writer. A child runs one of them
 * under ptrace(2); after each instruction, or a few, the parent does the work of the other. So every state
 * that another process can see occurs, on a machine with one processor too, where a race of two threads
 * finds few.
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/index.h"
#include "tests/lib/test.h"

enum { BYTES = 4096, STEPS = 25000, HOT_KEYS = 3 };

enum failure { FINE = 0, TORN, LOST, NO_PTRACE };

/* All keys share their first bucket. The last one stays in the index. */
static struct chunk_key key_of(uint64_t id)
{
    struct chunk_key k = {{0}};

    memcpy(k.bytes + 8, &id, sizeof(id));
    return k;
}

/* Slot, class and generation follow from one number, so an entry of two halves is seen. */
static struct index_hit hit_of(uint64_t id, uint64_t v)
{
    return (struct index_hit){(uint32_t) v, (uint32_t) (id & 1), v << 10 | id};
}

static enum failure check(const struct index_reader *r, uint64_t id)
{
    struct chunk_key k = key_of(id);
    struct index_hit hit;
    enum index_result result = index_lookup(r, &k, &hit);

    if (result == INDEX_FOUND && (hit.page_class != (id & 1) || (hit.generation & 1023) != id ||
                                  hit.slot != (uint32_t) (hit.generation >> 10)))
        return TORN;
    return id == HOT_KEYS && result == INDEX_MISS ? LOST : FINE;
}

/* Removes a hot key or gives it another entry. */
static void change(struct index_writer *w, uint64_t v)
{
    uint64_t id = v % HOT_KEYS;
    struct chunk_key k = key_of(id);
    struct index_hit hit = hit_of(id, v);

    if (v / HOT_KEYS % 3 == 0)
        (void) index_remove(w, &k);
    else
        (void) index_insert(w, &k, &hit);
}

static struct index_writer writer_new(void)
{
    void *object = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct chunk_key k = key_of(HOT_KEYS);
    struct index_hit hit = hit_of(HOT_KEYS, 7);
    struct index_writer w;

    assert(object != MAP_FAILED);
    index_writer_init(&w, object, BYTES);
    assert(index_insert(&w, &k, &hit) == 0);
    return w;
}

/* Starts a child that @works until it ends with a failure. Return: its pid, stopped before its first work;
 * -1. */
static pid_t start(void (*work)(struct index_writer *w), struct index_writer *w)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(NO_PTRACE);
        (void) raise(SIGSTOP);
        work(w);
        _exit(FINE);
    }
    assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFSTOPPED(status))
        return pid;
    CU_ASSERT_EQUAL(WEXITSTATUS(status), NO_PTRACE);
    return -1;
}

/* One instruction of the child. False: it has ended; *ret_failure says how. */
static bool step(pid_t pid, enum failure *ret_failure)
{
    int status;

    assert(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid);
    if (WIFSTOPPED(status))
        return true;
    *ret_failure = WIFEXITED(status) ? (enum failure) WEXITSTATUS(status) : LOST;
    return false;
}

static void end(pid_t pid, struct index_writer *w)
{
    (void) kill(pid, SIGKILL);
    (void) waitpid(pid, NULL, 0);
    (void) munmap(w->object, BYTES);
}

static void read_for_ever(struct index_writer *w)
{
    struct index_reader r;

    if (index_reader_init(&r, w->object, BYTES, NULL) < 0)
        _exit(LOST);
    for (uint64_t i = 0;; i++) {
        enum failure f = check(&r, i % (HOT_KEYS + 1));

        if (f != FINE)
            _exit((int) f);
    }
}

/* The writer changes entries between two instructions of the reader. */
static void test_reader(void)
{
    struct index_writer w = writer_new();
    enum failure failure = FINE;
    pid_t pid = start(read_for_ever, &w);
    uint64_t v = 1;

    if (pid < 0) {
        test_skip("ptrace(2) is not permitted here");
        return;
    }
    for (unsigned i = 0; i < STEPS && step(pid, &failure); i++)
        if (test_rand_below(8) == 0)
            change(&w, v++);
    CU_ASSERT_EQUAL(failure, FINE);
    CU_ASSERT(v > STEPS / 16);
    end(pid, &w);
}

static void write_for_ever(struct index_writer *w)
{
    for (uint64_t v = 1;; v++)
        change(w, v);
}

/* A reader looks at the index after each instruction of the writer. */
static void test_writer(void)
{
    struct index_writer w = writer_new();
    struct index_reader r;
    enum failure failure = FINE;
    unsigned n_found = 0;
    pid_t pid;

    CU_ASSERT_EQUAL_FATAL(index_reader_init(&r, w.object, BYTES, NULL), 0);
    pid = start(write_for_ever, &w);
    if (pid < 0) {
        test_skip("ptrace(2) is not permitted here");
        return;
    }
    for (unsigned i = 0; failure == FINE && i < STEPS && step(pid, &failure); i++)
        for (uint64_t id = 0; id <= HOT_KEYS && failure == FINE; id++) {
            failure = check(&r, id);
            n_found += failure == FINE;
        }
    CU_ASSERT_EQUAL(failure, FINE);
    CU_ASSERT(n_found > STEPS);
    end(pid, &w);
}

const struct test_case test_cases[] = {
    TEST(test_reader),
    TEST(test_writer),
    TEST_END,
};
const char test_suite[] = "index_steps";
