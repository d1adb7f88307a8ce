/*
 * The newest lines of the log, for operators who watch a daemon (GET_EVENTS). Lines have numbers, so that a
 * reader can ask for those after the last one that it has, and notices which it missed.
 *
 * Any thread adds lines; the event loop reads them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/protocol.h"

enum { LOG_HISTORY_LINES = 512, LOG_HISTORY_LINE_BYTES = WIRE_EVENT_BYTES_MAX };

struct log_history_line {
    uint64_t number;  /* from 1, without gaps */
    uint64_t time_us; /* since 1970 */
    int level;        /* of syslog(3) */
    char *json;       /* an object: "event", then the fields */
};

/* Adds a copy of @json. The oldest line is dropped for it; one that is too long, or has no memory, leaves a
 * gap in the numbers. */
void log_history_add(int level, uint64_t time_us, const char *json);

/**
 * log_history_read() - copy the lines after number @after, oldest first
 * @ret: [n_max]; the caller frees each json
 * @ret_last: number of the newest line of the log; 0: none
 *
 * Return: the number of lines.
 */
size_t log_history_read(uint64_t after, struct log_history_line *ret, size_t n_max, uint64_t *ret_last);
