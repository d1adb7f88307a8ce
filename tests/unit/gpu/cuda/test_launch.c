/* Two processes and one page: one process appends keys and values to a sequence whose pages lie in an
 * extent of GPU memory; the other maps the same memory for reading, checks it and attends to it. */
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
#include "gpu/cuda/device_table.h"
#include "proto/page.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/gpu_fixture.h"
#include "tests/unit/gpu/attend_oracle.h"
#include "tests/unit/gpu/memory_table.h"

enum {
    N_LAYERS = 2,
    N_KV = 2,
    GROUP = 3,
    DIM = 64,
    N_PAGES = 3,
    N_EXACT = 5,
    N_SINK = 4,
    EXTENT_BYTES = 2 << 20
};
enum {
    N_TOKENS = (N_PAGES + 1) * CHUNK_TOKENS,
    TAIL_ROWS = N_TOKENS + 1
}; /* the last chunk is not packed yet */

/* The input of both processes, made before fork(). */
struct input {
    struct memory_table memory;
    struct page_layout layout;
    float *x[2];        /* [N_TOKENS][N_KV][DIM], the same in every layer */
    uint16_t *exact[2]; /* [N_KV][N_EXACT][DIM] */
    float *q;           /* [N_KV * GROUP][DIM] */
    size_t slot_bytes;
};

static float *draw(size_t n)
{
    float *x = malloc(n * sizeof(*x));

    assert(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float) test_rand_normal();
    return x;
}

static void input_init(struct input *s)
{
    struct memory_table_options o = {.geometry =
                                         memory_table_geometry(N_LAYERS, N_KV * GROUP, N_KV, DIM, DIM),
                                     .n_sink = N_SINK,
                                     .v_from = PREDICT_HEAD,
                                     .bits = -1};

    memory_table_init(&s->memory, &o);
    assert(page_layout_init(&s->layout, &s->memory.table, (struct shard){0, N_KV}) == 0);
    for (int side = 0; side < 2; side++)
        s->x[side] = draw((size_t) N_TOKENS * N_KV * DIM);
    s->q = draw((size_t) N_KV * GROUP * DIM);
    for (int side = 0; side < 2; side++) {
        float *x = draw((size_t) N_KV * N_EXACT * DIM);

        s->exact[side] = malloc((size_t) N_KV * N_EXACT * DIM * sizeof(uint16_t));
        assert(s->exact[side]);
        for (size_t i = 0; i < (size_t) N_KV * N_EXACT * DIM; i++)
            s->exact[side][i] = f32_to_f16(x[i]);
        free(x);
    }
    s->slot_bytes = s->layout.slot_bytes[PAGE_FIRST] > s->layout.slot_bytes[PAGE_REST]
                        ? s->layout.slot_bytes[PAGE_FIRST]
                        : s->layout.slot_bytes[PAGE_REST];
}

static void input_deinit(struct input *s)
{
    free(s->x[SIDE_K]);
    free(s->x[SIDE_V]);
    free(s->q);
    free(s->exact[0]);
    free(s->exact[1]);
    page_layout_deinit(&s->layout);
    memory_table_deinit(&s->memory);
}

static size_t payload_at(const struct input *s, size_t page)
{
    return page * s->slot_bytes + PAGE_HEADER_BYTES;
}

/* ---- writer ---- */

/* Appends all tokens to a sequence whose pages are written in the extent, and one more token, before which
 * chunks are packed. */
