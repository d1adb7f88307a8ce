/* The rules of the driver that gpu/cuda/ and its users depend on, as the stand-in enforces them: asynchronous
 * work and captures of it, a GPU that is lost. Other tests rely on the errors of the stand-in. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "gpu/cuda/extent.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/standin/libcuda.h"

enum { BYTES = 1000 };

struct fixture {
    struct cuda_driver *driver;
    struct cuda_space *space;
    struct graph_calls graphs;
    struct errmsg e;
};

static bool fixture_init(struct fixture *f)
{
    struct cuda_device_info device;

    *f = (struct fixture){0};
    return cuda_driver_open(&f->driver, &f->e) == 0 &&
           cuda_device_find(f->driver, NULL, &device, &f->e) == 0 &&
           cuda_space_new(f->driver, &device, 1, &f->space, &f->e) == 0 &&
           cuda_space_enter(f->space, &f->e) == 0 && graph_calls_find(f->driver->library, &f->graphs);
}

static void fixture_deinit(struct fixture *f)
{
    standin_left_call call;
    void *address = dlsym(f->driver->library, "standin_left");

    if (address) {
        struct standin_left left;

        memcpy(&call, &address, sizeof(call));
        left = call();
        CU_ASSERT_EQUAL(left.allocations, 0);
        CU_ASSERT_EQUAL(left.streams, 0);
        CU_ASSERT_EQUAL(left.graphs, 0);
    }
    cuda_space_leave(f->space);
    f->space = cuda_space_free(f->space);
    f->driver = cuda_driver_close(f->driver);
}

#define OK(call) CU_ASSERT_EQUAL_FATAL((call), CU_SUCCESS)

static void test_async_work_in_order(void)
{
    struct fixture f;
    const struct cuda_driver *d;
    unsigned char host[BYTES], got[BYTES];
    cu_stream stream;
    cu_ptr a, b;

    CU_ASSERT_TRUE_FATAL(fixture_init(&f));
    d = f.driver;
    memset(host, 7, sizeof(host));
    OK(d->mem_alloc(&a, BYTES));
    OK(d->mem_alloc(&b, BYTES));
    OK(d->stream_create(&stream, CU_STREAM_UNORDERED));
    OK(d->fill_async(a, 1, BYTES, stream));
    OK(d->copy_to_device_async(a + 10, host, 20, stream));
    OK(d->copy_async(b, a, BYTES, stream));
    OK(d->copy_to_host_async(got, b, BYTES, stream));
    OK(d->stream_synchronize(stream));
    for (int i = 0; i < BYTES; i++)
        CU_ASSERT_EQUAL(got[i], i >= 10 && i < 30 ? 7 : 1);
    OK(d->fill(b, 9, 1));
    OK(d->copy_to_host(got, b, 2));
    CU_ASSERT(got[0] == 9 && got[1] == 1);
    OK(d->mem_free(a));
    OK(d->mem_free(b));
    OK(d->stream_destroy(stream));
    fixture_deinit(&f);
}

/* Access beyond an allocation, to freed memory, on a destroyed stream: the stand-in refuses at once. */
static void test_what_is_refused(void)
{
    struct fixture f;
    const struct cuda_driver *d;
    unsigned char host[BYTES];
    cu_stream stream;
    cu_ptr a;

    CU_ASSERT_TRUE_FATAL(fixture_init(&f));
    d = f.driver;
    OK(d->mem_alloc(&a, BYTES));
    OK(d->stream_create(&stream, 0));
    CU_ASSERT_EQUAL(d->fill_async(a, 1, BYTES + 1, stream), CU_INVALID_VALUE);
    CU_ASSERT_EQUAL(d->copy_async(a, a + BYTES - 1, 2, stream), CU_INVALID_VALUE);
    CU_ASSERT_EQUAL(d->copy_to_host_async(host, a + 1, BYTES, stream), CU_INVALID_VALUE);
    OK(d->stream_destroy(stream));
    CU_ASSERT_EQUAL(d->fill_async(a, 1, 1, stream), CU_INVALID_HANDLE);
    CU_ASSERT_EQUAL(d->stream_synchronize(stream), CU_INVALID_HANDLE);
    CU_ASSERT_EQUAL(d->stream_destroy(stream), CU_INVALID_HANDLE);
    OK(d->mem_free(a));
    CU_ASSERT_EQUAL(d->copy_to_device(a, host, 1), CU_INVALID_VALUE);
    CU_ASSERT_EQUAL(d->mem_free(a), CU_INVALID_VALUE);
    fixture_deinit(&f);
}

/* Work that a stream captures has not run. A graph runs as often as it is launched,
 * on the current contents of memory. */
