/* Every public function with NULL, wrong sizes and in wrong order: an errno, a
 * sentence, untouched outputs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvcobra-eval.h"
#include "client/kvcobra-call.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

static void test_null_handles(void)
{
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    kvc_usage usage = {.struct_bytes = sizeof(usage)};
    kvc_model_id id = {.struct_bytes = sizeof(id)};
    kvc_eval_options o = {.struct_bytes = sizeof(o)};
    float x[64] = {0};
    uint32_t token = 0;
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_client_new(NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_connect(NULL, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_connect_with(NULL, NULL), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(kvc_last_error(NULL));
    CU_ASSERT_PTR_NULL(kvc_client_free(NULL));
    CU_ASSERT_EQUAL(kvc_model_open(NULL, &id, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_open_table(NULL, &id, x, 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_get_info(NULL, &info), -EINVAL);
    CU_ASSERT_PTR_NULL(kvc_model_free(NULL));
    CU_ASSERT_EQUAL(kvc_seq_new(NULL, NULL, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_new_eval(NULL, &o, NULL), -EINVAL);
    CU_ASSERT_PTR_NULL(kvc_seq_free(NULL));
    CU_ASSERT_EQUAL(kvc_seq_match(NULL, &token, 1, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(NULL, 0, KVC_F32, x, x, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend(NULL, 0, x, 1, x), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_read(NULL, 0, KVC_K, 0, 1, x), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_commit(NULL, &token, 1, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(NULL, 0, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_fork(NULL, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_length(NULL), 0);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(NULL, &usage), -EINVAL);
    CU_ASSERT_EQUAL(kvc_call(NULL, 20, NULL, 0, -1, NULL), -EINVAL);
    CU_ASSERT_STRING_EQUAL(kvc_version(), "0.1.0");
}

#define REFUSED(call, err)                                                                                   \
    do {                                                                                                     \
        CU_ASSERT_EQUAL(call, err);                                                                          \
        CU_ASSERT(strlen(kvc_last_error(m.client)) > 10);                                                    \
    } while (0)

/* A batch of the largest size is refused for its strides, one token more for its size. */
static void test_largest_append(void)
{
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    kvc_append_item item = {
        .struct_bytes = sizeof(item), .n_new = KVC_APPEND_TOKENS_MAX, .k_token_stride = 1};
    float x[128] = {0};

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &item.seq), 0);
    item.k = item.v = x;
    REFUSED(kvc_seq_append_batch(&item, 1, 0, KVC_F32), -EINVAL);
    CU_ASSERT_PTR_NULL(strstr(kvc_last_error(m.client), "tokens in one append"));
    item.n_new++;
    REFUSED(kvc_seq_append_batch(&item, 1, 0, KVC_F32), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "tokens in one append"));
    embedded_free(&m);
}

