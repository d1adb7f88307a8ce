/* Worker threads: order, slices, shares, the limits, deadlines, the end. */
#include "tests/lib/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/work.h"

const char test_suite[] = "work";

enum { N_MAX = 64 };

struct task {
    struct work_item item;
    char name;
    unsigned slices;
    bool waits; /* in its first slice, for the gate */
    bool done;
};

static struct {
    struct ev *ev;
    struct work *work;
    pthread_mutex_t lock;
    pthread_cond_t opened, entered;
    bool open;
    unsigned n_inside;
    char ran[256], done[256]; /* names in order */
    struct work_share shares[3];
    unsigned n_left;
} t = {.lock = PTHREAD_MUTEX_INITIALIZER,
       .opened = PTHREAD_COND_INITIALIZER,
       .entered = PTHREAD_COND_INITIALIZER};

static bool run(struct work_item *i)
{
    struct task *x = (struct task *) i;

    (void) pthread_mutex_lock(&t.lock);
    t.ran[strlen(t.ran)] = x->name;
    t.n_inside++;
    (void) pthread_cond_broadcast(&t.entered);
    while (x->waits && !t.open)
        (void) pthread_cond_wait(&t.opened, &t.lock);
    t.n_inside--;
    (void) pthread_mutex_unlock(&t.lock);
    return --x->slices > 0;
}

static void done(struct work_item *i)
{
    struct task *x = (struct task *) i;

    CU_ASSERT_FALSE(x->done);
    x->done = true;
    t.done[strlen(t.done)] = x->name;
    if (--t.n_left == 0)
        ev_stop(t.ev);
}

static void setup(uint32_t n_threads, uint32_t n_items_max)
{
    t.open = false;
    t.n_left = 0;
    memset(t.ran, 0, sizeof(t.ran));
    memset(t.done, 0, sizeof(t.done));
    memset(t.shares, 0, sizeof(t.shares));
    assert(ev_new(&t.ev, NULL) == 0);
    assert(work_new(t.ev, n_threads, n_items_max, &t.work, NULL) == 0);
}

static void teardown(void)
{
    t.work = work_free(t.work);
    t.ev = ev_free(t.ev);
    for (int i = 0; i < 3; i++)
        CU_ASSERT(t.shares[i].n_items == 0 && t.shares[i].waiting.n_users == 0 &&
                  t.shares[i].ended.n_users == 0);
}

static int submit_to(struct work_share *s, struct task *x, char name, unsigned slices, bool waits,
                     uint64_t deadline_ms)
{
    int r;

    *x = (struct task){.item = {.run = run, .done = done, .deadline_ms = deadline_ms},
                       .name = name,
                       .slices = slices,
                       .waits = waits};
    r = work_submit(t.work, s, &x->item);
    t.n_left += r == 0;
    return r;
}

static int submit(struct task *x, char name, unsigned slices, bool waits, uint64_t deadline_ms)
{
    return submit_to(&t.shares[0], x, name, slices, waits, deadline_ms);
}

static void wait_inside(unsigned n)
{
    (void) pthread_mutex_lock(&t.lock);
    while (t.n_inside < n)
        (void) pthread_cond_wait(&t.entered, &t.lock);
    (void) pthread_mutex_unlock(&t.lock);
}

static void open_gate(void)
{
    (void) pthread_mutex_lock(&t.lock);
    t.open = true;
    (void) pthread_cond_broadcast(&t.opened);
    (void) pthread_mutex_unlock(&t.lock);
}