static void test_captures_replay(void)
{
    struct fixture f;
    const struct cuda_driver *d;
    unsigned char got[2];
    cu_stream stream;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_ptr a, b;
    int status = -1;

    CU_ASSERT_TRUE_FATAL(fixture_init(&f));
    d = f.driver;
    OK(d->mem_alloc(&a, BYTES));
    OK(d->mem_alloc(&b, BYTES));
    OK(d->fill(a, 1, BYTES));
    OK(d->fill(b, 1, BYTES));
    OK(d->stream_create(&stream, CU_STREAM_UNORDERED));
    OK(d->stream_is_capturing(stream, &status));
    CU_ASSERT_EQUAL(status, CU_CAPTURE_NONE);
    OK(f.graphs.begin_capture(stream, CU_CAPTURE_THREAD_LOCAL));
    OK(d->stream_is_capturing(stream, &status));
    CU_ASSERT_EQUAL(status, CU_CAPTURE_ACTIVE);
    OK(d->copy_async(b, a, 1, stream));
    OK(d->fill_async(b + 1, 5, 1, stream));
    OK(f.graphs.end_capture(stream, &graph));
    OK(d->copy_to_host(got, b, 2));
    CU_ASSERT(got[0] == 1 && got[1] == 1);
    OK(f.graphs.instantiate(&exec, graph, 0));
    OK(f.graphs.destroy(graph));
    for (unsigned char i = 2; i < 4; i++) {
        OK(d->fill(a, i, BYTES));
        OK(d->fill(b, 0, BYTES));
        OK(f.graphs.launch(exec, stream));
        OK(d->stream_synchronize(stream));
        OK(d->copy_to_host(got, b, 2));
        CU_ASSERT(got[0] == i && got[1] == 5);
    }
    OK(f.graphs.exec_destroy(exec));
    OK(d->mem_free(a));
    OK(d->mem_free(b));
    OK(d->stream_destroy(stream));
    fixture_deinit(&f);
}

enum breach { BREACH_ALLOCATE, BREACH_WAIT_FOR_IT, BREACH_SYNCHRONOUS_COPY, BREACH_WAIT_FOR_ALL, BREACHES };

/* A call that would wait for a capturing stream fails, and invalidates
 * the capture; the stream stays usable. */
static void test_captures_end_by_breach(void)
{
    for (enum breach breach = 0; breach < BREACHES; breach++) {
        struct fixture f;
        const struct cuda_driver *d;
        cu_result r = CU_SUCCESS;
        cu_graph graph = NULL;
        cu_stream stream;
        cu_ptr a, more;
        char byte;

        CU_ASSERT_TRUE_FATAL(fixture_init(&f));
        d = f.driver;
        OK(d->mem_alloc(&a, BYTES));
        OK(d->stream_create(&stream, 0));
        OK(f.graphs.begin_capture(stream, CU_CAPTURE_GLOBAL));
        OK(d->fill_async(a, 1, BYTES, stream));
        switch (breach) {
        case BREACH_ALLOCATE:
            r = d->mem_alloc(&more, BYTES);
            break;
        case BREACH_WAIT_FOR_IT:
            r = d->stream_synchronize(stream);
            break;
        case BREACH_SYNCHRONOUS_COPY:
            r = d->copy_to_host(&byte, a, 1);
            break;
        default:
            r = d->context_synchronize();
        }
        CU_ASSERT_EQUAL(r, breach == BREACH_SYNCHRONOUS_COPY ? CU_CAPTURE_IMPLICIT : CU_CAPTURE_UNSUPPORTED);
        CU_ASSERT_EQUAL(d->fill_async(a, 1, BYTES, stream), CU_CAPTURE_WAS_INVALIDATED);
        CU_ASSERT_EQUAL(f.graphs.end_capture(stream, &graph), CU_CAPTURE_WAS_INVALIDATED);
        CU_ASSERT_PTR_NULL(graph);
        OK(d->fill_async(a, 1, BYTES, stream));
        OK(d->stream_synchronize(stream));
        OK(d->mem_free(a));
        OK(d->stream_destroy(stream));
        fixture_deinit(&f);
    }
}

/* A graph that accesses freed memory: the launch is queued, and every later call of the process fails. */
static bool is_lost_by_a_fault(void)
{
    struct fixture f;
    const struct cuda_driver *d;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_stream stream;
    cu_ptr a, b;
    bool ok = fixture_init(&f);

    d = f.driver;
    ok = ok && d->mem_alloc(&a, BYTES) == CU_SUCCESS && d->mem_alloc(&b, BYTES) == CU_SUCCESS &&
         d->stream_create(&stream, 0) == CU_SUCCESS &&
         f.graphs.begin_capture(stream, CU_CAPTURE_RELAXED) == CU_SUCCESS &&
         d->copy_async(b, a, BYTES, stream) == CU_SUCCESS &&
         f.graphs.end_capture(stream, &graph) == CU_SUCCESS &&
         f.graphs.instantiate(&exec, graph, 0) == CU_SUCCESS && d->mem_free(a) == CU_SUCCESS &&
         f.graphs.launch(exec, stream) == CU_SUCCESS;
    return ok && d->stream_synchronize(stream) == CU_LAUNCH_FAILED && d->mem_free(b) == CU_LAUNCH_FAILED &&
           d->context_push(NULL) == CU_LAUNCH_FAILED;
}

static bool is_lost_on_request(void)
{
    struct fixture f;

    return setenv("STANDIN_LOST", "0", 1) == 0 && !fixture_init(&f) && unsetenv("STANDIN_LOST") == 0;
}

static void test_a_lost_gpu(void)
{
    pid_t child = fork();
    int status;

    if (child == 0)
        _exit(is_lost_on_request() && is_lost_by_a_fault() ? 0 : 1);
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

const char test_suite[] = "standin";
const struct test_case test_cases[] = {
    TEST(test_async_work_in_order),    TEST(test_what_is_refused), TEST(test_captures_replay),
    TEST(test_captures_end_by_breach), TEST(test_a_lost_gpu),      TEST_END,
};
