/*
 * Two processes and one page: one encodes keys and values straight into an extent of GPU memory, another maps the same
 * memory for reading and attends to it. The driver is the stand-in of tests/standin, which runs the kernels on the CPU; with
 * TEST_GPU=1 in the environment it is the real one (tests/gpu/run.sh).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/chunk.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/plan.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/oracle.h"
#include "tests/unit/gpu/view.h"

enum { N_LAYERS = 2, N_KV = 2, GROUP = 3, DIM = 64, N_PAGES = 3, N_EXACT = 5, N_SINK = 4, EXTENT_BYTES = 2 << 20 };

/* What both processes know: made before the fork. */
struct scene {
    struct view view;
    struct page_layout layout;
    float *k, *v;               /* [N_PAGES][64][N_KV][DIM], the same in every layer */
    uint16_t *exact[2];         /* [N_KV][N_EXACT][DIM] */
    float *q;                   /* [N_KV * GROUP][DIM] */
    size_t slot_bytes;
};

/* One process's side of the device. */
struct end {
    struct cuda_driver *driver;
    struct cuda_device_info device;
    struct cuda_space *space;
    struct cuda_kernels *kernels;
    struct cuda_extent *extent;
    cu_ptr table;
    cu_ptr allocations[16];
    unsigned n_allocations;
    struct errmsg e;
};

static float *draw(size_t n)
{
    float *x = malloc(n * sizeof(*x));

    assert(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float) test_rand_normal();
    return x;
}

static void scene_init(struct scene *s)
{
    struct view_options o = { .geometry = view_geometry(N_LAYERS, N_KV * GROUP, N_KV, DIM, DIM), .n_sink = N_SINK,
                              .v_from = PREDICT_HEAD, .bits = -1 };

    view_init(&s->view, &o);
    assert(page_layout_init(&s->layout, &s->view.table, (struct shard) { 0, N_KV }) == 0);
    s->k = draw((size_t) N_PAGES * CHUNK_TOKENS * N_KV * DIM);
    s->v = draw((size_t) N_PAGES * CHUNK_TOKENS * N_KV * DIM);
    s->q = draw((size_t) N_KV * GROUP * DIM);
    for (int side = 0; side < 2; side++) {
        float *x = draw((size_t) N_KV * N_EXACT * DIM);

        s->exact[side] = malloc((size_t) N_KV * N_EXACT * DIM * sizeof(uint16_t));
        assert(s->exact[side]);
        for (size_t i = 0; i < (size_t) N_KV * N_EXACT * DIM; i++)
            s->exact[side][i] = f32_to_f16(x[i]);
        free(x);
    }
    s->slot_bytes = s->layout.slot_bytes[PAGE_FIRST] > s->layout.slot_bytes[PAGE_REST] ? s->layout.slot_bytes[PAGE_FIRST]
                                                                                       : s->layout.slot_bytes[PAGE_REST];
}

static void scene_deinit(struct scene *s)
{
    free(s->k);
    free(s->v);
    free(s->q);
    free(s->exact[0]);
    free(s->exact[1]);
    page_layout_deinit(&s->layout);
    view_deinit(&s->view);
}

static bool on_device(struct end *d, const void *from, size_t bytes, cu_ptr *ret)
{
    bool ok = cuda_space_enter(d->space, &d->e) == 0 && d->driver->mem_alloc(ret, bytes) == CU_SUCCESS;

    if (!ok)
        return false;
    d->allocations[d->n_allocations++] = *ret;
    ok = !from || d->driver->copy_to_device(*ret, from, bytes) == CU_SUCCESS;
    cuda_space_leave(d->space);
    return ok;
}

/* Opens the device and puts the table there. */
static bool end_init(struct end *d, const struct scene *s)
{
    size_t bytes = plan_table_bytes(&s->layout);
    void *image = aligned_alloc(64, (bytes + 63) / 64 * 64);
    bool ok = image && cuda_driver_open(&d->driver, &d->e) == 0 &&
              cuda_device_find(d->driver, NULL, &d->device, &d->e) == 0 &&
              cuda_space_new(d->driver, &d->device, EXTENT_BYTES, &d->space, &d->e) == 0 &&
              cuda_kernels_new(d->space, &d->kernels, &d->e) == 0 && on_device(d, NULL, bytes, &d->table);

    if (ok) {
        plan_table_fill(&s->layout, image, d->table);
        ok = cuda_space_enter(d->space, &d->e) == 0 && d->driver->copy_to_device(d->table, image, bytes) == CU_SUCCESS;
        cuda_space_leave(d->space);
    }
    free(image);
    return ok;
}

