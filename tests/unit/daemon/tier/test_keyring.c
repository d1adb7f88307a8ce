/* Tests of daemon/tier/keyring.c. */
#include "daemon/tier/keyring.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "keyring";

#define DIGITS(x) x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x
#define INDEX "index " DIGITS("11") "\n"
#define SEAL_7 "seal 7 " DIGITS("22") "\n"
#define SEAL_9 "seal 9 " DIGITS("33") "\n"

static char folder[64], path[96];

static void write_file(const char *text, size_t bytes, mode_t mode)
{
    FILE *f;

    (void) snprintf(folder, sizeof(folder), "/tmp/kvcobra-keyring-XXXXXX");
    assert(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/keys", folder);
    f = fopen(path, "w");
    assert(f && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0 && chmod(path, mode) == 0);
}

static void remove_file(void)
{
    (void) unlink(path);
    (void) rmdir(folder);
}

/* Reads a ring of this text. Return: the error. */
static int read_text(const char *text, struct keyring **ret, struct errmsg *e)
{
    int r;

    write_file(text, strlen(text), 0600);
    r = keyring_read(path, ret, e);
    remove_file();
    return r;
}

static void expect_refused(const char *text, const char *why)
{
    struct keyring *k = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(read_text(text, &k, &e), -EBADMSG);
    CU_ASSERT_PTR_NULL(k);
    if (!strstr(e.text, why)) {
        (void) fprintf(stderr, "\"%s\" lacks \"%s\"\n", e.text, why);
        CU_FAIL("another sentence");
    }
    CU_ASSERT_PTR_NULL(strstr(e.text, "1111")); /* no secret in a sentence */
    keyring_unref(k);
}

static void test_read(void)
{
    struct keyring *k = NULL;
    struct errmsg e = {""};
    uint8_t expected[KEYRING_SECRET_BYTES];

    CU_ASSERT_EQUAL_FATAL(read_text("# fleet\n\n  " INDEX SEAL_9 "\t" SEAL_7, &k, &e), 0);
    memset(expected, 0x11, sizeof(expected));
    CU_ASSERT_EQUAL(memcmp(keyring_index_secret(k), expected, sizeof(expected)), 0);
    CU_ASSERT_EQUAL(keyring_newest(k), 9);
    memset(expected, 0x22, sizeof(expected));
    CU_ASSERT_EQUAL(memcmp(keyring_find(k, 7), expected, sizeof(expected)), 0);
    memset(expected, 0x33, sizeof(expected));
    CU_ASSERT_EQUAL(memcmp(keyring_find(k, 9), expected, sizeof(expected)), 0);
    CU_ASSERT_PTR_NULL(keyring_find(k, 8));
    CU_ASSERT_FALSE(keyring_is_of_host(k));
    k = keyring_unref(k);

    CU_ASSERT_EQUAL_FATAL(read_text(INDEX "seal 4294967295 " DIGITS("aB"), &k, &e), 0); /* no line end */
    CU_ASSERT_EQUAL(keyring_newest(k), UINT32_MAX);
    keyring_unref(k);
}

/* A key that only opens, as a host has it before the fleet seals with it, and after it seals no longer. */
static void test_open_only(void)
{
    struct keyring *k = NULL;
    struct errmsg e = {""};
    uint8_t expected[KEYRING_SECRET_BYTES];

    CU_ASSERT_EQUAL_FATAL(read_text(INDEX SEAL_7 "open 9 " DIGITS("33") "\nopen 2 " DIGITS("44"), &k, &e), 0);
    CU_ASSERT_EQUAL(keyring_newest(k), 7);
    memset(expected, 0x33, sizeof(expected));
    CU_ASSERT_EQUAL(memcmp(keyring_find(k, 9), expected, sizeof(expected)), 0);
    memset(expected, 0x44, sizeof(expected));
    CU_ASSERT_EQUAL(memcmp(keyring_find(k, 2), expected, sizeof(expected)), 0);
    keyring_unref(k);
}

static void test_refused_texts(void)
{
    char many[4096] = INDEX;

    expect_refused("", "no line \"index");
    expect_refused(INDEX, "no line \"seal");
    expect_refused(SEAL_7, "no line \"index");
    expect_refused(INDEX SEAL_7 INDEX, "line 3: a second index secret");
    expect_refused(INDEX SEAL_7 "seal 7 " DIGITS("44"), "line 3: a second sealing key with the id 7");
    expect_refused(INDEX "seal 0 " DIGITS("44"), "from 1 to 4294967295");
    expect_refused(INDEX "seal 4294967296 " DIGITS("44"), "from 1 to 4294967295");
    expect_refused(INDEX "seal -1 " DIGITS("44"), "from 1 to 4294967295");
    expect_refused(INDEX "seal 1x " DIGITS("44"), "from 1 to 4294967295");
    expect_refused("index 1111\n", "64 hexadecimal digits");
    expect_refused("index " DIGITS("1g"), "64 hexadecimal digits");
    expect_refused("index " DIGITS("11") "11", "64 hexadecimal digits");
    expect_refused("index " DIGITS("00"), "all zeros");
    expect_refused("index " DIGITS("11") " x\n", "none of");
    expect_refused(INDEX "opens 1 " DIGITS("44"), "line 2: none of");
    expect_refused(INDEX "open 1 " DIGITS("44"), "no line \"seal");
    expect_refused(INDEX SEAL_7 "open 7 " DIGITS("44"), "line 3: a second sealing key with the id 7");
    expect_refused(INDEX "seal 1 " DIGITS("11"), "sealing key 1 equals the index secret");
    expect_refused(INDEX "seal 1 " DIGITS("44") "\nseal 2 " DIGITS("44"), "keys 1 and 2 are equal");

    for (unsigned i = 1; i <= KEYRING_KEYS_MAX + 1; i++)
        (void) snprintf(many + strlen(many), sizeof(many) - strlen(many), "seal %u %064x\n", i, i);
    expect_refused(many, "more than 16 sealing keys");
}

static void test_refused_files(void)
{
    static char large[KEYRING_FILE_BYTES_MAX + 1];
    struct keyring *k = NULL;
    struct errmsg e = {""};

    write_file(INDEX SEAL_7, sizeof(INDEX SEAL_7) - 1, 0640);
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -EPERM);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "chmod 0400"));
    CU_ASSERT_EQUAL(chmod(path, 0604), 0);
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -EPERM);
    CU_ASSERT_EQUAL(chmod(path, 0400), 0);
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), 0);
    k = keyring_unref(k);
    remove_file();
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -ENOENT);

    write_file("index\0secret", 12, 0600); /* zero bytes are no text */
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -EBADMSG);
    remove_file();

    memset(large, '\n', sizeof(large));
    write_file(large, sizeof(large), 0600);
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -EFBIG);
    remove_file();

    write_file("", 0, 0600);
    CU_ASSERT(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -EINVAL); /* and does not wait for a writer */
    remove_file();
    CU_ASSERT_PTR_NULL(k);
}

