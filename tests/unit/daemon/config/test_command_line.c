/* The command line of kvcobrad: options override the file, the file overrides defaults. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/command_line.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/machine.h"
#include "daemon/config/settings.h"
#include "proto/user_folder.h"

const char test_suite[] = "command_line";

static int load(const char **argv, struct config *c, struct command_line_mode *ret_mode)
{
    struct command_line l = {.argv = (char **) argv};
    struct errmsg e = {""};

    while (argv[l.argc])
        l.argc++;
    return command_line_load(&l, c, ret_mode, &e);
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
    struct command_line_mode mode = {.check = "before"};
    struct config c;

    write_file(path, "pool-bytes = 256M\nlease-ms = 500\noperator-socket = /run/x.sock\n");
    CU_ASSERT_EQUAL(load(argv, &c, &mode), 0);
    CU_ASSERT_PTR_NULL(mode.check);
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

/* The file is checked together with the options that override it, as the daemon would read both. */
static void test_check(void)
{
    char path[] = "/tmp/kvcobra-test-XXXXXX";
    const char *argv[] = {"kvcobrad", "--pool-bytes", "512M", "--check-config", path, NULL};
    struct command_line_mode mode;
    struct config c;

    write_file(path, "pool-bytes = 256M\n");
    CU_ASSERT_EQUAL(load(argv, &c, &mode), 0);
    CU_ASSERT_PTR_EQUAL(mode.check, path);
    CU_ASSERT_EQUAL(c.pool_bytes, 512u << 20);
    config_deinit(&c);
    (void) unlink(path);
    CU_ASSERT_EQUAL(load(argv, &c, &mode), -ENOENT);
    config_deinit(&c);
}

/* --user: sockets, state and configuration are below the user's folders; options override that, too. */
static void test_user(void)
{
    char folder[] = "/tmp/kvcobra-test-XXXXXX", path[64], command[64];
    const char *argv[] = {"kvcobrad", "--user", "--state-dir", "/elsewhere/state", NULL};
    struct command_line_mode mode;
    struct config c;

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/kvcobra", folder);
    CU_ASSERT_EQUAL_FATAL(mkdir(path, 0700), 0);
    (void) snprintf(path, sizeof(path), "%s/kvcobra/kvcobrad.conf", folder);
    CU_ASSERT(setenv("XDG_RUNTIME_DIR", folder, 1) == 0 && setenv("XDG_CONFIG_HOME", folder, 1) == 0);
    CU_ASSERT_EQUAL(load(argv, &c, &mode), 0);
    CU_ASSERT(mode.is_user && !mode.prints && c.file == NULL && c.socket_mode == 0600);
    CU_ASSERT_STRING_EQUAL(c.state_dir, "/elsewhere/state");
    CU_ASSERT_EQUAL(strncmp(c.socket_path, folder, strlen(folder)), 0);
    CU_ASSERT_STRING_EQUAL(c.socket_path + strlen(folder), "/kvcobra/kvcobra.sock");
    CU_ASSERT_STRING_EQUAL(c.operator_socket_path + strlen(folder), "/kvcobra/operator.sock");
    config_deinit(&c);

    {
        FILE *f = fopen(path, "we");

        CU_ASSERT_FATAL(f != NULL && fputs("socket-mode = 0660\nlease-ms = 200\n", f) >= 0 && fclose(f) == 0);
    }
    CU_ASSERT_EQUAL(load(argv, &c, &mode), 0);
    CU_ASSERT(c.lease_ms == 200 && c.socket_mode == 0660);
    CU_ASSERT_STRING_EQUAL(c.file, path);
    config_deinit(&c);

    /* cron and containers have no such variable */
    CU_ASSERT_EQUAL(unsetenv("XDG_RUNTIME_DIR"), 0);
    CU_ASSERT_EQUAL(load(argv, &c, &mode), 0);
    CU_ASSERT(user_folder_has(c.socket_path) && user_folder_has(c.operator_socket_path));
    CU_ASSERT(c.pool_bytes > 0 && c.pool_bytes <= machine_memory_bytes() / 4);
    config_deinit(&c);
    CU_ASSERT(unsetenv("HOME") == 0 && unsetenv("XDG_STATE_HOME") == 0);
    CU_ASSERT_EQUAL(load(argv, &c, &mode), -EINVAL);
    config_deinit(&c);
    (void) snprintf(command, sizeof(command), "rm -r %s", folder);
    CU_ASSERT_EQUAL(system(command), 0);
}

/* Names are looked up once all settings are known. */
static void test_names(void)
{
    const char *known[] = {"kvcobrad", "--operator-group=root", NULL};
    const char *unknown[] = {"kvcobrad", "--operator-group=no-such-group-here", NULL};
    struct command_line_mode mode;
    struct config c;

    CU_ASSERT_EQUAL(load(known, &c, &mode), 0);
    CU_ASSERT_EQUAL(c.operator_gid, 0);
    config_deinit(&c);
    CU_ASSERT(load(unknown, &c, &mode) < 0);
    config_deinit(&c);
}

const struct test_case test_cases[] = {TEST(test_options), TEST(test_order), TEST(test_check),
                                       TEST(test_user),    TEST(test_names), TEST_END};