static bool end_deinit(struct end *d)
{
    bool ok = true;

    d->extent = cuda_extent_free(d->extent);
    if (d->space && cuda_space_enter(d->space, &d->e) == 0) {
        for (unsigned i = 0; i < d->n_allocations; i++)
            ok = d->driver->mem_free(d->allocations[i]) == CU_SUCCESS && ok;
        cuda_space_leave(d->space);
    }
    d->kernels = cuda_kernels_free(d->kernels);
    d->space = cuda_space_free(d->space);
    d->driver = cuda_driver_close(d->driver);
    return ok;
}

static size_t payload_at(const struct scene *s, size_t page)
{
    return page * s->slot_bytes + PAGE_HEADER_BYTES;
}

static bool synchronize(struct end *d)
{
    bool ok = cuda_space_enter(d->space, &d->e) == 0;

    ok = ok && d->driver->stream_synchronize(NULL) == CU_SUCCESS;
    cuda_space_leave(d->space);
    return ok;
}

/* ---- writer ------------------------------------------------------------------------------------------------------ */

/* Encodes all pages of all layers where they will stay; sinks are what the exact rows begin with. */
static bool write_pages(struct end *d, const struct scene *s)
{
    size_t piece = (size_t) CHUNK_TOKENS * N_KV * DIM * sizeof(float);
    struct plan_chunk chunks[N_PAGES];
    struct plan_encode plan = { .table = (const struct plan_table *) (uintptr_t) d->table, .dtype = PLAN_F32 };
    uint32_t zero = 0, not_finite = 1;
    cu_ptr k, v, list, flag;

    if (!on_device(d, s->k, N_PAGES * piece, &k) || !on_device(d, s->v, N_PAGES * piece, &v) ||
        !on_device(d, &zero, sizeof(zero), &flag))
        return false;
    for (size_t i = 0; i < N_PAGES; i++)
        chunks[i] = (struct plan_chunk) {
            .payload = (uint8_t *) (uintptr_t) (cuda_extent_address(d->extent) + payload_at(s, i)),
            .k = (const void *) (uintptr_t) (k + i * piece), .v = (const void *) (uintptr_t) (v + i * piece),
            .n_exact = i == 0 ? N_SINK : 0,
        };
    if (!on_device(d, chunks, sizeof(chunks), &list))
        return false;
    plan.chunks = (const struct plan_chunk *) (uintptr_t) list;
    plan.not_finite = (uint32_t *) (uintptr_t) flag;
    for (plan.layer = 0; plan.layer < N_LAYERS; plan.layer++)
        if (cuda_encode(d->kernels, &s->layout, &plan, N_PAGES, NULL, &d->e) < 0)
            return false;
    for (uint32_t i = 0; i < N_LAYERS * N_KV * 2; i++)
        if (cuda_extent_write(d->extent,
                              payload_at(s, 0) + page_sink_off(&s->layout, i / 2 / N_KV, i / 2 % N_KV, (enum side) (i % 2)),
                              s->exact[i % 2], (size_t) N_SINK * DIM * sizeof(uint16_t), &d->e) < 0)
            return false;
    if (!synchronize(d) || cuda_space_enter(d->space, &d->e) < 0)
        return false;
    (void) d->driver->copy_to_host(&not_finite, flag, sizeof(not_finite));
    cuda_space_leave(d->space);
    return not_finite == 0;
}

/* ---- reader ------------------------------------------------------------------------------------------------------ */