static void test_other_owner(void)
{
    struct keyring *k = NULL;
    struct errmsg e = {""};

    if (geteuid() != 0) {
        test_skip("only root can give a file away");
        return;
    }
    write_file(INDEX SEAL_7, sizeof(INDEX SEAL_7) - 1, 0600);
    CU_ASSERT_EQUAL(chown(path, 1234, (gid_t) -1), 0);
    CU_ASSERT_EQUAL(keyring_read(path, &k, &e), -EPERM);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "user 1234"));
    remove_file();
}

static void test_credential(void)
{
    struct keyring *k = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(unsetenv("CREDENTIALS_DIRECTORY"), 0);
    CU_ASSERT_EQUAL(keyring_read_credential("keys", &k, &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "LoadCredential=keys"));

    write_file(INDEX SEAL_7, sizeof(INDEX SEAL_7) - 1,
               0440); /* systemd's access list shows as group's bits */
    CU_ASSERT_EQUAL(setenv("CREDENTIALS_DIRECTORY", folder, 1), 0);
    CU_ASSERT_EQUAL(keyring_read_credential("keys", &k, &e), 0);
    k = keyring_unref(k);
    CU_ASSERT_EQUAL(chmod(path, 0444), 0);
    CU_ASSERT_EQUAL(keyring_read_credential("keys", &k, &e), -EPERM);
    CU_ASSERT_EQUAL(keyring_read_credential("../keys", &k, &e), -EINVAL);
    CU_ASSERT_EQUAL(keyring_read_credential("", &k, &e), -EINVAL);
    remove_file();
    CU_ASSERT_EQUAL(unsetenv("CREDENTIALS_DIRECTORY"), 0);
}

