/* Runs `kvcobra ...` inside a test and captures its output. Not for usage errors, which end the process. */
#pragma once

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tools/command/command.h"

#ifndef CAPTURE_MAIN /* of another program than kvcobra: defined before this file is included */
#define CAPTURE_MAIN commands_main
#endif

enum { CAPTURE_ARGS_MAX = 24, CAPTURE_BYTES_MAX = 1 << 20 };

/* Runs the command and captures one stream. Return: the exit code; *ret_text is malloc'ed. */
static inline int captured(int stream, const char *const args[], char **ret_text)
{
    char *copies[CAPTURE_ARGS_MAX] = {NULL}, *argv[CAPTURE_ARGS_MAX] = {NULL}; /* the command reorders argv */
    int argc = 0, saved, code;
    FILE *f = tmpfile();
    size_t n;

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    for (; args[argc]; argc++) {
        assert(argc + 1 < CAPTURE_ARGS_MAX);
        argv[argc] = copies[argc] = strdup(args[argc]);
    }

    (void) fflush(NULL);
    saved = dup(stream);
    CU_ASSERT_FATAL(saved >= 0 && dup2(fileno(f), stream) >= 0);
    code = CAPTURE_MAIN(argc, argv);
    (void) fflush(NULL);
    CU_ASSERT_FATAL(dup2(saved, stream) >= 0);
    (void) close(saved);
    while (argc > 0)
        free(copies[--argc]);

    *ret_text = calloc(1, CAPTURE_BYTES_MAX);
    CU_ASSERT_PTR_NOT_NULL_FATAL(*ret_text);
    rewind(f);
    n = fread(*ret_text, 1, CAPTURE_BYTES_MAX - 1, f);
    (*ret_text)[n] = '\0';
    (void) fclose(f);
    return code;
}

/* The JSON document that a command prints; a failed check ends the case. */
static inline json_t *captured_json(const char *const args[])
{
    char *text = NULL;
    json_t *j;

    CU_ASSERT_EQUAL(captured(STDOUT_FILENO, args, &text), COMMAND_OK);
    j = json_loads(text, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(j);
    free(text);
    return j;
}

static inline double json_double_at(const json_t *j, const char *key)
{
    const json_t *x = json_object_get(j, key);

    CU_ASSERT(json_is_number(x));
    return json_number_value(x);
}
