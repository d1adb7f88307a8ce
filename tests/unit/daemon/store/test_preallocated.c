/* Preallocated extents, with a maker that counts its calls and a clock that is a variable. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "daemon/store/pool.h"
#include "daemon/store/preallocated.h"

const char test_suite[] = "preallocated";

static unsigned n_begun;
static int refuses; /* errno that begin() returns */

static int begin(void *ctx, struct errmsg *e)
{
    assert(ctx == &n_begun);
    n_begun++;
    return refuses < 0 ? fail(e, refuses, "the maker says %d", refuses) : 0;
}

static struct preallocated s;
static const struct preallocated_maker maker = {begin, &n_begun};

static void setup(uint32_t n_wanted)
{
    n_begun = 0;
    refuses = 0;
    preallocated_init(&s, &maker, n_wanted);
}

/* A new descriptor, so that the test can check when it is closed. */
static int token(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    assert(fd >= 0);
    return fd;
}

static void add(int fd)
{
    struct pool_memory m = POOL_MEMORY_NONE;

    m.gpu_fd = fd;
    preallocated_add(&s, &m);
}

/* preallocated_take() of an extent whose memory is a descriptor. */
static int take(uint32_t room, uint64_t now_ms, int *ret_fd, struct errmsg *e)
{
    struct pool_memory m;
    int r = preallocated_take(&s, room, now_ms, &m, e);

    if (r == 0)
        *ret_fd = m.gpu_fd;
    return r;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void test_filled_one_at_a_time(void)
{
    int a = token(), b = token();

    setup(2);
    preallocated_tick(&s, 5, 0);
    preallocated_tick(&s, 5, 1);
    CU_ASSERT_EQUAL(n_begun, 1); /* the first one is being created */
    add(a);
    preallocated_tick(&s, 5, 2);
    CU_ASSERT_EQUAL(n_begun, 2);
    add(b);
    preallocated_tick(&s, 5, 3);
    CU_ASSERT_EQUAL(n_begun, 2); /* both exist */
    CU_ASSERT_EQUAL(s.n, 2);
    preallocated_deinit(&s);
    CU_ASSERT_FALSE(is_open(a));
    CU_ASSERT_FALSE(is_open(b));
}

static void test_taken_in_order_and_replaced(void)
{
    int a = token(), b = token(), fd = -1;

    setup(2);
    preallocated_tick(&s, 5, 0);
    add(a);
    preallocated_tick(&s, 5, 0);
    add(b);
    CU_ASSERT_EQUAL(take(3, 0, &fd, NULL), 0);
    CU_ASSERT_EQUAL(fd, a);
    CU_ASSERT_EQUAL(n_begun, 3);
    CU_ASSERT_EQUAL(take(2, 0, &fd, NULL), 0);
    CU_ASSERT_EQUAL(fd, b);
    fd = -7;
    CU_ASSERT_EQUAL(take(1, 0, &fd, NULL), -EINPROGRESS);
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(n_begun, 3);
    (void) close(a);
    (void) close(b);
    preallocated_deinit(&s);
}

/* Preallocated extents and the pool's extents together fit the pool. */
static void test_never_more_than_room(void)
{
    int fd = -1;

    setup(3);
    preallocated_tick(&s, 0, 0);
    CU_ASSERT_EQUAL(n_begun, 0);
    preallocated_tick(&s, 1, 0);
    CU_ASSERT_EQUAL(n_begun, 1);
    add(token());
    preallocated_tick(&s, 1, 0);
    CU_ASSERT_EQUAL(n_begun, 1);
    CU_ASSERT_EQUAL(take(1, 0, &fd, NULL), 0); /* the last one: no room for another */
    CU_ASSERT_EQUAL(n_begun, 1);
    (void) close(fd);
    preallocated_tick(&s, 2, 0);
    CU_ASSERT_EQUAL(n_begun, 2);
    add(token());
    preallocated_tick(&s, 2, 0);
    CU_ASSERT_EQUAL(n_begun, 3);
    add(token());
    preallocated_tick(&s, 2, 0);
    CU_ASSERT_EQUAL(n_begun, 3);
    preallocated_deinit(&s);
}

static void test_created_on_need_if_none_is_wanted(void)
{
    int fd = -1;

    setup(0);
    preallocated_tick(&s, 4, 0);
    CU_ASSERT_EQUAL(n_begun, 0);
    CU_ASSERT_EQUAL(take(4, 0, &fd, NULL), -EINPROGRESS);
    CU_ASSERT_EQUAL(n_begun, 1);
    add(token());
    preallocated_tick(&s, 4, 0);
    CU_ASSERT_EQUAL(n_begun, 1); /* the need is met */
    CU_ASSERT_EQUAL(take(4, 0, &fd, NULL), 0);
    CU_ASSERT_EQUAL(n_begun, 1);
    (void) close(fd);
    preallocated_deinit(&s);
}

/* Pauses of 100, 200, 400 ... at most 10 000 ms; the first success ends them. */
static void test_waits_longer_after_each_failure(void)
{
    uint64_t now = 1000, pause = 100;
    int fd = -1;

    setup(1);
    for (unsigned i = 1; i <= 10; i++) {
        preallocated_tick(&s, 1, now);
        CU_ASSERT_EQUAL_FATAL(n_begun, i);
        preallocated_fail(&s, -ENOMEM, "the GPU is full", now);
        preallocated_tick(&s, 1, now + pause - 1);
        CU_ASSERT_EQUAL_FATAL(n_begun, i);
        now += pause;
        pause = pause * 2 > 10000 ? 10000 : pause * 2;
    }
    CU_ASSERT_EQUAL(pause, 10000);
    preallocated_tick(&s, 1, now);
    add(token());
    CU_ASSERT_EQUAL(take(1, now, &fd, NULL), 0);
    (void) close(fd);
    preallocated_tick(&s, 1, now); /* tried at once; the next pause is the first one again */
    CU_ASSERT_EQUAL(n_begun, 12);
    preallocated_fail(&s, -ENOMEM, NULL, now);
    preallocated_tick(&s, 1, now + 100);
    CU_ASSERT_EQUAL(n_begun, 13);
    preallocated_deinit(&s);
}

static void test_reports_the_failure(void)
{
    struct errmsg e = {""};
    int fd = -7;

    setup(1);
    CU_ASSERT_EQUAL(take(1, 0, &fd, &e), -EINPROGRESS);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "being created"));
    preallocated_fail(&s, -ENOMEM, "the GPU is full", 0);
    CU_ASSERT_EQUAL(take(1, 0, &fd, &e), -ENOMEM);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "the GPU is full"));
    CU_ASSERT_EQUAL(take(1, 100, &fd, &e), -ENOMEM); /* also while it is tried again */
    CU_ASSERT_EQUAL(n_begun, 2);
    preallocated_fail(&s, -ECONNRESET, "", 100);
    CU_ASSERT_EQUAL(take(1, 100, &fd, &e), -EAGAIN);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, strerror(ECONNRESET)));
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(s.n_failed, 2);
    preallocated_deinit(&s);
}

static void test_a_refusal_is_a_failure(void)
{
    int fd = -7;

    setup(1);
    refuses = -EAGAIN;
    CU_ASSERT_EQUAL(take(1, 0, &fd, NULL), -EAGAIN);
    preallocated_tick(&s, 1, 99);
    CU_ASSERT_EQUAL(n_begun, 1);
    refuses = 0;
    preallocated_tick(&s, 1, 100);
    CU_ASSERT_EQUAL(n_begun, 2);
    CU_ASSERT_TRUE(s.is_being_created);
    preallocated_deinit(&s);
}

const struct test_case test_cases[] = {
    TEST(test_filled_one_at_a_time),
    TEST(test_taken_in_order_and_replaced),
    TEST(test_never_more_than_room),
    TEST(test_created_on_need_if_none_is_wanted),
    TEST(test_waits_longer_after_each_failure),
    TEST(test_reports_the_failure),
    TEST(test_a_refusal_is_a_failure),
    TEST_END,
};