static void test_of_host(void)
{
    const uint8_t secret[KEYRING_SECRET_BYTES] = {1, 2, 3};
    struct keyring *k = NULL, *same = NULL;

    CU_ASSERT_EQUAL_FATAL(keyring_of_host(secret, &k, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(keyring_of_host(secret, &same, NULL), 0);
    CU_ASSERT_TRUE(keyring_is_of_host(k));
    CU_ASSERT_EQUAL(memcmp(keyring_index_secret(k), secret, sizeof(secret)), 0);
    CU_ASSERT_EQUAL(keyring_newest(k), 1);
    CU_ASSERT_NOT_EQUAL(memcmp(keyring_find(k, 1), secret, sizeof(secret)), 0);
    /* pages of an earlier process open */
    CU_ASSERT_EQUAL(memcmp(keyring_find(k, 1), keyring_find(same, 1), KEYRING_SECRET_BYTES), 0);
    keyring_unref(k);
    keyring_unref(same);
}

static void test_successor(void)
{
    struct keyring *now = NULL, *rotated = NULL, *other = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(read_text(INDEX SEAL_7, &now, &e), 0);
    CU_ASSERT_EQUAL_FATAL(read_text(INDEX SEAL_7 SEAL_9, &rotated, &e), 0);
    CU_ASSERT_EQUAL_FATAL(read_text("index " DIGITS("55") "\n" SEAL_7, &other, &e), 0);
    CU_ASSERT_EQUAL(keyring_check_successor(now, rotated, &e), 0);
    CU_ASSERT_EQUAL(keyring_check_successor(now, other, &e), -ESTALE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "another index secret"));
    CU_ASSERT_EQUAL(memcmp(keyring_fleet(now), keyring_fleet(rotated), KEYRING_FLEET_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(keyring_fleet(now), keyring_fleet(other), KEYRING_FLEET_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(keyring_fleet(now), keyring_index_secret(now), KEYRING_FLEET_BYTES), 0);
    keyring_unref(now);
    keyring_unref(rotated);
    keyring_unref(other);
}

static void test_references(void)
{
    const uint8_t secret[KEYRING_SECRET_BYTES] = {4};
    struct keyring *k = NULL;

    CU_ASSERT_EQUAL_FATAL(keyring_of_host(secret, &k, NULL), 0);
    CU_ASSERT_PTR_EQUAL(keyring_ref(k), k);
    CU_ASSERT_PTR_NULL(keyring_unref(k));
    CU_ASSERT_EQUAL(keyring_index_secret(k)[0], 4); /* a reference is left */
    CU_ASSERT_PTR_NULL(keyring_unref(k));
    CU_ASSERT_PTR_NULL(keyring_unref(NULL));
}

/* From here on, the kernel has no memory to protect pages in another way. False: not possible here. */
static bool forbid_mprotect(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* The secrets are read-only, and libsodium writes over them when it frees them. */
static void test_end_without_memory(void)
{
    const uint8_t secret[KEYRING_SECRET_BYTES] = {5};
    struct keyring *k = NULL;
    int status = -1;
    pid_t child;

    CU_ASSERT_EQUAL_FATAL(keyring_of_host(secret, &k, NULL), 0);
    child = fork();
    if (child == 0) {
        if (!forbid_mprotect())
            _exit(2);
        keyring_unref(k);
        _exit(0);
    }
    CU_ASSERT_TRUE_FATAL(child > 0);
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    keyring_unref(k);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
        test_skip("this kernel takes no filter of system calls");
        return;
    }
    CU_ASSERT_EQUAL(status, 0);
}

const struct test_case test_cases[] = {
    TEST(test_read),
    TEST(test_open_only),
    TEST(test_refused_texts),
    TEST(test_refused_files),
    TEST(test_other_owner),
    TEST(test_credential),
    TEST(test_of_host),
    TEST(test_successor),
    TEST(test_references),
    TEST(test_end_without_memory),
    TEST_END,
};
