/*
 * A copy of the sources that tools/mutate.sh changed includes this file: it says which mutant runs in this
 * process.
 *
 * Every mutant is compiled in. KVC_MUTANT=N in the environment switches on number N. KVC_MUTANT_REACHED=FILE
 * names a file of one byte per mutant; a byte becomes 1 when its mutant's place runs. The file is shared
 * memory, so that what a killed process did is known too.
 */
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KVC_MUTANTS_MAX 65536

static unsigned char kvc_mutant_unseen[KVC_MUTANTS_MAX] __attribute__((unused));
static unsigned char *kvc_mutant_reached = kvc_mutant_unseen;
static long kvc_mutant_number = -1;

/* System calls, not functions of libc: tests replace those, and count them. */
__attribute__((constructor, unused)) static void kvc_mutant_start(void)
{
    const char *number = getenv("KVC_MUTANT"), *path = getenv("KVC_MUTANT_REACHED");
    long fd, memory;

    if (number)
        kvc_mutant_number = strtol(number, NULL, 10);
    if (!path)
        return;
    fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    memory = syscall(SYS_mmap, NULL, (size_t) KVC_MUTANTS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    if (memory > 0)
        kvc_mutant_reached = (unsigned char *) memory;
    syscall(SYS_close, fd);
}

static inline __attribute__((unused)) int kvc_mutant(int number)
{
    kvc_mutant_reached[number] = 1;
    return number == kvc_mutant_number;
}
