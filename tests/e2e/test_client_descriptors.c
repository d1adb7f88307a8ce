/*
 * A program that has closed its standard descriptors uses the library: no socket, memory object or file of
 * the library gets the numbers 0 to 2, where the program's own output would go into it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { TOKENS = 500, FOUND = 384 };

static bool are_free(void)
{
    bool free_numbers = true;

    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        free_numbers = free_numbers && fcntl(fd, F_GETFD) < 0;
    return free_numbers;
}

/* Every call that opens a descriptor; the names of those that took a standard one are in @ret_wrong. */
static void use_everything(const struct scene *sc, const char *folder, char *ret_wrong)
{
    char path[256];
    struct embedded m = scene_client(sc);
    kvc_client *control = NULL;
    kvc_seq *s = NULL, *found = NULL;
    kvc_fetch *f = NULL;
    uint32_t *tokens = scene_tokens(0, TOKENS);
    struct atomic_file file = {.fd = -1};
    size_t n = 0;
    uint8_t digest[KVC_DIGEST_BYTES];

    if (!are_free())
        strcat(ret_wrong, " connect");
    CU_ASSERT_EQUAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, TOKENS, TOKENS, &n), 0);
    if (!are_free())
        strcat(ret_wrong, " publish");
    CU_ASSERT_EQUAL(kvc_seq_new(m.model, NULL, 0, &found), 0);
    CU_ASSERT_EQUAL(kvc_fetch_start(found, tokens, TOKENS, 1, &f), 0);
    if (!are_free())
        strcat(ret_wrong, " fetch");
    f = kvc_fetch_free(f);
    CU_ASSERT_EQUAL(kvc_seq_match(found, tokens, TOKENS, &n), 0);
    CU_ASSERT_EQUAL(n, FOUND);
    if (!are_free())
        strcat(ret_wrong, " match");
    CU_ASSERT_EQUAL(kvc_client_new(&control), 0);
    CU_ASSERT_EQUAL(kvc_client_connect(control, sc->daemon.operator_socket), 0);
    CU_ASSERT(operator_stage_table(control, sc->bytes, sc->n_bytes, digest, NULL) >=
              0); /* the daemon has it */
    if (!are_free())
        strcat(ret_wrong, " stage");
    (void) snprintf(path, sizeof(path), "%s/file", folder);
    CU_ASSERT_EQUAL(atomic_file_start(path, &file, NULL), 0);
    if (!are_free())
        strcat(ret_wrong, " file");
    atomic_file_put(&file, "x", 1);
    CU_ASSERT_EQUAL(atomic_file_commit(&file, NULL), 0);
    atomic_file_deinit(&file);
    (void) unlink(path);

    (void) kvc_client_free(control);
    (void) kvc_seq_free(s);
    (void) kvc_seq_free(found);
    free(tokens);
    embedded_free(&m);
}

static void test_closed_standard_descriptors(void)
{
    char wrong[128] = "", folder[] = "/tmp/kvc-descriptors-XXXXXX";
    struct scene sc;
    int saved[STDERR_FILENO + 1];

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1,
                (const char *const[]){"--pool-bytes=64M", "--arena-bytes=8M", NULL});
    (void) fflush(NULL);
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        saved[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
        (void) close(fd);
    }
    use_everything(&sc, folder, wrong);
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (saved[fd] < 0)
            continue;
        (void) dup2(saved[fd], fd);
        (void) close(saved[fd]);
    }
    CU_ASSERT_STRING_EQUAL(wrong, "");
    if (wrong[0])
        printf("    standard descriptors were taken by:%s\n", wrong);
    scene_end(&sc);
    (void) rmdir(folder);
}

const struct test_case test_cases[] = {TEST(test_closed_standard_descriptors), TEST_END};
const char test_suite[] = "client_descriptors";