static bool write_pages(struct gpu_fixture *d, struct cuda_extent *x, const struct input *s,
                        uint32_t ret_crc[N_PAGES])
{
    size_t tail = (size_t) N_KV * TAIL_ROWS * DIM * sizeof(uint16_t),
           piece = (size_t) N_TOKENS * N_KV * DIM * sizeof(float);
    struct launch_append a = {
        .table = (const struct device_table *) (uintptr_t) gpu_fixture_put_table(d, &s->layout),
        .dtype = LAUNCH_F32};
    uint8_t *payloads[N_PAGES];
    uint32_t zero = 0, faults;
    struct device_seq seq = {.n_claimed = N_PAGES, .exact_ld = TAIL_ROWS};
    struct launch_crc crc = {.n = 1};
    cu_ptr list, sums = gpu_fixture_put(d, NULL, N_PAGES * sizeof(uint32_t));

    for (size_t i = 0; i < N_PAGES; i++)
        payloads[i] = (uint8_t *) (uintptr_t) (cuda_extent_address(x) + payload_at(s, i));
    list = gpu_fixture_put(d, payloads, sizeof(payloads));
    seq.payloads = (uint8_t *const *) (uintptr_t) list;
    seq.faults = (uint32_t *) (uintptr_t) gpu_fixture_put(d, &zero, sizeof(zero));
    a.items[0].k = (const void *) (uintptr_t) gpu_fixture_put(d, s->x[SIDE_K], piece);
    a.items[0].v = (const void *) (uintptr_t) gpu_fixture_put(d, s->x[SIDE_V], piece);
    for (a.layer = 0; a.layer < N_LAYERS; a.layer++) {
        seq.exact_k = (uint16_t *) (uintptr_t) gpu_fixture_put(d, NULL, tail);
        seq.exact_v = (uint16_t *) (uintptr_t) gpu_fixture_put(d, NULL, tail);
        a.items[0].seq = (struct device_seq *) (uintptr_t) gpu_fixture_put(d, &seq, sizeof(seq));
        a.items[0].n_new = N_TOKENS;
        a.items[0].n_pack = 0;
        gpu_fixture_ok(d, cuda_append(d->kernels, &s->layout, &a, 1, NULL, &d->e));
        a.items[0].n_new = 1; /* the first one again */
        a.items[0].n_pack = N_PAGES;
        gpu_fixture_ok(d, cuda_append(d->kernels, &s->layout, &a, 1, NULL, &d->e));
    }
    for (size_t i = 0; i < N_PAGES; i++) {
        crc.payloads = (const uint8_t *const *) (uintptr_t) (list + i * sizeof(*payloads));
        crc.crc32c = (uint32_t *) (uintptr_t) (sums + i * sizeof(uint32_t));
        crc.bytes = s->layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];
        gpu_fixture_ok(d, cuda_crc(d->kernels, &crc, NULL, &d->e));
    }
    gpu_fixture_get(d, ret_crc, sums, N_PAGES * sizeof(uint32_t));
    gpu_fixture_get(d, &faults, (cu_ptr) (uintptr_t) seq.faults, sizeof(faults));
    return faults == 0;
}

/* ---- reader ---- */

/* Packs one page as the CPU does. */
static void pack_on_cpu(const struct input *s, size_t page, uint8_t *payload, struct chunk_work *w)
{
    struct encode_counts counts = {0};
    float x[CHUNK_TOKENS * DIM];

    for (uint32_t n = 0; n < N_LAYERS * 2 * N_KV; n++) {
        uint32_t layer = n / (2 * N_KV), side = n / N_KV % 2, head = n % N_KV;
        const struct codec *c = table_codec(&s->memory.table, layer, head, (enum side) side);
        uint8_t *sinks = payload + (page == 0 ? page_sink_off(&s->layout, layer, head, (enum side) side) : 0);

        for (uint32_t i = 0; i < CHUNK_TOKENS * DIM; i++) {
            uint32_t col = i % DIM, is_sink = page == 0 && i / DIM < N_SINK;
            uint16_t row = f32_to_f16(
                s->x[side][((page * CHUNK_TOKENS + i / DIM) * N_KV + head) * DIM + col] - c->mean[col]);

            x[i] = is_sink ? c->enc_mean[col] : c->mean[col] + f16_to_f32(row);
            if (is_sink)
                memcpy(sinks + i * sizeof(row), &row, sizeof(row));
        }
        assert(chunk_encode(&s->layout, layer, head, (enum side) side, x, DIM, payload, &counts, w) == 0);
    }
}

