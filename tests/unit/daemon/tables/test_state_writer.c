/*
 * Files of the state folder, written by a thread: a change runs again when its file is written, fails as the
 * disk does, and leaves no file that says what is not true. The thread is this test: work_submit() keeps the
 * item, and run_thread() does its work.
 */
#include "daemon/tables/state_writer.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "daemon/loop/log.h"

const char test_suite[] = "state_writer";

static struct state_writer writer;
static char folder[64];
static int number; /* the state, which each file has as its text */
static struct work_item *submitted;
static bool refuses; /* the queue of the threads is full */
static unsigned n_done;

int work_submit(struct work *w, struct work_share *s, struct work_item *i)
{
    (void) w;
    (void) s;
    if (refuses)
        return -EAGAIN;
    CU_ASSERT_PTR_NULL_FATAL(submitted);
    submitted = i;
    return 0;
}

/* The thread writes one file; the loop concludes it. False: there is nothing to do. */
static bool run_thread(void)
{
    struct work_item *i = submitted;

    if (!i)
        return false;
    submitted = NULL;
    CU_ASSERT_FALSE(i->run(i));
    i->done(i);
    return true;
}

static void print_number(const void *ctx, FILE *f)
{
    (void) fprintf(f, "%d\n", *(const int *) ctx);
}

static void on_written(struct state_change *c)
{
    (void) c;
    n_done++;
}

static void setup(bool with_threads)
{
    static char work;

    log_open(LOG_EMERG);
    strcpy(folder, "/tmp/kvcobra-test-XXXXXX");
    assert(mkdtemp(folder));
    writer = (struct state_writer){.folder = folder};
    for (unsigned f = 0; f < STATE_FILES_MAX; f++)
        state_writer_set_printer(&writer, (enum state_file) f, print_number, &number);
    if (with_threads)
        state_writer_start(&writer, (struct work *) &work);
    number = 0;
    n_done = 0;
}

static void teardown(void)
{
    static const char *const names[] = {"active", "trials", "aliases", "quotas"};

    state_writer_end_threads(&writer);
    submitted = NULL;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[96];

        (void) snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void) unlink(path);
    }
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

/* The number in a file; -1: there is no file. */
static int stored(const char *name)
{
    char path[96];
    void *text = NULL;
    size_t n;
    int ret;

    (void) snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (atomic_file_read(path, 16, &text, &n, NULL) < 0)
        return -1;
    ((char *) text)[n] = '\0';
    ret = atoi(text);
    free(text);
    return ret;
}

/* A change of the number that writes @n_files files. */
static int change_run(struct state_change *c, int to, unsigned n_files, struct errmsg *e)
{
    int before = number, r = 0;

    state_writer_begin(&writer, c);
    number = to;
    for (unsigned f = 0; r == 0 && f < n_files; f++)
        r = state_writer_write(&writer, (enum state_file) f, e);
    if (r < 0)
        number = before;
    state_writer_end(&writer, r);
    return r;
}

static void test_without_threads(void)
{
    struct errmsg e = {""};

    setup(false);
    number = 3;
    CU_ASSERT_EQUAL(state_writer_write(&writer, STATE_ALIASES, &e), 0);
    CU_ASSERT_EQUAL(stored("aliases"), 3);
    state_writer_write_later(&writer, STATE_TRIALS);
    CU_ASSERT_EQUAL(stored("trials"), 3);
    writer.folder = NULL; /* nothing is stored */
    number = 4;
    CU_ASSERT_EQUAL(state_writer_write(&writer, STATE_ALIASES, &e), 0);
    state_writer_write_later(&writer, STATE_TRIALS);
    CU_ASSERT_EQUAL(stored("aliases"), 3);
    CU_ASSERT_EQUAL(stored("trials"), 3);
    teardown();
}

/* One run for each file, and one more. */
static void test_runs(void)
{
    struct state_change c = {.done = on_written};
    struct errmsg e = {""};

    setup(true);
    CU_ASSERT_EQUAL(change_run(&c, 1, 2, &e), -EINPROGRESS);
    CU_ASSERT_EQUAL(number, 0);
    CU_ASSERT_EQUAL(stored("active"), -1);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("active"), 1);
    CU_ASSERT_EQUAL(n_done, 1);
    CU_ASSERT_EQUAL(change_run(&c, 1, 2, &e), -EINPROGRESS);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(n_done, 2);
    CU_ASSERT_EQUAL(change_run(&c, 1, 2, &e), 0);
    CU_ASSERT_EQUAL(number, 1);
    CU_ASSERT_EQUAL(stored("trials"), 1);
    CU_ASSERT_FALSE(run_thread());
    teardown();
}

