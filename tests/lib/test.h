/*
 * Frame of the test programs: one CUnit suite per file, cases in an array, a common main.
 *
 *     static void test_empty(void) { CU_ASSERT_EQUAL(...); }
 *     const struct test_case test_cases[] = { TEST(test_empty), TEST_END };
 *     const char test_suite[] = "quant";
 *
 * main: PROGRAM [--suite NAME] [--test NAME] [--list]. Exit status: 0: passed; 1: failed; 77: every case was
 * skipped. With KVC_TEST_STOP in the environment, no case runs after one that failed. Checks stay on in
 * release builds.
 */
#pragma once

#undef NDEBUG
#include <assert.h>

#include <CUnit/CUnit.h>
#include <stdint.h>

struct test_case {
    const char *name;
    void (*run)(void);
};

#define TEST(f)                                                                                              \
    {                                                                                                        \
#f, f                                                                                                \
    }
#define TEST_END                                                                                             \
    {                                                                                                        \
        NULL, NULL                                                                                           \
    }

extern const struct test_case test_cases[];
extern const char test_suite[];

/* Marks the running case as skipped for the reason @why. The case must return after it. */
void test_skip(const char *why);

/* A generator seeded from the running case's name, or from KVC_TEST_SEED;
 * the seed is printed when a case fails. */
uint64_t test_rand(void);             /* 64 random bits */
void test_rand_restart(void);         /* restarts the numbers of the case */
uint64_t test_rand_below(uint64_t n); /* 0 .. n - 1 */
double test_rand_uniform(void);       /* [0, 1) */
double test_rand_normal(void);        /* N(0, 1) */

/* Path below ../shared of the source root; NULL: it does not exist, skip the
 * case. Borrowed until the next call. */
const char *test_shared_path(const char *relative);

/* Path of the real model that some tests need: KVC_TEST_MODEL, or the file that tools/fetch_model.sh fetched;
 * NULL: no model, skip with TEST_NO_MODEL. Borrowed until the next call. */
const char *test_model_path(void);
#define TEST_NO_MODEL "no model: run tools/fetch_model.sh, or set KVC_TEST_MODEL"