/* Compares the pages and their checksums with what the CPU packs from the same vectors. */
static bool compare_pages(struct gpu_fixture *d, struct cuda_extent *x, const struct input *s,
                          const uint32_t crc[N_PAGES], uint8_t *pages[N_PAGES])
{
    struct chunk_work w;
    bool same = true;

    assert(chunk_work_init(&w, &s->memory.table.geometry, s->layout.shard) == 0);
    for (size_t i = 0; i < N_PAGES; i++) {
        size_t bytes = s->layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];
        uint8_t *expected = calloc(1, bytes);

        pages[i] = malloc(bytes);
        assert(expected && pages[i]);
        same = cuda_extent_read(x, payload_at(s, i), pages[i], bytes, &d->e) == 0 && same;
        pack_on_cpu(s, i, expected, &w);
        same = memcmp(expected, pages[i], bytes) == 0 && crc32c(expected, bytes) == crc[i] && same;
        free(expected);
    }
    chunk_work_deinit(&w);
    return same;
}

/* One query over the mapped pages. Returns its error relative to the tolerance of attend_oracle.c. */
static bool attend_to_pages(struct gpu_fixture *d, struct cuda_extent *x, const struct input *s,
                            uint8_t *const pages[N_PAGES])
{
    size_t floats = (size_t) N_KV * GROUP * DIM, n_splits = 2,
           tail = (size_t) N_KV * N_EXACT * DIM * sizeof(uint16_t);
    size_t partials =
        N_KV * n_splits * LAUNCH_PARTIAL_FLOATS(device_table_columns_max(&s->layout), DIM) * sizeof(float);
    uint8_t *payloads[N_PAGES];
    struct device_seq seq = {
        .n_claimed = N_PAGES, .n_pages = N_PAGES, .n_exact = N_EXACT, .exact_ld = N_EXACT};
    struct launch_attend launch_args = {
        .table = (const struct device_table *) (uintptr_t) gpu_fixture_put_table(d, &s->layout),
        .layer = 1,
        .n_splits = (uint32_t) n_splits,
        .n_q = 1};
    cu_ptr out = gpu_fixture_put(d, NULL, floats * sizeof(float));
    float *got = malloc(floats * sizeof(*got));
    bool ok = true;

    assert(got);
    for (size_t i = 0; i < N_PAGES; i++)
        payloads[i] = (uint8_t *) (uintptr_t) (cuda_extent_address(x) + payload_at(s, i));
    seq.payloads = (uint8_t *const *) (uintptr_t) gpu_fixture_put(d, payloads, sizeof(payloads));
    seq.exact_k = (uint16_t *) (uintptr_t) gpu_fixture_put(d, s->exact[SIDE_K], tail);
    seq.exact_v = (uint16_t *) (uintptr_t) gpu_fixture_put(d, s->exact[SIDE_V], tail);
    launch_args.partials = (float *) (uintptr_t) gpu_fixture_put(d, NULL, partials);
    launch_args.items[0] = (struct launch_attend_item){
        .seq = (const struct device_seq *) (uintptr_t) gpu_fixture_put(d, &seq, sizeof(seq)),
        .q = (const float *) (uintptr_t) gpu_fixture_put(d, s->q, floats * sizeof(float)),
        .out = (float *) (uintptr_t) out,
        .n_q = 1,
    };
    gpu_fixture_ok(d, cuda_attend(d->kernels, &s->layout, &launch_args, 1, NULL, &d->e));
    gpu_fixture_get(d, got, out, floats * sizeof(float));
    for (uint32_t head = 0; head < N_KV; head++) {
        const struct attend_args a = {
            .layout = &s->layout,
            .layer = 1,
            .head = head,
            .payloads = (const uint8_t *const *) pages,
            .n_pages = N_PAGES,
            .n_sink = N_SINK,
            .exact_k = s->exact[0] + (size_t) head * N_EXACT * DIM,
            .exact_v = s->exact[1] + (size_t) head * N_EXACT * DIM,
            .exact_stride = DIM,
            .exact_first = N_PAGES * CHUNK_TOKENS,
            .n_exact = N_EXACT,
            .q = s->q + (size_t) head * GROUP * DIM,
            .q_stride = GROUP * DIM,
            .q_first = N_PAGES * CHUNK_TOKENS + N_EXACT - 1,
            .n_q = 1,
            .out = got + (size_t) head * GROUP * DIM,
            .out_stride = GROUP * DIM,
        };
        struct oracle_report r = oracle_packed(&a, NULL);

        ok = ok && r.error <= r.tolerance + 6 * (r.tolerance_half - r.tolerance);
    }
    free(got);
    return ok;
}