/* The pages as bytes: they are what the CPU encodes from the same vectors. */
static bool compare_pages(struct end *d, const struct scene *s, uint8_t *pages[N_PAGES])
{
    struct encode_counts counts = { 0 };
    struct chunk_work w;
    bool same = true;

    assert(chunk_work_init(&w, &s->view.table.geometry, s->layout.shard) == 0);
    for (size_t i = 0; i < N_PAGES; i++) {
        size_t bytes = s->layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST], codes = s->layout.sinks_off;
        uint8_t *want = calloc(1, bytes);
        float *x = malloc((size_t) CHUNK_TOKENS * DIM * sizeof(*x));

        pages[i] = malloc(bytes);
        assert(want && x && pages[i]);
        same = cuda_extent_read(d->extent, payload_at(s, i), pages[i], bytes, &d->e) == 0 && same;
        for (uint32_t n = 0; n < N_LAYERS * 2 * N_KV; n++) {
            uint32_t layer = n / (2 * N_KV), side = n / N_KV % 2, head = n % N_KV;
            const float *from = (side ? s->v : s->k) + (i * CHUNK_TOKENS * N_KV + head) * DIM;
            const struct codec *codec = table_codec(&s->view.table, layer, head, (enum side) side);

            for (size_t t = 0; t < CHUNK_TOKENS; t++)
                memcpy(x + t * DIM, i == 0 && t < N_SINK ? codec->enc_mean : from + t * N_KV * DIM, DIM * sizeof(*x));
            assert((side ? chunk_encode_values : chunk_encode_keys)(&s->layout, layer, head, x, DIM, want, &counts, &w) == 0);
        }
        same = memcmp(want, pages[i], codes) == 0 && same;
        free(want);
        free(x);
    }
    chunk_work_deinit(&w);
    return same;
}

/* One query against the mapped pages, and its error in what oracle.c allows (tests/unit/gpu/cuda/test_kernels.c). */
static bool attend_to_pages(struct end *d, const struct scene *s, uint8_t *const pages[N_PAGES])
{
    size_t floats = (size_t) N_KV * GROUP * DIM, n_splits = 2;
    const uint8_t *payloads[N_PAGES];
    struct plan_seq seq = { .n_pages = N_PAGES, .n_exact = N_EXACT, .exact_ld = N_EXACT };
    struct plan_attend plan = { .table = (const struct plan_table *) (uintptr_t) d->table, .layer = 1,
                                .n_splits = (uint32_t) n_splits, .n_q = 1 };
    cu_ptr list, exact[2], q, out, partials, seqs;
    float *got = malloc(floats * sizeof(*got));
    bool ok = got != NULL;

    for (size_t i = 0; i < N_PAGES; i++)
        payloads[i] = (const uint8_t *) (uintptr_t) (cuda_extent_address(d->extent) + payload_at(s, i));
    for (int side = 0; side < 2; side++)
        ok = ok && on_device(d, s->exact[side], (size_t) N_KV * N_EXACT * DIM * sizeof(uint16_t), &exact[side]);
    ok = ok && on_device(d, payloads, sizeof(payloads), &list) && on_device(d, s->q, floats * sizeof(float), &q) &&
         on_device(d, NULL, floats * sizeof(float), &out) &&
         on_device(d, NULL, N_KV * n_splits * PLAN_PARTIAL_FLOATS(plan_columns_max(&s->layout), DIM) * sizeof(float), &partials);
    if (!ok)
        return false;
    seq.payloads = (uint8_t *const *) (uintptr_t) list;
    seq.exact_k = (uint16_t *) (uintptr_t) exact[0];
    seq.exact_v = (uint16_t *) (uintptr_t) exact[1];
    ok = on_device(d, &seq, sizeof(seq), &seqs);
    plan.partials = (float *) (uintptr_t) partials;
    plan.items[0] = (struct plan_item) {
        .seq = (const struct plan_seq *) (uintptr_t) seqs, .q = (const float *) (uintptr_t) q,
        .out = (float *) (uintptr_t) out, .n_q = 1,
    };
    ok = ok && cuda_attend(d->kernels, &s->layout, &plan, 1, NULL, &d->e) == 0 && synchronize(d) &&
         cuda_space_enter(d->space, &d->e) == 0;
    ok = ok && d->driver->copy_to_host(got, out, floats * sizeof(float)) == CU_SUCCESS;
    cuda_space_leave(d->space);
    for (uint32_t head = 0; ok && head < N_KV; head++) {
        const struct attend_args a = {
            .layout = &s->layout, .layer = 1, .head = head, .payloads = (const uint8_t *const *) pages, .n_pages = N_PAGES,
            .n_sink = N_SINK, .exact_k = s->exact[0] + (size_t) head * N_EXACT * DIM,
            .exact_v = s->exact[1] + (size_t) head * N_EXACT * DIM, .exact_stride = DIM,
            .exact_first = N_PAGES * CHUNK_TOKENS, .n_exact = N_EXACT, .q = s->q + (size_t) head * GROUP * DIM,
            .q_stride = GROUP * DIM, .q_first = N_PAGES * CHUNK_TOKENS + N_EXACT - 1, .n_q = 1, .out = got + (size_t) head * GROUP * DIM,
            .out_stride = GROUP * DIM,
        };
        struct oracle_report r = oracle_packed(&a, NULL);

        ok = r.error <= r.tolerance + 6 * (r.tolerance_half - r.tolerance);
    }
    free(got);
    return ok;
}