/* The disk fails: the change fails with the sentence of the thread, and another one is not affected. */
static void test_disk_fails(void)
{
    struct state_change c = {.done = on_written}, next = {.done = on_written};
    struct errmsg e = {""};

    setup(true);
    writer.folder = "/tmp/kvcobra-no-such-folder";
    CU_ASSERT_EQUAL(change_run(&c, 1, 1, &e), -EINPROGRESS);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(change_run(&c, 1, 1, &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "kvcobra-no-such-folder/active"));
    CU_ASSERT_EQUAL(number, 0);
    writer.folder = folder;
    CU_ASSERT_EQUAL(change_run(&next, 2, 1, &e), -EINPROGRESS);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(change_run(&next, 2, 1, &e), 0);
    teardown();
}

/* A change that fails after a file was written: the file is replaced by what is true. */
static void test_late_failure(void)
{
    struct state_change c = {.done = on_written};
    struct errmsg e = {""};

    setup(true);
    CU_ASSERT_EQUAL(change_run(&c, 1, 1, &e), -EINPROGRESS);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("active"), 1);
    state_writer_begin(&writer, &c);
    state_writer_end(&writer, -ENOMEM);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("active"), 0);
    CU_ASSERT_EQUAL(n_done, 1);
    CU_ASSERT_FALSE(run_thread());
    teardown();
}

/* A file is written beside a change: the text of the change is older, so it is written again. */
static void test_later_beside_a_change(void)
{
    struct state_change c = {.done = on_written};
    struct errmsg e = {""};

    setup(true);
    CU_ASSERT_EQUAL(change_run(&c, 1, 1, &e), -EINPROGRESS);
    number = 7;
    state_writer_write_later(&writer, STATE_ACTIVE);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(n_done, 1);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("active"), 7);
    CU_ASSERT_EQUAL(n_done, 1);
    CU_ASSERT_EQUAL(change_run(&c, 8, 1, &e), -EINPROGRESS);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(change_run(&c, 8, 1, &e), 0);
    CU_ASSERT_EQUAL(stored("active"), 8);
    teardown();
}

/* Texts that wait for the thread are replaced, not added: their number is bounded. */
static void test_later_is_bounded(void)
{
    setup(true);
    for (number = 1; number < 100; number++)
        state_writer_write_later(&writer, STATE_ACTIVE);
    number = 100;
    state_writer_write_later(&writer, STATE_QUOTAS);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("active"), 1);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("active"), 99);
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(stored("quotas"), 100);
    CU_ASSERT_FALSE(run_thread());
    teardown();
}

/* The queue of the threads is full: a tick tries again. At the end, what waits is written. */
static void test_full_queue_and_end(void)
{
    struct state_change c = {.done = on_written};
    struct errmsg e = {""};

    setup(true);
    refuses = true;
    CU_ASSERT_EQUAL(change_run(&c, 5, 1, &e), -EINPROGRESS);
    state_writer_tick(&writer);
    CU_ASSERT_FALSE(run_thread());
    refuses = false;
    state_writer_tick(&writer);
    state_writer_tick(&writer); /* it is submitted once */
    CU_ASSERT(run_thread());
    CU_ASSERT_EQUAL(change_run(&c, 5, 1, &e), 0);
    CU_ASSERT_EQUAL(stored("active"), 5);

    number = 6;
    state_writer_write_later(&writer, STATE_ALIASES);
    submitted->expired = true; /* as work_free() does */
    submitted->done(submitted);
    CU_ASSERT_EQUAL(stored("aliases"), -1);
    state_writer_end_threads(&writer);
    CU_ASSERT_EQUAL(stored("aliases"), 6);
    c = (struct state_change){.done = on_written};
    CU_ASSERT_EQUAL(change_run(&c, 9, 2, &e), 0); /* at once */
    CU_ASSERT_EQUAL(stored("trials"), 9);
    teardown();
}

const struct test_case test_cases[] = {
    TEST(test_without_threads),
    TEST(test_runs),
    TEST(test_disk_fails),
    TEST(test_late_failure),
    TEST(test_later_beside_a_change),
    TEST(test_later_is_bounded),
    TEST(test_full_queue_and_end),
    TEST_END,
};