/* The reading process, once it has the descriptor. Exits with the number of the failed step; 0: none. */
static void reader_main(int socket, const struct input *s)
{
    uint32_t crc[N_PAGES];
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {crc, sizeof(crc)};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    uint8_t *pages[N_PAGES] = {NULL};
    struct cuda_extent *x;
    struct gpu_fixture d;
    int fd = -1;

    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != sizeof(crc) || !CMSG_FIRSTHDR(&m))
        _exit(1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    if (!gpu_fixture_init(&d, EXTENT_BYTES))
        _exit(2);
    if (cuda_extent_import(d.space, fd, EXTENT_BYTES, CU_ACCESS_READ, &x, &d.e) < 0)
        _exit(3);
    if (!compare_pages(&d, x, s, crc, pages))
        _exit(4);
    if (!attend_to_pages(&d, x, s, pages))
        _exit(5);
    for (size_t i = 0; i < N_PAGES; i++)
        free(pages[i]);
    (void) cuda_extent_free(x);
    _exit(gpu_fixture_deinit(&d) ? 0 : 6);
}

static void send_fd(int socket, int fd, uint32_t crc[N_PAGES])
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {crc, N_PAGES * sizeof(*crc)};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    *c =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    CU_ASSERT_EQUAL(sendmsg(socket, &m, 0), (ssize_t) iov.iov_len);
}

static void test_one_writes_another_reads(void)
{
    struct input s;
    struct gpu_fixture d;
    struct cuda_extent *x;
    _cleanup_(closep) int fd = -1;
    int sockets[2], status = -1;
    uint32_t crc[N_PAGES];
    pid_t reader;

    input_init(&s);
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    reader = fork(); /* before a driver is opened: it does not survive fork() */
    if (reader == 0)
        reader_main(sockets[1], &s);
    CU_ASSERT_TRUE_FATAL(gpu_fixture_init(&d, EXTENT_BYTES));
    gpu_fixture_ok(&d, cuda_extent_new(d.space, EXTENT_BYTES, &fd, &d.e));
    gpu_fixture_ok(&d, cuda_extent_import(d.space, dup(fd), EXTENT_BYTES, CU_ACCESS_READ_WRITE, &x, &d.e));
    CU_ASSERT_TRUE(write_pages(&d, x, &s, crc));
    (void) cuda_extent_free(x); /* the mapping of the writer may end: the descriptor holds the memory */
    CU_ASSERT_TRUE(gpu_fixture_deinit(&d));
    send_fd(sockets[0], fd, crc);
    CU_ASSERT_EQUAL(waitpid(reader, &status, 0), reader);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    (void) close(sockets[0]);
    (void) close(sockets[1]);
    input_deinit(&s);
}