/* One thread: a long item returns to the end of the queue after each slice. */
static void test_slices_alternate(void)
{
    struct task a, b, c;

    setup(1, 10);
    CU_ASSERT_EQUAL(submit(&a, 'a', 3, true, UINT64_MAX), 0);
    wait_inside(1);
    CU_ASSERT_EQUAL(submit(&b, 'b', 1, false, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(submit(&c, 'c', 2, false, UINT64_MAX), 0);
    open_gate();
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT_STRING_EQUAL(t.ran, "abcaca");
    CU_ASSERT_STRING_EQUAL(t.done, "bca");
    CU_ASSERT(!a.item.expired && !b.item.expired && !c.item.expired);
    teardown();
}

/*
 * A share may have as many items as places are free: 2 of 4, then another share 1 of 2, a third one the
 * last.
 */
static void test_limit(void)
{
    struct work_metrics f;
    struct task x[4], refused;

    setup(1, 4);
    CU_ASSERT_EQUAL(submit(&x[0], 'a', 1, true, UINT64_MAX), 0);
    wait_inside(1);
    CU_ASSERT_EQUAL(submit(&x[1], 'b', 1, true, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(submit(&refused, '-', 1, false, UINT64_MAX), -EAGAIN);
    CU_ASSERT_EQUAL(submit_to(&t.shares[1], &x[2], 'c', 1, true, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(submit_to(&t.shares[1], &refused, '-', 1, false, UINT64_MAX), -EAGAIN);
    CU_ASSERT_EQUAL(submit_to(&t.shares[2], &x[3], 'd', 1, true, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(submit_to(&t.shares[2], &refused, '-', 1, false, UINT64_MAX), -EAGAIN);
    work_metrics(t.work, &f);
    CU_ASSERT(f.n_threads == 1 && f.n_waiting == 3 && f.n_refused == 3 && f.n_done == 0);
    CU_ASSERT_EQUAL(t.shares[0].n_items, 2);
    open_gate();
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    work_metrics(t.work, &f);
    CU_ASSERT(f.n_waiting == 0 && f.n_done == 4 && f.n_expired == 0);
    CU_ASSERT_EQUAL(submit(&x[0], 'e', 1, false, UINT64_MAX), 0);
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT_EQUAL(t.done[strlen(t.done) - 1], 'e');
    teardown();
}

/* No more items run at a time than there are threads, so memory that one takes is taken so often at most. */
static void test_threads_at_a_time(void)
{
    struct task x[8];

    setup(2, 16);
    for (int i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(submit(&x[i], 'a', 1, i < 2, UINT64_MAX), 0);
    wait_inside(2);
    CU_ASSERT_EQUAL(strlen(t.ran), 2);
    open_gate();
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT_EQUAL(strlen(t.ran), 8);
    teardown();
}

/*
 * One thread, many items of one share: another share's item is the next to run, and the next to be
 * concluded.
 */
static void test_shares_take_turns(void)
{
    struct task x[20], other;

    setup(1, 100);
    for (int i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(submit(&x[i], 'a', 3, i == 0, UINT64_MAX), 0);
    wait_inside(1);
    CU_ASSERT_EQUAL(submit_to(&t.shares[1], &other, 'b', 1, false, UINT64_MAX), 0);
    open_gate();
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT_EQUAL(strncmp(t.ran, "aba", 3), 0);
    CU_ASSERT_EQUAL(t.done[0], 'b');
    teardown();
}

/* A deadline of 5, and the clock at 4, then 5: only waiting items expire; a running item ends by itself. */
static void test_waiting_items_expire(void)
{
    struct task busy, late, later;
    struct work_metrics f;

    setup(1, 10);
    CU_ASSERT_EQUAL(submit(&busy, 'a', 1, true, UINT64_MAX), 0);
    wait_inside(1);
    CU_ASSERT_EQUAL(submit(&late, 'b', 1, false, 5), 0);
    CU_ASSERT_EQUAL(submit(&later, 'c', 1, false, UINT64_MAX), 0);
    work_expire(t.work, 4);
    CU_ASSERT_STRING_EQUAL(t.done, "");
    work_expire(t.work, 5);
    CU_ASSERT_STRING_EQUAL(t.done, "b");
    CU_ASSERT(late.item.expired);
    open_gate();
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT_STRING_EQUAL(t.ran, "ac");
    CU_ASSERT(!busy.item.expired && !later.item.expired);
    work_metrics(t.work, &f);
    CU_ASSERT(f.n_done == 2 && f.n_expired == 1);
    /* a thread starts neither a late item nor a further slice of one */
    CU_ASSERT_EQUAL(submit(&late, 'd', 1, false, 5), 0);
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT(late.item.expired);
    CU_ASSERT_STRING_EQUAL(t.ran, "ac");
    teardown();
}

/* At the end every item is returned once, whatever its state is. */
static void test_end_returns_every_item(void)
{
    for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
        struct task x[N_MAX];
        unsigned n_expired = 0;

        setup(n_threads, 2 * N_MAX);
        for (unsigned i = 0; i < N_MAX; i++)
            CU_ASSERT_EQUAL(submit(&x[i], 'a', 1 + i % 3, false, UINT64_MAX), 0);
        t.work = work_free(t.work);
        CU_ASSERT_EQUAL(t.n_left, 0);
        for (unsigned i = 0; i < N_MAX; i++) {
            CU_ASSERT(x[i].done);
            CU_ASSERT(x[i].item.expired || x[i].slices == 0);
            n_expired += x[i].item.expired;
        }
        CU_ASSERT(n_expired <= N_MAX);
        teardown();
    }
}

const struct test_case test_cases[] = {
    TEST(test_slices_alternate),
    TEST(test_limit),
    TEST(test_threads_at_a_time),
    TEST(test_shares_take_turns),
    TEST(test_waiting_items_expire),
    TEST(test_end_returns_every_item),
    TEST_END,
};
