/* First tokens of two processes with the same prompt; see bench_generate.h. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/memory_file.h"
#include "lab/bench/bench_generate.h"
#include "tools/command/clock.h"
#include "tools/command/find_daemon.h"
#include "tools/command/process.h"

/* A memory file with the prompt after a line that is unique to this run. Children open it through /proc. */
static int first_token_make_prompt(const char *text, size_t bytes, size_t repetition, int *ret_fd,
                                   struct errmsg *e)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-prompt");
    char line[96];
    int r;

    if (fd < 0)
        return fail(e, fd, "cannot make a memory file for the prompt: %s", strerror(-fd));

    (void) snprintf(line, sizeof(line), "Run %d at %.9f, repetition %zu.\n", (int) getpid(), clock_seconds(),
                    repetition);
    r = fd_write_all(fd, line, strlen(line));
    if (r == 0)
        r = fd_write_all(fd, text, bytes);
    if (r < 0)
        return fail(e, r, "cannot write a prompt of %zu bytes to a memory file: %s", bytes, strerror(-r));

    *ret_fd = fd;
    fd = -1;
    return 0;
}

/* Results of a process that runs `kvcobra generate --json` for one token. */
struct first_token_process {
    double seconds;
    json_int_t n_prompt, n_matched;
    char why[256]; /* why publishing ended early */
};

static int first_token_run_process(const char *model, const char *socket, int prompt_fd,
                                   struct first_token_process *ret, struct errmsg *e)
{
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra generate");
    struct process *const ps[] = {&p};
    char prompt[64], kvcobra[PATH_MAX];
    const char *argv[] = {"kvcobra", "generate", model, "--prompt-file", prompt,   "--socket",
                          socket,    "--tokens", "1",   "--ignore-eos",  "--json", NULL};
    const char *why;
    json_t *json;
    int r;

    (void) snprintf(prompt, sizeof(prompt), "/proc/%d/fd/%d", (int) getpid(), prompt_fd);
    r = find_kvcobra(kvcobra, e);
    if (r == 0)
        r = process_start(&p, kvcobra, argv, PROCESS_CAPTURE, e);
    if (r < 0)
        return r;

    r = process_wait(ps, 1, 0, PROCESS_EXITS, -1, e);
    if (r < 0)
        return r;
    if (!process_succeeded(&p, e))
        return -ECANCELED;

    json = json_loads(p.out ? p.out : "", 0, NULL);
    r = json_unpack(json, "{s:F, s:I, s:I, s:s}", "first_token_seconds", &ret->seconds, "prompt_tokens",
                    &ret->n_prompt, "matched_tokens", &ret->n_matched, "not_published_because", &why);
    if (r == 0)
        (void) snprintf(ret->why, sizeof(ret->why), "%s", why);
    json_decref(json);
    return r < 0 ? fail(e, -EPROTO, "the output of 'kvcobra generate --json' lacks expected keys") : 0;
}

/* One process that computes the prompt, and one that finds it published. */
static int first_token_pair_of_processes(const char *model, const char *socket, const char *text,
                                         size_t bytes, size_t repetition, struct first_token_process ret[2],
                                         struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    int r = first_token_make_prompt(text, bytes, repetition, &fd, e);

    for (int i = 0; i < 2 && r == 0; i++)
        r = first_token_run_process(model, socket, fd, &ret[i], e);
    if (r < 0)
        return r;
    if (ret[0].n_matched > 0)
        return fail(e, -EEXIST,
                    "the first process found its prompt published: another client publishes the same text");
    if (ret[1].n_matched == 0)
        return fail(e, -ENODATA, "the second process found none of %lld tokens published%s%s",
                    (long long) ret[1].n_prompt, ret[0].why[0] ? ": " : "; a longer --prompt-bytes helps",
                    ret[0].why);

    return 0;
}

int bench_first_token(const char *model, const char *socket, const char *text, size_t bytes, size_t repeat,
                      struct first_token_result *ret, struct errmsg *e)
{
    _cleanup_(freep) double *seconds = calloc(repeat, 3 * sizeof(*seconds));
    double *cold = seconds, *warm, *ratio;
    struct first_token_process pair[2];

    if (!seconds)
        return fail(e, -ENOMEM, "out of memory");

    warm = seconds + repeat;
    ratio = seconds + 2 * repeat;

    for (size_t i = 0; i < repeat; i++) {
        int r = first_token_pair_of_processes(model, socket, text, bytes, i, pair, e);

        if (r < 0)
            return r;

        cold[i] = pair[0].seconds;
        warm[i] = pair[1].seconds;
        ratio[i] = cold[i] / warm[i];
    }

    *ret = (struct first_token_result){
        .n_prompt = (size_t) pair[1].n_prompt,
        .n_matched = (size_t) pair[1].n_matched,
        .cold = timing_of(cold, repeat),
        .warm = timing_of(warm, repeat),
        .ratio = timing_of(ratio, repeat),
    };
    return 0;
}
