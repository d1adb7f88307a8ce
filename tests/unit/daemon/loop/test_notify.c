/* Messages to the service manager: order, what is never sent, a manager that does not read, barriers. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/notify.h"
#include "tests/lib/wait.h"

const char test_suite[] = "notify";

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool blocked; /* the manager does not read */
    unsigned n_inside;
    char sent[4096]; /* states, without FDPOLL=0, one after the other */
    int answer;
    unsigned n_fds, n_barriers;
} t = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .answer = 1};

static void wait_while_blocked(void)
{
    t.n_inside++;
    (void) pthread_cond_broadcast(&t.changed);
    while (t.blocked)
        (void) pthread_cond_wait(&t.changed, &t.lock);
    t.n_inside--;
}

static int send_with_fd(const char *state, int fd)
{
    const char *name = strstr(state, "FDNAME="), *sign = "";
    int r;

    (void) pthread_mutex_lock(&t.lock);
    wait_while_blocked();
    if (strncmp(state, "FDSTORE=", 8) == 0)
        sign = "+";
    else if (strncmp(state, "FDSTOREREMOVE=", 14) == 0)
        sign = "-";
    (void) snprintf(t.sent + strlen(t.sent), sizeof(t.sent) - strlen(t.sent), "%s%s ", sign,
                    name ? name + 7 : state);
    if (fd >= 0) {
        CU_ASSERT(fcntl(fd, F_GETFD) >= 0);
        t.n_fds++;
    }
    r = t.answer;
    (void) pthread_mutex_unlock(&t.lock);
    return r;
}

static int send_barrier(uint64_t timeout_us)
{
    int r;

    CU_ASSERT(timeout_us > 0);
    (void) pthread_mutex_lock(&t.lock);
    wait_while_blocked();
    t.n_barriers++;
    r = t.answer;
    (void) pthread_mutex_unlock(&t.lock);
    return r;
}

static void block(bool on)
{
    (void) pthread_mutex_lock(&t.lock);
    t.blocked = on;
    (void) pthread_cond_broadcast(&t.changed);
    (void) pthread_mutex_unlock(&t.lock);
}

static void wait_inside(void)
{
    (void) pthread_mutex_lock(&t.lock);
    while (t.n_inside == 0)
        (void) pthread_cond_wait(&t.changed, &t.lock);
    (void) pthread_mutex_unlock(&t.lock);
}

static struct notify *begin(void)
{
    static const struct notify_send send = {send_with_fd, send_barrier};
    struct notify *n = NULL;

    t.sent[0] = '\0';
    t.answer = 1;
    t.n_fds = t.n_barriers = 0;
    CU_ASSERT_EQUAL_FATAL(notify_new(&send, &n, NULL), 0);
    return n;
}

static void test_order(void)
{
    struct notify *n = begin();
    int fd = dup(0);

    notify_state(n, "READY=1");
    notify_store(n, "a", fd, 0);
    (void) close(fd); /* the queue has a copy */
    CU_ASSERT_EQUAL(notify_barrier(n), 0);
    CU_ASSERT_STRING_EQUAL(t.sent, "READY=1 +a ");
    CU_ASSERT(t.n_fds == 1 && t.n_barriers == 1);
    notify_remove(n, "a");
    notify_store(n, "b", 0, 0);
    CU_ASSERT_EQUAL(notify_flush(n), 0);
    CU_ASSERT_STRING_EQUAL(t.sent, "READY=1 +a -a +b ");
    CU_ASSERT_FALSE(notify_has_failed(n));
    CU_ASSERT_PTR_NULL(notify_free(n));
    CU_ASSERT_PTR_NULL(notify_free(NULL));
}

/* The manager does not read. Callers do not wait, and what comes and goes leaves nothing in the queue. */
static void test_silent_manager(void)
{
    struct notify *n = begin();
    char name[32];

    block(true);
    notify_state(n, "first");
    wait_inside();
    for (int i = 0; i < 5000; i++) { /* more than a process has descriptors */
        (void) snprintf(name, sizeof(name), "s%d", i);
        notify_store(n, name, 0, 0);
        notify_state(n, "WATCHDOG=1");
        if (i != 17)
            notify_remove(n, name);
    }
    notify_remove(n, "stored earlier");
    CU_ASSERT_STRING_EQUAL(t.sent, "");
    block(false);
    CU_ASSERT_EQUAL(notify_flush(n), 0);
    CU_ASSERT_STRING_EQUAL(t.sent, "first +s17 WATCHDOG=1 -stored earlier ");
    CU_ASSERT_EQUAL(t.n_fds, 1);
    CU_ASSERT_FALSE(notify_has_failed(n));
    CU_ASSERT_PTR_NULL(notify_free(n));
}

/* A message that is being sent cannot be taken back: the removal follows it. */
static void test_removal_of_a_message_on_its_way(void)
{
    struct notify *n = begin();

    block(true);
    notify_store(n, "a", 0, 0);
    wait_inside();
    notify_remove(n, "a");
    block(false);
    CU_ASSERT_EQUAL(notify_flush(n), 0);
    CU_ASSERT_STRING_EQUAL(t.sent, "+a -a ");
    CU_ASSERT_PTR_NULL(notify_free(n));
}

/*
 * Messages that are held back: later ones pass them, a removal drops them, a barrier and the clock release
 * them.
 */
static void test_held_back(void)
{
    struct notify *n = begin();

    notify_store(n, "late", 0, 3600 * 1000);
    notify_store(n, "gone", 0, 3600 * 1000);
    notify_store(n, "now", 0, 0);
    notify_remove(n, "gone");
    CU_ASSERT_EQUAL(notify_barrier(n), 0);
    CU_ASSERT_STRING_EQUAL(t.sent, "+now +late ");
    notify_store(n, "soon", 0, 20);
    for (struct wait w = wait_begin(); wait_again(&w);) {
        bool sent;

        (void) pthread_mutex_lock(&t.lock);
        sent = strstr(t.sent, "+soon");
        (void) pthread_mutex_unlock(&t.lock);
        if (sent)
            break;
    }
    CU_ASSERT_STRING_EQUAL(t.sent, "+now +late +soon ");
    CU_ASSERT_PTR_NULL(notify_free(n));
}

static void test_failures(void)
{
    struct notify *n = begin();

    t.answer = -EPIPE;
    notify_remove(n, "a");
    notify_state(n, "READY=1");
    CU_ASSERT_EQUAL(notify_flush(n), 0);
    CU_ASSERT_FALSE(notify_has_failed(n));
    notify_store(n, "a", 0, 0);
    CU_ASSERT_EQUAL(notify_flush(n), 0);
    CU_ASSERT_TRUE(notify_has_failed(n));
    CU_ASSERT_PTR_NULL(notify_free(n));
    n = begin();
    notify_store(n, "a", -1, 0); /* cannot be copied */
    CU_ASSERT_TRUE(notify_has_failed(n));
    CU_ASSERT_PTR_NULL(notify_free(n));
    n = begin();
    t.answer = 0; /* no manager */
    CU_ASSERT_EQUAL(notify_barrier(n), -ENOTCONN);
    CU_ASSERT_TRUE(notify_has_failed(n));
    CU_ASSERT_PTR_NULL(notify_free(n));
}

const struct test_case test_cases[] = {
    TEST(test_order),     TEST(test_silent_manager), TEST(test_removal_of_a_message_on_its_way),
    TEST(test_held_back), TEST(test_failures),       TEST_END,
};
