/* tests/cuda_on_cpu/backend/hopper.h against the PTX ISA: numbers worked by hand from its pictures of
 * fragments and of canonical layouts, and mistakes that make a GPU hang, fault or compute wrong
 * numbers, each of which must end the program. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/unit/cuda_on_cpu/hopper_kernels.h"

/* Half-word of c [thread][16] at row @row, column @col: row g or g + 8 of the 16 rows of a warp, pair t of
 * each 8 columns. */
static uint16_t element(const uint32_t *c, unsigned row, unsigned col)
{
    unsigned thread = row / 16 * 32 + row % 8 * 4 + col % 8 / 2, reg = col / 8 * 2 + row % 16 / 8;

    return (uint16_t) (c[16 * thread + reg] >> 16 * (col & 1));
}

/* Element (n, k) of B is (n % 8) 16 + (n / 8) 0x80 + (k % 8) 2 + (k / 8) 0x400 bytes from its start: (9,
 * 10) at 0x10 + 0x80 + 4 + 0x400 = 0x494; (63, 0) at 0x70 + 0x380 = 0x3f0; (0, 7) at 0xe; (0, 8) at 0x400. */
static void test_product(void)
{
    static const struct {
        uint32_t offset;
        unsigned n, k;
    } cases[] = {{0x494, 9, 10}, {0x3f0, 63, 0}, {0xe, 0, 7}, {0x400, 0, 8}};
    uint32_t *c = calloc(128, 16 * sizeof(*c));

    assert(c);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned n_wrong = 0;

        hopper_product(&(struct hopper_case){.out = c, .offset = cases[i].offset});
        for (unsigned row = 0; row < 64; row++)
            for (unsigned col = 0; col < 64; col++)
                n_wrong += element(c, row, col) != (row % 16 == cases[i].k && col == cases[i].n ? 0x4000 : 0);
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
    free(c);
}

/* Half-word (row, col) of the input is 8 row + col; lane 4 row + pair must then get 8 (2 pair) + row, 8 (2
 * pair + 1) + row. */
static void test_transpose(void)
{
    uint32_t out[32];

    hopper_transpose(&(struct hopper_case){.out = out});
    CU_ASSERT_EQUAL(out[0], 0x00080000);  /* row 0: 0, 8 */
    CU_ASSERT_EQUAL(out[1], 0x00180010);  /* 16, 24 */
    CU_ASSERT_EQUAL(out[4], 0x00090001);  /* row 1: 1, 9 */
    CU_ASSERT_EQUAL(out[31], 0x003f0037); /* row 7: 55, 63 */
}

static void test_copy(void)
{
    _Alignas(16) uint32_t from[8] = {1, 2, 3, 4, 5, 66, 7, 8};
    uint32_t out[4];

    hopper_copy(&(struct hopper_case){.from = from, .out = out});
    CU_ASSERT_EQUAL(out[0], UINT32_MAX); /* neither the old contents nor the new ones */
    CU_ASSERT_EQUAL(out[1], 66);
    CU_ASSERT_EQUAL(out[2], 0);
    CU_ASSERT_EQUAL(out[3], 1);
}

static void test_mistakes(void)
{
    for (unsigned i = 0; i < HOPPER_MISTAKES; i++) {
        int status = 0;
        pid_t child = fork();

        if (child == 0) {
            (void) setrlimit(RLIMIT_CORE, &(struct rlimit){0});
            (void) fclose(stderr);
            hopper_mistake((enum hopper_mistake) i);
            _exit(0);
        }
        CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
        CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        if (!WIFSIGNALED(status))
            printf("    mistake %u was not refused\n", i);
    }
}

const char test_suite[] = "operations of compute capability 9.0 on the CPU";
const struct test_case test_cases[] = {
    TEST(test_product), TEST(test_transpose), TEST(test_copy), TEST(test_mistakes), TEST_END,
};
