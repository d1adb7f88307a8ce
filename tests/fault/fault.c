/* See fault.h. */
#include "tests/fault/fault.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fault/fault_page.h"

extern const char __executable_start; /* from the linker */

static struct fault_page own;
static struct fault_page *page = &own;
static _Atomic long live;
static bool paused;

void fault_arm(unsigned nth)
{
    fault_page_arm(page, nth);
}

void fault_pause(bool value)
{
    paused = value;
}

bool fault_fired(void)
{
    return atomic_load(&page->fired);
}

long fault_live_blocks(void)
{
    return atomic_load(&live);
}

void fault_follow(const char *path)
{
    page = fault_page_new(path);
}

/* Work threads allocate too. */
static bool fails(const void *caller)
{
    unsigned n = atomic_load(&page->countdown);

    if (paused)
        return false;
    while (n > 0 && !atomic_compare_exchange_weak(&page->countdown, &n, n - 1))
        ;
    if (n != 1)
        return false;
    atomic_store(&page->caller, (uintptr_t) caller - (uintptr_t) &__executable_start);
    atomic_store(&page->fired, true);
    errno = ENOMEM;
    return true;
}

#define FAILS() fails(__builtin_return_address(0))

static void *count(void *p)
{
    live += p != NULL;
    return p;
}

/* ---- blocks ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_reallocarray(void *p, size_t n, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
void __real_free(void *p);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_reallocarray(void *p, size_t n, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
int __wrap_asprintf(char **ret, const char *format, ...);
void __wrap_free(void *p);

void *__wrap_malloc(size_t bytes)
{
    return FAILS() ? NULL : count(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return FAILS() ? NULL : count(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *p, size_t bytes)
{
    void *q;

    if (FAILS())
        return NULL;
    q = __real_realloc(p, bytes);
    live += !p && q;
    return q;
}

void *__wrap_reallocarray(void *p, size_t n, size_t bytes)
{
    void *q;

    if (FAILS())
        return NULL;
    q = __real_reallocarray(p, n, bytes);
    live += !p && q;
    return q;
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return FAILS() ? NULL : count(__real_aligned_alloc(align, bytes));
}

char *__wrap_strdup(const char *text)
{
    return FAILS() ? NULL : count(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t n)
{
    return FAILS() ? NULL : count(__real_strndup(text, n));
}

__attribute__((format(printf, 2, 3))) int __wrap_asprintf(char **ret, const char *format, ...)
{
    va_list args;
    int n;

    if (FAILS())
        return -1; /* *ret is undefined */
    va_start(args, format);
    n = vasprintf(ret, format, args);
    va_end(args);
    live += n >= 0;
    return n;
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}

/* ---- libc's own allocations ---- */

FILE *__real_fdopen(int fd, const char *mode);
FILE *__real_open_memstream(char **ret, size_t *ret_bytes);
int __real_scandir64(const char *path, struct dirent64 ***ret, int (*filter)(const struct dirent64 *),
                     int (*compare)(const struct dirent64 **, const struct dirent64 **));

FILE *__wrap_fdopen(int fd, const char *mode);
FILE *__wrap_open_memstream(char **ret, size_t *ret_bytes);
int __wrap_scandir64(const char *path, struct dirent64 ***ret, int (*filter)(const struct dirent64 *),
                     int (*compare)(const struct dirent64 **, const struct dirent64 **));

FILE *__wrap_fdopen(int fd, const char *mode)
{
    return FAILS() ? NULL : __real_fdopen(fd, mode);
}

FILE *__wrap_open_memstream(char **ret, size_t *ret_bytes)
{
    return FAILS() ? NULL : __real_open_memstream(ret, ret_bytes);
}

int __wrap_scandir64(const char *path, struct dirent64 ***ret, int (*filter)(const struct dirent64 *),
                     int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
    return FAILS() ? -1 : __real_scandir64(path, ret, filter, compare);
}
