/* See mapped_file.h. */
#include "tools/engine/mapped_file.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/*
 * Read by the handler, in any thread at any time: a place is in use while @at is not 0. @at is stored last by
 * mapped_file_watch() (release) and loaded first by the handler (acquire); mapped_file_forget() clears it
 * before the memory is unmapped.
 */
static struct {
    _Atomic uintptr_t at;
    size_t bytes;
    const char *path;
} mapped_files[MAPPED_FILES_MAX];

static pthread_mutex_t mapped_files_lock = PTHREAD_MUTEX_INITIALIZER; /* of changes */
static struct sigaction mapped_files_before;

static const char *mapped_file_of(uintptr_t address)
{
    for (size_t i = 0; i < MAPPED_FILES_MAX; i++) {
        uintptr_t at = atomic_load_explicit(&mapped_files[i].at, memory_order_acquire);

        if (at != 0 && address >= at && address - at < mapped_files[i].bytes)
            return mapped_files[i].path;
    }
    return NULL;
}

static void mapped_file_say(const char *text)
{
    (void) !write(STDERR_FILENO, text, strlen(text));
}

/* Calls functions that are safe in handlers only. */
static void mapped_file_on_sigbus(int number, siginfo_t *info, void *context)
{
    const char *path = info->si_code > 0 ? mapped_file_of((uintptr_t) info->si_addr) : NULL;

    (void) context;
    if (path) {
        mapped_file_say("kvcobra: ");
        mapped_file_say(path);
        mapped_file_say(
            ": the file became shorter while it was read, or its disk failed: put model files in place "
            "by renaming them\n");
        _exit(1);
    }

    (void) sigaction(number, &mapped_files_before, NULL); /* the instruction faults again when this returns */
    if (info->si_code <= 0)                               /* sent by a process */
        (void) raise(number);
}

void mapped_file_watch(const void *at, size_t bytes, const char *path)
{
    static bool is_installed;
    struct sigaction action = {.sa_sigaction = mapped_file_on_sigbus, .sa_flags = SA_SIGINFO};

    (void) pthread_mutex_lock(&mapped_files_lock);
    if (!is_installed)
        is_installed = sigaction(SIGBUS, &action, &mapped_files_before) == 0;
    for (size_t i = 0; i < MAPPED_FILES_MAX; i++) {
        if (atomic_load_explicit(&mapped_files[i].at, memory_order_relaxed) != 0)
            continue;
        mapped_files[i].bytes = bytes;
        mapped_files[i].path = path;
        atomic_store_explicit(&mapped_files[i].at, (uintptr_t) at, memory_order_release);
        break;
    }
    (void) pthread_mutex_unlock(&mapped_files_lock);
}

void mapped_file_forget(const void *at)
{
    (void) pthread_mutex_lock(&mapped_files_lock);
    for (size_t i = 0; i < MAPPED_FILES_MAX; i++)
        if (atomic_load_explicit(&mapped_files[i].at, memory_order_relaxed) == (uintptr_t) at)
            atomic_store_explicit(&mapped_files[i].at, 0, memory_order_relaxed);
    (void) pthread_mutex_unlock(&mapped_files_lock);
}
