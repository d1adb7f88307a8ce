/*
 * Wrong kernels of the stand-in driver, for tests of the checks that must find them:
 * STANDIN_WRONG=KERNEL:HOW, where KERNEL is a part of their names. HOW is
 *
 *     skip   launches of the kernel do nothing
 *     flip   in every word of this process's allocations that a launch changed, one bit is
 *            inverted: in binary32 the first of the mantissa, in a pair of binary16 one of the upper number
 */
#include <stdlib.h>
#include <string.h>

#include "tests/standin/standin.h"

enum { FLIPPED_BIT = 22 };

static struct {
    char kernel[64];
    bool flips;
} wrong;

void read_wrong(void)
{
    const char *text = getenv("STANDIN_WRONG");
    size_t n = text ? strcspn(text, ":") : 0;

    wrong.kernel[0] = '\0';
    if (n == 0 || n >= sizeof(wrong.kernel))
        return;
    memcpy(wrong.kernel, text, n);
    wrong.kernel[n] = '\0';
    wrong.flips = strcmp(text + n, ":flip") == 0;
}

bool is_wrong(const char *kernel)
{
    return wrong.kernel[0] != '\0' && strstr(kernel, wrong.kernel) != NULL;
}

/* Copies all allocations one after the other; NULL: only adds up their sizes. */
static size_t copy_all(char *to)
{
    struct range r;
    size_t bytes = 0;

    for (int i = 0; allocation_at(i, &r); i++) {
        if (to && r.bytes > 0)
            memcpy(to + bytes, (const void *) (uintptr_t) r.base, r.bytes);
        bytes += r.bytes;
    }
    return bytes;
}

static void flip_changed(const char *before)
{
    struct range r;

    for (int i = 0; allocation_at(i, &r); before += r.bytes, i++)
        for (size_t at = 0; at + sizeof(uint32_t) <= r.bytes; at += sizeof(uint32_t)) {
            char *word = (char *) (uintptr_t) r.base + at;

            if (memcmp(word, before + at, sizeof(uint32_t)) != 0)
                word[FLIPPED_BIT / 8] ^= 1 << FLIPPED_BIT % 8;
        }
}

cu_result run_wrong(cu_result (*run)(const struct work *w), const struct work *w)
{
    char *before;
    cu_result r;

    if (!wrong.flips)
        return CU_SUCCESS;

    before = malloc(copy_all(NULL) + 1);
    if (!before)
        return CU_OUT_OF_MEMORY;

    (void) copy_all(before);
    r = run(w);
    if (r == CU_SUCCESS)
        flip_changed(before);
    free(before);
    return r;
}
