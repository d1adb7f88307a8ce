/* The command line of kvcobrad: options override the file, the file overrides defaults. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/command_line.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"

const char test_suite[] = "command_line";

static int load(const char **argv, struct config *c, const char **ret_check)
{
    struct command_line l = {.argv = (char **) argv};
    struct errmsg e = {""};

    while (argv[l.argc])
        l.argc++;
    return command_line_load(&l, c, ret_check, &e);
}

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t) strlen(text));
    (void) close(fd);
}

static void test_options(void)
{
    unsigned n = 0;

    for (const struct argp_option *o = command_line_options(); o->doc; o++) {
        const struct setting *s = o->name ? command_line_setting(o) : NULL;

        if (!s)
            continue;
        CU_ASSERT_STRING_EQUAL(o->name, s->name);
        CU_ASSERT_STRING_EQUAL(o->doc, s->help);
        n++;
    }
    CU_ASSERT_EQUAL(n, settings_n);
}

static void test_order(void)
{
    char path[] = "/tmp/kvcobra-test-XXXXXX";
    const char *argv[] = {"kvcobrad", "--pool-bytes",         "512M",          "-c",
                          path,       "--no-operator-socket", "--listen-fd=7", NULL};
    const char *check = "before";
    struct config c;

    write_file(path, "pool-bytes = 256M\nlease-ms = 500\noperator-socket = /run/x.sock\n");
    CU_ASSERT_EQUAL(load(argv, &c, &check), 0);
    CU_ASSERT_PTR_NULL(check);
    CU_ASSERT_EQUAL(c.pool_bytes, 512u << 20);
    CU_ASSERT_EQUAL(c.lease_ms, 500);
    CU_ASSERT_EQUAL(c.arena_bytes, 64u << 20);
    CU_ASSERT_EQUAL(c.quota_bytes, c.pool_bytes);
    CU_ASSERT_EQUAL(c.gpu_quota_bytes, c.gpu_pool_bytes);
    CU_ASSERT_PTR_NULL(c.operator_socket_path);
    CU_ASSERT(c.listen_fd == 7 && c.operator_fd == -1 && c.ready_fd == -1);
    config_deinit(&c);
    (void) unlink(path);
}

/* The file alone is checked; settings of the command line are not applied. */
static void test_check(void)
{
    char path[] = "/tmp/kvcobra-test-XXXXXX";
    const char *argv[] = {"kvcobrad", "--pool-bytes", "512M", "--check-config", path, NULL};
    const char *check = NULL;
    struct config c;

    write_file(path, "pool-bytes = 256M\n");
    CU_ASSERT_EQUAL(load(argv, &c, &check), 0);
    CU_ASSERT_PTR_EQUAL(check, path);
    CU_ASSERT_EQUAL(c.pool_bytes, 256u << 20);
    config_deinit(&c);
    (void) unlink(path);
    CU_ASSERT_EQUAL(load(argv, &c, &check), -ENOENT);
    config_deinit(&c);
}

const struct test_case test_cases[] = {TEST(test_options), TEST(test_order), TEST(test_check), TEST_END};
