/* See fault.h. */
#include "tests/fault/fault.h"

#include <errno.h>
#include <stdlib.h>

static unsigned countdown;
static bool fired;
static long live;

void fault_arm(unsigned nth)
{
    countdown = nth;
    fired = false;
}

bool fault_fired(void)
{
    return fired;
}

long fault_live_blocks(void)
{
    return live;
}

static bool fails(void)
{
    if (countdown == 0 || --countdown > 0)
        return false;
    fired = true;
    errno = ENOMEM;
    return true;
}

static void *count(void *p)
{
    live += p != NULL;
    return p;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void __real_free(void *p);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void __wrap_free(void *p);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : count(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *p, size_t bytes)
{
    void *q;

    if (fails())
        return NULL;
    q = __real_realloc(p, bytes);
    live += !p && q;
    return q;
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return fails() ? NULL : count(__real_aligned_alloc(align, bytes));
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}