static void test_arguments(void)
{
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    kvc_seq *s = NULL, *t = (kvc_seq *) &m;
    float x[128] = {0};
    char salt[1025] = {0};
    size_t n = 5;

    REFUSED(kvc_seq_new(m.model, NULL, 0, NULL), -EINVAL);
    REFUSED(kvc_seq_new(m.model, NULL, 3, &t), -EINVAL);
    REFUSED(kvc_seq_new(m.model, salt, 1025, &t), -EINVAL);
    CU_ASSERT_PTR_EQUAL(t, &m);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, salt, 1024, &s), 0);
    REFUSED(kvc_seq_append(s, 2, KVC_F32, x, x, 1), -EINVAL);
    REFUSED(kvc_seq_append(s, 0, (enum kvc_dtype) 3, x, x, 1), -EINVAL);
    REFUSED(kvc_seq_append(s, 0, KVC_F32, NULL, x, 1), -EINVAL);
    REFUSED(kvc_seq_append(s, 0, KVC_F32, x, NULL, 1), -EINVAL);
    REFUSED(kvc_seq_append(s, 0, KVC_F32, x, x, KVC_APPEND_TOKENS_MAX + 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, NULL, NULL, 0), 0);
    REFUSED(kvc_seq_attend(s, 0, x, 1, x), -EINVAL); /* nothing there yet */
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, NULL, 0, NULL), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 3), 0);
    REFUSED(kvc_seq_attend(s, 2, x, 1, x), -EINVAL);
    REFUSED(kvc_seq_attend(s, 0, x, 4, x), -EINVAL);
    REFUSED(kvc_seq_attend(s, 0, NULL, 1, x), -EINVAL);
    REFUSED(kvc_seq_attend(s, 0, x, 1, NULL), -EINVAL);
    REFUSED(kvc_seq_read(s, 0, (enum kvc_side) 2, 0, 1, x), -EINVAL);
    REFUSED(kvc_seq_read(s, 0, KVC_K, 3, 1, x), -EINVAL);
    REFUSED(kvc_seq_read(s, 0, KVC_K, SIZE_MAX, 2, x), -EINVAL);
    REFUSED(kvc_seq_read(s, 0, KVC_K, 1, SIZE_MAX, x), -EINVAL);
    REFUSED(kvc_seq_read(s, 0, KVC_K, 0, 1, NULL), -EINVAL);
    REFUSED(kvc_seq_truncate(s, 0, NULL), -EINVAL);
    REFUSED(kvc_seq_fork(s, NULL), -EINVAL);
    REFUSED(kvc_seq_commit(s, NULL, 3, &n), -EINVAL);
    REFUSED(kvc_seq_match(s, NULL, 3, &n), -EINVAL);
    REFUSED(kvc_seq_match(s, (const uint32_t *) x, 3, &n), -EINVAL); /* not empty */
    REFUSED(kvc_call(m.client, 20, NULL, 0, -1, NULL), -ENOTCONN);
    CU_ASSERT_EQUAL(n, 5);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 3);
    CU_ASSERT_STRING_EQUAL((kvc_seq_truncate(s, 3, &n), kvc_last_error(m.client)), "no error"); /* cleared */
    embedded_free(&m);
}

static void test_models(void)
{
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    kvc_model_id id = embedded_id(&m), bad;
    kvc_model *model = NULL;
    uint8_t *damaged = malloc(m.n_bytes);

    REFUSED(kvc_model_open(m.client, &id, &model), -ENOTCONN);
    REFUSED(kvc_model_open_table(m.client, NULL, m.bytes, m.n_bytes, &model), -EINVAL);
    REFUSED(kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes - 1, &model), -EBADMSG);
    memcpy(damaged, m.bytes, m.n_bytes);
    damaged[m.n_bytes / 2] ^= 1;
    REFUSED(kvc_model_open_table(m.client, &id, damaged, m.n_bytes, &model), -EBADMSG);
    bad = id, bad.struct_bytes = 8;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.model_digest[3] ^= 1;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.geometry.n_layers = 3;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.geometry.head_dim = 33;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.geometry.n_rot = UINT32_MAX;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.geometry.rope_freq = NULL;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.first_kv_head = 1, bad.n_kv_heads_here = 2;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    bad = id, bad.first_kv_head = 2, bad.n_kv_heads_here = UINT32_MAX;
    REFUSED(kvc_model_open_table(m.client, &bad, m.bytes, m.n_bytes, &model), -EINVAL);
    CU_ASSERT_PTR_NULL(model);
    CU_ASSERT_EQUAL(kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &model), 0);
    free(damaged);
    embedded_free(&m);
}

/* A model whose handle was freed lives as long as its sequences. */
static void test_model_outlived(void)
{
    struct embedded m = embedded_new(1, 2, 2, 32, 3, 0, 0);
    kvc_seq *s = NULL, *t = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    m.model = kvc_model_free(m.model);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &t), 0);
    CU_ASSERT_PTR_NULL(kvc_seq_free(s));
    CU_ASSERT_EQUAL(kvc_seq_length(t), 200);
    embedded_free(&m);
}

