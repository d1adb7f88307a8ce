/* Common main of the test programs; see test.h. */
#include "tests/lib/test.h"

#include <CUnit/Basic.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/splitmix64.h"

enum { EXIT_SKIPPED = 77 };

static struct {
    const struct test_case *current;
    uint64_t seed, state[2];
    unsigned n_run, n_skipped, n_failed;
    bool skipped, driver_is_open;
} run;

static void seed_case(const char *name)
{
    const char *fixed = getenv("KVC_TEST_SEED");
    /* FNV-1a of the name: the numbers of a case do not depend on earlier cases */
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char) *p) * 0x100000001b3u;
    run.seed = fixed ? strtoull(fixed, NULL, 0) : h;
    h = run.seed;
    /* splitmix64 spreads any seed, zero included, over the state of xoroshiro128+ */
    run.state[0] = splitmix64_next(&h);
    run.state[1] = splitmix64_next(&h);
}

void test_rand_restart(void)
{
    seed_case(run.current->name);
}

uint64_t test_rand(void)
{
    uint64_t a = run.state[0], b = run.state[1]; /* xoroshiro128+ */
    uint64_t r = a + b;

    b ^= a;
    run.state[0] = (a << 24 | a >> 40) ^ b ^ b << 16;
    run.state[1] = b << 37 | b >> 27;
    return r;
}

uint64_t test_rand_below(uint64_t n)
{
    __extension__ typedef unsigned __int128 wide; /* multiply-shift: the bias is below 2^-64 n */

    return (uint64_t) ((wide) test_rand() * n >> 64);
}

double test_rand_uniform(void)
{
    return (double) (test_rand() >> 11) * 0x1p-53;
}

double test_rand_normal(void)
{
    double u = 1.0 - test_rand_uniform(); /* (0, 1]: the logarithm is finite */

    return sqrt(-2.0 * log(u)) * cos(2.0 * M_PI * test_rand_uniform());
}

void test_skip(const char *why)
{
    run.skipped = true;
    printf("    skipped: %s: %s\n", run.current->name, why);
}

const char *test_shared_path(const char *relative)
{
    static char path[4096];
    const char *source = getenv("KVC_SOURCE_ROOT");
    int n = snprintf(path, sizeof(path), "%s/../shared/%s", source ? source : ".", relative);

    if (n < 0 || (size_t) n >= sizeof(path) || access(path, R_OK) != 0)
        return NULL;
    return path;
}

const char *test_model_path(void)
{
    static char path[4096];
    const char *given = getenv("KVC_TEST_MODEL"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;

    if (given)
        n = snprintf(path, sizeof(path), "%s", given);
    else if (cache)
        n = snprintf(path, sizeof(path), "%s/kvcobra/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        n = snprintf(path, sizeof(path), "%s/.cache/kvcobra/SmolLM2-135M-Instruct.Q4_1.gguf",
                     home ? home : "");
    return n > 0 && (size_t) n < sizeof(path) && access(path, R_OK) == 0 ? path : NULL;
}

static void print_failures(unsigned from)
{
    unsigned i = 0;

    for (CU_pFailureRecord f = CU_get_failure_list(); f; f = f->pNext, i++)
        if (i >= from)
            printf("    %s:%u: %s\n", f->strFileName, f->uiLineNumber, f->strCondition);
}

/* Descriptors of this process, without the memory of the stand-in driver, which tests do not free; 0 without
 * /proc. */
static unsigned n_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    char target[256];
    unsigned n = 0;

    for (const struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d)) {
        ssize_t bytes = readlinkat(dirfd(d), f->d_name, target, sizeof(target) - 1);

        target[bytes > 0 ? bytes : 0] = '\0';
        n += bytes > 0 && !strstr(target, "standin");
    }
    if (d)
        (void) closedir(d);
    return n;
}

static void run_case(CU_pSuite suite, const struct test_case *c)
{
    unsigned failures = CU_get_number_of_failure_records(), before = n_descriptors(), left;
    CU_pTest test = CU_get_test_by_name(c->name, suite);

    run.current = c;
    run.skipped = false;
    seed_case(c->name);
    (void) CU_run_test(suite, test);
    run.n_run++;
    left = n_descriptors();
    /* a real driver opens some with its first call, and keeps them */
    if (!run.driver_is_open && left > before && getenv("TEST_GPU")) {
        run.driver_is_open = true;
        before = left;
    }
    if (CU_get_number_of_failures() == 0 && left > before) {
        run.n_failed++;
        printf("FAIL %s.%s: %u descriptors stay open\n", test_suite, c->name, left - before);
    } else if (CU_get_number_of_failures() > 0) { /* CUnit counts the last run only */
        run.n_failed++;
        printf("FAIL %s.%s (KVC_TEST_SEED=0x%" PRIx64 ")\n", test_suite, c->name, run.seed);
        print_failures(CU_get_number_of_failure_records() >= failures ? 0 : failures);
    } else if (run.skipped) {
        run.n_skipped++;
        printf("skip %s.%s\n", test_suite, c->name);
    } else {
        printf("ok   %s.%s\n", test_suite, c->name);
    }
    (void) fflush(stdout);
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s [--suite NAME] [--test NAME] [--list]\n", program);
    return 2;
}

int main(int argc, char **argv)
{
    const char *only_suite = NULL, *only_test = NULL;
    const bool stops = getenv("KVC_TEST_STOP") != NULL;
    bool list = false;
    CU_pSuite suite;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--suite") == 0 && i + 1 < argc)
            only_suite = argv[++i];
        else if (strcmp(argv[i], "--test") == 0 && i + 1 < argc)
            only_test = argv[++i];
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
        else
            return usage(argv[0]);
    }
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    suite = CU_add_suite(test_suite, NULL, NULL);
    for (const struct test_case *c = test_cases; c->name; c++) {
        if (list)
            printf("%s.%s\n", test_suite, c->name);
        if (!CU_add_test(suite, c->name, c->run))
            return 1;
    }
    if (!list && (!only_suite || strcmp(only_suite, test_suite) == 0))
        for (const struct test_case *c = test_cases; c->name && !(run.n_failed > 0 && stops); c++)
            if (!only_test || strcmp(only_test, c->name) == 0)
                run_case(suite, c);
    CU_cleanup_registry();
    if (list)
        return 0;
    printf("%u passed, %u failed, %u skipped\n", run.n_run - run.n_failed - run.n_skipped, run.n_failed,
           run.n_skipped);
    if (run.n_failed > 0)
        return 1;
    if (run.n_run == 0) {
        fprintf(stderr, "%s: no such test\n", argv[0]);
        return only_suite || only_test ? 1 : 0;
    }
    return run.n_skipped == run.n_run ? EXIT_SKIPPED : 0;
}
