/* Addresses of metrics-address: loopback with a port, nothing else. */
#include "daemon/config/loopback.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "loopback";

static void test_addresses(void)
{
    static const struct {
        const char *text;
        int family; /* 0: refused */
    } cases[] = {
        {"127.0.0.1:9110", AF_INET},
        {"127.255.255.254:65535", AF_INET},
        {"[::1]:1", AF_INET6},
        {"0.0.0.0:9110", 0},
        {"128.0.0.1:9110", 0},
        {"126.255.255.255:1", 0},
        {"192.168.1.1:80", 0},
        {"[::]:9110", 0},
        {"[::ffff:127.0.0.1]:9110", 0},
        {"[fe80::1]:9110", 0},
        {"::1:9110", 0},
        {"127.0.0.1", 0},
        {"127.0.0.1:", 0},
        {"127.0.0.1:0", 0},
        {"127.0.0.1:65536", 0},
        {"127.0.0.1:80x", 0},
        {"127.0.0.1:-1", 0},
        {"127.0.0.1: 80", 0},
        {":9110", 0},
        {"", 0},
        {"localhost:9110", 0},
        {"[127.0.0.1]:9110", 0},
        {"[]:1", 0},
        {"1111111111111111111111111111111111111111111111111111111111111111111111:1", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sockaddr_storage a = {.ss_family = 99};
        socklen_t bytes = 7;
        struct errmsg e = {""};
        int r = loopback_parse(cases[i].text, &a, &bytes, &e);

        if (r != (cases[i].family ? 0 : -EINVAL))
            printf("    %s: %d\n", cases[i].text, r);
        CU_ASSERT_EQUAL(r, cases[i].family ? 0 : -EINVAL);
        CU_ASSERT_EQUAL(a.ss_family, cases[i].family ? cases[i].family : 99);
        CU_ASSERT_EQUAL(e.text[0] == '\0', r == 0);
    }
}

const struct test_case test_cases[] = {TEST(test_addresses), TEST_END};