/* A kernel that cannot be loaded or launched: an errno and a sentence, and everything can still be closed. */
static void test_failing_launches(void)
{
    static const char *const calls[] = {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"};
    struct input s;

    if (getenv("TEST_GPU"))
        return;
    input_init(&s);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct gpu_fixture d;
        char setting[96];
        bool ok;

        (void) snprintf(setting, sizeof(setting), "%s:2:%d", calls[i], CU_LAUNCH_FAILED);
        CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
        ok = gpu_fixture_init(&d, EXTENT_BYTES);
        CU_ASSERT_EQUAL(ok, i == 2);
        if (ok) { /* without work there is no launch; then one launch succeeds and one fails */
            cu_ptr at = gpu_fixture_put(&d, NULL, sizeof(uint32_t));

            CU_ASSERT_EQUAL(cuda_read(d.kernels, &s.layout, &(struct launch_read){0}, NULL, &d.e), 0);
            CU_ASSERT_EQUAL(cuda_crc(d.kernels, &(struct launch_crc){0}, NULL, &d.e), 0);
            CU_ASSERT_EQUAL(cuda_write_words(d.kernels, at, NULL, 0, NULL, &d.e), 0);
            CU_ASSERT_EQUAL(
                cuda_attend(d.kernels, &s.layout, &(struct launch_attend){.n_q = 1}, 0, NULL, &d.e), 0);
            CU_ASSERT_EQUAL(cuda_write_words(d.kernels, at, setting, sizeof(uint32_t), NULL, &d.e), 0);
            CU_ASSERT_EQUAL(cuda_write_words(d.kernels, at, setting, sizeof(uint32_t), NULL, &d.e), -EIO);
        }
        CU_ASSERT_PTR_NOT_NULL(strstr(d.e.text, "start it again"));
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
        CU_ASSERT_TRUE(gpu_fixture_deinit(&d));
    }
    input_deinit(&s);
}

/* The newest kernel of the device that takes the table and the call is
 * chosen; a general one if there is none. */
static void test_choice_of_kernel(void)
{
    static const struct {
        const char *compute;
        uint32_t dim, group;
        enum prediction v_from;
        unsigned n_q;
        const char *expected;
        unsigned n_blocks;
    } cases[] = {
        {"90", 128, 8, PREDICT_NONE, 1, "kvc_attend80_128_rows_8", 2},
        {"90", 96, 4, PREDICT_HEAD, 1, "kvc_attend_128_rows_8", 2},
        {"75", 64, 3, PREDICT_HEAD, 1, "kvc_attend_64_rows_8", 2},
        {"80", 64, 3, PREDICT_HEAD, 1, "kvc_attend80_64_rows_4", 3},
        {"100", 64, 3, PREDICT_HEAD, 1, "kvc_attend80_64_rows_4", 3},
        {"80", 64, 5, PREDICT_HEAD, 9, "kvc_attend80_64_rows_16", 2},
        {"80", 256, 16, PREDICT_NONE, 1, "kvc_attend_256_rows_16", 2},
    };

    if (getenv("TEST_GPU"))
        return;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct memory_table_options o = {
            .geometry = memory_table_geometry(1, N_KV * cases[i].group, N_KV, cases[i].dim, cases[i].dim),
            .v_from = cases[i].v_from,
            .bits = 2};
        struct page_layout layout;
        struct memory_table memory;
        struct gpu_fixture d;

        memory_table_init(&memory, &o);
        assert(page_layout_init(&layout, &memory.table, (struct shard){0, N_KV}) == 0);
        CU_ASSERT_EQUAL(setenv("STANDIN_COMPUTE", cases[i].compute, 1), 0);
        CU_ASSERT_TRUE(gpu_fixture_init(&d, EXTENT_BYTES));
        CU_ASSERT_STRING_EQUAL(cuda_attend_name(d.kernels, &layout, cases[i].n_q), cases[i].expected);
        CU_ASSERT_EQUAL(cuda_attend_blocks(d.kernels, &layout, cases[i].n_q), cases[i].n_blocks);
        CU_ASSERT_TRUE(gpu_fixture_deinit(&d));
        page_layout_deinit(&layout);
        memory_table_deinit(&memory);
    }
    CU_ASSERT_EQUAL(unsetenv("STANDIN_COMPUTE"), 0);
}

const char test_suite[] = "gpu launches";
const struct test_case test_cases[] = {TEST(test_one_writes_another_reads), TEST(test_failing_launches),
                                       TEST(test_choice_of_kernel), TEST_END};