/* Callers of another version: a longer struct is accepted if its unknown members are 0. */
static void test_struct_sizes(void)
{
    struct embedded m = embedded_new(1, 2, 2, 32, 3, 0, 0);
    struct {
        kvc_eval_options o;
        uint64_t newer;
    } longer = {{.struct_bytes = sizeof(longer), .n_sink = 4}, 0};
    struct {
        kvc_model_info info;
        uint64_t newer;
    } info = {{.struct_bytes = sizeof(info)}, UINT64_MAX};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL(kvc_seq_new_eval(m.model, &longer.o, &s), 0);
    kvc_seq_free(s);
    longer.newer = 1;
    REFUSED(kvc_seq_new_eval(m.model, &longer.o, &s), -EINVAL);
    longer.o.struct_bytes = sizeof(size_t);
    REFUSED(kvc_seq_new_eval(m.model, &longer.o, &s), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &info.info), 0);
    CU_ASSERT_EQUAL(info.info.struct_bytes, sizeof(info));
    CU_ASSERT_EQUAL(info.info.n_sink, RANDOM_TABLE_SINKS);
    CU_ASSERT_EQUAL(info.newer, 0);
    info.info.struct_bytes = (size_t) &info;
    REFUSED(kvc_model_get_info(m.model, &info.info), -EINVAL);
    embedded_free(&m);
}

static void test_after_fork(void)
{
    struct embedded m = embedded_new(1, 2, 2, 32, 3, 0, 0);
    kvc_seq *s = NULL;
    int status = 0;
    pid_t pid;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 70), 0);
    pid = fork();
    if (pid == 0) {
        size_t kept = 9;
        bool ok = embedded_append(&m, s, 0, 70, 1) == -ECHILD && strlen(kvc_last_error(m.client)) > 10;

        ok &= kvc_seq_truncate(s, 1, &kept) == -ECHILD && kept == 9 && kvc_seq_length(s) == 0;
        ok &= kvc_seq_free(s) == NULL && kvc_model_free(m.model) == NULL && kvc_client_free(m.client) == NULL;
        _exit(ok ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 70, 1), 0);
    embedded_free(&m);
}

/* ---- a socket of another service ---- */

static int listen_at(const char *path, int type)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, path, strlen(path) + 1);
    assert(fd >= 0 && bind(fd, (const struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 4) == 0);
    return fd;
}

/* A child process that replies to the first packet with @answer, or closes the connection. */
static pid_t answer_once(int listener, const char *answer, size_t bytes)
{
    pid_t pid = fork();

    if (pid == 0) {
        char packet[1024];
        int fd = accept(listener, NULL, NULL);

        if (fd >= 0 && recv(fd, packet, sizeof(packet), 0) >= 0 && bytes > 0)
            (void) !send(fd, answer, bytes, MSG_NOSIGNAL);
        _exit(0);
    }
    return pid;
}

static void test_foreign_sockets(void)
{
    char dir[] = "/tmp/kvcobra-test-XXXXXX", path[64], longer[200];
    static const char *const answers[] = {"", "HTTP/1.1 400 Bad Request\r\n", "\x08\x01"};
    kvc_client *c = NULL;
    int fd, status;

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    (void) snprintf(path, sizeof(path), "%s/s", dir);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    CU_ASSERT_EQUAL(kvc_client_connect(c, path), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(c), path));
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    CU_ASSERT_EQUAL(kvc_client_connect(c, longer), -EINVAL);
    fd = listen_at(path, SOCK_STREAM);
    CU_ASSERT_EQUAL(kvc_client_connect(c, path), -EPROTO);
    (void) close(fd);
    (void) unlink(path);
    fd = listen_at(path, SOCK_SEQPACKET);
    for (unsigned i = 0; i < 3; i++) {
        pid_t pid = answer_once(fd, answers[i], strlen(answers[i]));

        CU_ASSERT_EQUAL(kvc_client_connect(c, path), -EPROTO);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(c), path));
        (void) waitpid(pid, &status, 0);
    }
    (void) close(fd);
    CU_ASSERT_EQUAL(kvc_client_connect(c, path), -ECONNREFUSED);
    (void) unlink(path);
    (void) rmdir(dir);
    kvc_client_free(c);
}

const struct test_case test_cases[] = {
    TEST(test_null_handles), TEST(test_largest_append),  TEST(test_arguments),
    TEST(test_models),       TEST(test_model_outlived),  TEST(test_struct_sizes),
    TEST(test_after_fork),   TEST(test_foreign_sockets), TEST_END,
};
const char test_suite[] = "misuse";
