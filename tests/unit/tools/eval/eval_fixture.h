/* A small random model, a text, its statistics and a table, for tests of `kvcobra eval`. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/lib/tiny_gguf.h"
#include "tests/unit/tools/capture.h"

static char dir[] = "/tmp/kvc-eval-XXXXXX";
static char model[64], text[64], statistics[64], table[64];

#define EVAL "kvcobra", "eval", model, "--table", table, "--text", text

/* A model of 4 layers, its statistics and a table of 1.5 bits, made once. */
static inline void begin(void)
{
    struct tiny_gguf_options o = {.n_layers = 4};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    struct errmsg e = {""};
    char words[2000], *out = NULL;

    (void) memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    (void) snprintf(model, sizeof(model), "%s/model", dir);
    (void) snprintf(text, sizeof(text), "%s/text", dir);
    (void) snprintf(statistics, sizeof(statistics), "%s/stats", dir);
    (void) snprintf(table, sizeof(table), "%s/table", dir);
    for (size_t i = 0; i < sizeof(words); i++)
        words[i] = (char) ('a' + test_rand_below(26));
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, model), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(text, words, sizeof(words), &e), 0);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){"kvcobra", "calibrate", model, "--text", text, "--tokens",
                                                   "512", "--window", "128", "-q", "-o", statistics, NULL},
                             &out),
                    COMMAND_OK);
    free(out);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--bpd", "1.5", "-q", "-o",
                                                   table, NULL},
                             &out),
                    COMMAND_OK);
    free(out);
}

static inline void end(void)
{
    (void) unlink(model);
    (void) unlink(text);
    (void) unlink(statistics);
    (void) unlink(table);
    CU_ASSERT_EQUAL(rmdir(dir), 0);
}