/* The reading process, from the descriptor on. Exits with the number of what went wrong; 0: nothing. */
static void reader_main(int socket, const struct scene *s)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec iov = { &byte, 1 };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
    uint8_t *pages[N_PAGES] = { NULL };
    struct end d = { 0 };
    int fd = -1;

    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m))
        _exit(1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    if (!end_init(&d, s))
        _exit(2);
    if (cuda_extent_import(d.space, fd, EXTENT_BYTES, CU_ACCESS_READ, &d.extent, &d.e) < 0)
        _exit(3);
    if (!compare_pages(&d, s, pages))
        _exit(4);
    if (!attend_to_pages(&d, s, pages))
        _exit(5);
    for (size_t i = 0; i < N_PAGES; i++)
        free(pages[i]);
    _exit(end_deinit(&d) ? 0 : 6);
}

static void send_fd(int socket, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
    struct iovec iov = { &byte, 1 };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    *c = (struct cmsghdr) { .cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    CU_ASSERT_EQUAL(sendmsg(socket, &m, 0), 1);
}

static void test_one_writes_another_reads(void)
{
    struct scene s;
    struct end d = { 0 };
    _cleanup_(closep) int fd = -1;
    int sockets[2], status = -1, copy;
    pid_t reader;
    bool written;

    scene_init(&s);
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    reader = fork(); /* before a driver is opened: it does not survive a fork */
    if (reader == 0)
        reader_main(sockets[1], &s);
    written = end_init(&d, &s) && cuda_extent_new(d.space, EXTENT_BYTES, &fd, &d.e) == 0;
    copy = written ? dup(fd) : -1;
    written = written && cuda_extent_import(d.space, copy, EXTENT_BYTES, CU_ACCESS_READ_WRITE, &d.extent, &d.e) == 0 &&
              write_pages(&d, &s);
    CU_ASSERT_TRUE(written);
    if (!written)
        printf("    %s\n", d.e.text);
    CU_ASSERT_TRUE(end_deinit(&d)); /* the writer's mapping may go: the descriptor holds the memory */
    send_fd(sockets[0], fd);
    CU_ASSERT_EQUAL(waitpid(reader, &status, 0), reader);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    (void) close(sockets[0]);
    (void) close(sockets[1]);
    scene_deinit(&s);
}

/* A kernel that cannot be loaded or launched: an errno and a sentence, and everything can still be closed. */
static void test_failing_launches(void)
{
    static const char *const calls[] = { "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel" };

    if (getenv("TEST_GPU"))
        return;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct scene s;
        struct end d = { 0 };
        char setting[96];
        bool ok;

        scene_init(&s);
        (void) snprintf(setting, sizeof(setting), "%s:2:%d", calls[i], CU_LAUNCH_FAILED);
        CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
        ok = end_init(&d, &s);
        CU_ASSERT_EQUAL(ok, i == 2);
        if (ok) { /* nothing to do: no launch */
            CU_ASSERT_EQUAL(cuda_decode(d.kernels, &s.layout, &(struct plan_decode) { 0 }, 0, NULL, &d.e), 0);
            CU_ASSERT_EQUAL(cuda_encode(d.kernels, &s.layout, &(struct plan_encode) { 0 }, 0, NULL, &d.e), 0);
            CU_ASSERT_EQUAL(cuda_attend(d.kernels, &s.layout, &(struct plan_attend) { .n_q = 1 }, 0, NULL, &d.e), 0);
        }
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
        CU_ASSERT_TRUE(ok || strstr(d.e.text, "start it again"));
        CU_ASSERT_TRUE(end_deinit(&d));
        scene_deinit(&s);
    }
}

const char test_suite[] = "gpu launches";
const struct test_case test_cases[] = { TEST(test_one_writes_another_reads), TEST(test_failing_launches), TEST_END };
